"""What a pipeline's pusher has dealt to whom, and what is dealt again; no clock, no socket."""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

ALLOWED_MIN: Final = 64
"""Jobs that a puller may have while nothing is known of its speed."""
ALLOWED_MAX: Final = 65_536
_AHEAD_NS: Final = 200_000_000
"""A puller may have as many jobs as it did in so much time: several times what a confirmation
takes, and little enough that a slow puller does not collect jobs that others could do."""
_PACE_NS: Final = 4_000_000
"""Over less time no pace is measured: pullers confirm 5 ms apart, except in `commit`."""
_PACES: Final = 3
"""So many last measurements count: those that late confirmations make too high are fewer."""
FAILURES_MAX: Final = 5
"""A job that ended so many connections when it was sent alone is given up."""
_RETRY_NS: Final = 1_000_000_000
"""It is tried again after so long, then after twice the time, and so on: a network that breaks
again and again does not soon take a good job away."""
_GIVEN_UP_MAX: Final = 16
PIECE_BYTES: Final = 256
"""What a piece takes in addition to its body."""


class Piece(NamedTuple):
    """Consecutive jobs, which travel in one frame."""

    first: int
    """The pusher's sequence of the first."""
    jobs: int
    """How many."""
    body: bytes
    """As in a DATA frame."""

    @property
    def size(self) -> int:
        """How many bytes it takes in memory, about."""
        return len(self.body) + PIECE_BYTES


class Aside(NamedTuple):
    """A job that ended a connection, until it is tried again."""

    piece: Piece
    due_ns: int
    puller: int
    """Where it was; another one is tried first."""


class Share:
    """The frames dealt to one puller, numbered from 0 on a PUSH socket of its own.

    Attributes:
        id: random. identity: of the puller's connection. name: for people. user: whose key it has.
        puller: the puller's id.
        next: the number of the next frame.
        confirmed: the number of the first frame that is not wholly confirmed.
        part: how many jobs of that frame are confirmed.
        jobs, bytes: what is dealt and not confirmed.
        allowed: how many jobs it may have.
        last_heard_ns: when the puller was last heard.
        sent: the frames that were sent again: over which connection, and how many ended with it.
        unconfirmed: the frame that ends connections, if one does.

    """

    def __init__(
        self, number: int, identity: bytes, name: str, now_ns: int, user: str = "", puller: int = 0
    ) -> None:
        self.id = number
        self.puller = puller
        self.user = user
        self.identity = identity
        self.name = name
        self.next = self.confirmed = self.part = 0
        self.jobs = self.bytes = self.done = 0
        self.allowed = ALLOWED_MIN
        self.last_heard_ns = self._paced_ns = now_ns
        self._paced = 0
        self._paces: deque[int] = deque(maxlen=_PACES)
        self.dealt: deque[Piece] = deque()
        self.sent: dict[int, tuple[bytes, int]] = {}
        self.unconfirmed: int | None = None

    def set_pace(self, now_ns: int) -> None:
        """Allow as many jobs as were done within a certain time, after some were confirmed.

        Confirmations that were late come together, and show in one measurement what was done in
        the time of several. So the least of the last three counts.
        """
        done = self.done - self._paced
        passed_ns = now_ns - self._paced_ns
        if not done or passed_ns < _PACE_NS:
            return
        self._paces.append(done * _AHEAD_NS // passed_ns)
        allowed = min(*self._paces, ALLOWED_MAX, 8 * self.allowed)
        self.allowed = max(ALLOWED_MIN, allowed)
        self._paced_ns, self._paced = now_ns, self.done

    def resync(self) -> None:
        """Put all right after an exception: the frames that are kept say what was confirmed."""
        lacking = self.next - self.confirmed - len(self.dealt)
        if lacking > 0:  # it came while one was confirmed
            self.confirmed, self.part = self.confirmed + lacking, 0
        else:  # … while one was dealt
            self.next -= lacking
        first = self.dealt[0].jobs if self.dealt else 0
        self.part = min(self.part, max(0, first - 1))
        self.jobs = sum(piece.jobs for piece in self.dealt) - self.part
        self.bytes = sum(piece.size for piece in self.dealt)

    def begin(self, now_ns: int) -> None:
        """Begin to measure the pace again, from when it is dealt something while it has nothing.

        No confirmation is on its way then, so the next measurement is not too high.
        """
        if self.done == self._paced:
            self._paced_ns = now_ns
            self._paces.clear()


class Dealer:
    """Deals pieces to shares; each is kept until it is confirmed.

    Args:
        dealt_bytes_max: how many bytes one share may have.
        part: returns a piece with the jobs [start, stop) of another.

    Attributes:
        shares: by id. waiting: what no share has.
        jobs, bytes: accepted and not confirmed.
        done: jobs confirmed. redealt: jobs dealt again. refused: confirmations that cannot be.
        aside: jobs that ended connections, to be tried again. undeliverable: those given up.
        given_up: these, to be logged.

    """

    def __init__(self, dealt_bytes_max: int, part: Callable[[Piece, int, int], Piece]) -> None:
        self._bytes_max = dealt_bytes_max
        self._part = part
        self.shares: dict[int, Share] = {}
        self.waiting: deque[Piece] = deque()
        self.jobs = self.bytes = self.done = self.redealt = self.refused = 0
        self.undeliverable = 0
        self.aside: list[Aside] = []
        self.given_up: deque[Piece] = deque(maxlen=_GIVEN_UP_MAX)
        self._failures: dict[int, int] = {}
        """By the first sequence of pieces that may end connections; these are sent again alone."""

    def accept(self, piece: Piece) -> None:
        """Keep a piece, to be dealt."""
        self.waiting.append(piece)
        self.jobs += piece.jobs
        self.bytes += piece.size

    def add(self, share: Share) -> None:
        """Deal to a further puller from now on."""
        self.shares[share.id] = share

    def deal(
        self, can_take: Callable[[Share], bool], *, now_ns: int
    ) -> Iterator[tuple[Share, int, Piece]]:
        """Deal what waits: yield whom a piece goes to, and the frame's number in that share.

        The share that has least in proportion to what it may have is next; one that has nothing may
        take a piece of any size, so that each piece can be dealt. How many each may have follows
        from all confirmations until now.
        """
        for share in self.shares.values():
            share.set_pace(now_ns)
        if self.aside:
            yield from self._deal_aside(can_take, now_ns)
        while self.waiting:
            piece = self.waiting[0]
            size = piece.size
            best: Share | None = None
            for share in self.shares.values():
                fits = share.jobs + piece.jobs <= share.allowed
                if share.jobs and not (fits and share.bytes + size <= self._bytes_max):
                    continue
                # least jobs / allowed, without a division
                if best is not None and share.jobs * best.allowed >= best.jobs * share.allowed:
                    continue
                if can_take(share):
                    best = share
            if best is None:
                return
            number = self._give(best, piece, now_ns)
            self.waiting.popleft()  # after that, so that no exception in between loses it
            yield best, number, piece

    def _deal_aside(
        self, can_take: Callable[[Share], bool], now_ns: int
    ) -> Iterator[tuple[Share, int, Piece]]:
        """Deal the jobs that are to be tried again, to other pullers where there are any."""
        for each in [each for each in self.aside if each.due_ns <= now_ns]:
            piece, size = each.piece, each.piece.size
            fitting = [
                share
                for share in self.shares.values()
                if not share.jobs
                or (share.jobs < share.allowed and share.bytes + size <= self._bytes_max)
            ]
            fitting.sort(key=lambda share: (share.puller == each.puller, share.jobs))
            for share in fitting:
                if can_take(share):
                    number = self._give(share, piece, now_ns)
                    self.aside.remove(each)
                    yield share, number, piece
                    break

    def _give(self, share: Share, piece: Piece, now_ns: int) -> int:
        """Note that a share has a piece; return the frame's number."""
        if not share.jobs:
            share.begin(now_ns)
        number = share.next
        share.dealt.append(piece)
        share.next = number + 1
        share.jobs += piece.jobs
        share.bytes += piece.size
        return number

    def confirm(self, share: Share, up_to: int, part: int) -> bool:
        """Take a confirmation: frames below `up_to`, and `part` jobs of that one, are done.

        An older one than the last changes nothing. False where it is about what was never dealt.
        """
        if up_to > share.next or (up_to == share.next and part):
            self.refused += 1
            return False
        if (up_to, part) < (share.confirmed, share.part):
            return True
        at = up_to - share.confirmed
        if part and part > share.dealt[at].jobs:
            self.refused += 1
            return False
        if part and part == share.dealt[at].jobs:
            up_to, part = up_to + 1, 0
        before = share.done
        while share.confirmed < up_to:
            piece = share.dealt.popleft()
            size = piece.size
            share.bytes -= size
            self.bytes -= size
            share.done += piece.jobs - share.part
            share.part = 0
            share.confirmed += 1
            if self._failures:
                self._failures.pop(piece.first, None)
        share.done += part - share.part
        share.part = part
        if share.done > before:
            share.jobs -= share.done - before
            self.jobs -= share.done - before
            self.done += share.done - before
        return True

    def again(
        self, share: Share, ranges: list[tuple[int, int]], bytes_max: int
    ) -> list[tuple[int, Piece]]:
        """Return the frames [start, stop) that a share misses, to be sent again; not all at once.

        One that was sent again over a connection that ended since may have ended it: it goes alone.
        Where the connection ended then, too, it is the share's `unconfirmed`.
        """
        share.sent = {at: sent for at, sent in share.sent.items() if at >= share.confirmed}
        found: list[tuple[int, Piece]] = []
        for start, stop in ranges:
            for number in range(max(start, share.confirmed), min(stop, share.next)):
                piece = share.dealt[number - share.confirmed]
                identity, cuts = share.sent.get(number, (share.identity, 0))
                if identity != share.identity:
                    cuts += 1
                if cuts > 1 and not found:
                    share.unconfirmed = number
                    return []
                is_alone = cuts > 0 or piece.first in self._failures
                if found and (is_alone or bytes_max <= 0):
                    return found
                share.sent[number] = share.identity, max(cuts, int(is_alone))
                bytes_max -= piece.size
                found.append((number, piece))
                if is_alone:
                    return found
        return found

    def on_gone(self, share: Share) -> None:
        """Note that a share's connection ended, and is not made again in time.

        What was sent again over it may be why.
        """
        for number, (identity, cuts) in share.sent.items():
            if number >= share.confirmed and identity == share.identity:
                if cuts:
                    share.unconfirmed = number
                else:
                    self._failures.setdefault(share.dealt[number - share.confirmed].first, 0)

    def has(self, first: int) -> bool:
        """Whether a piece that begins with this job was accepted last, and waits."""
        return bool(self.waiting) and self.waiting[-1].first == first

    def resync(self, accepted: int) -> None:
        """Put all right after an exception, of so many jobs: what a share has, waits no more."""
        held: list[tuple[int, int]] = []
        for share in self.shares.values():
            share.resync()
            held += ((piece.first, piece.first + piece.jobs) for piece in share.dealt)
        held.sort()

        def is_held(piece: Piece) -> bool:
            at = bisect_right(held, (piece.first, 2**63)) - 1
            return at >= 0 and piece.first < held[at][1]

        self.aside = [each for each in self.aside if not is_held(each.piece)]
        held += ((each.piece.first, each.piece.first + 1) for each in self.aside)
        held.sort()
        self.waiting = deque(piece for piece in self.waiting if not is_held(piece))
        shares = self.shares.values()
        alone = [*self.waiting, *(each.piece for each in self.aside)]
        self.jobs = sum(share.jobs for share in shares) + sum(piece.jobs for piece in alone)
        self.bytes = sum(share.bytes for share in shares) + sum(piece.size for piece in alone)
        self.done = accepted - self.jobs - self.undeliverable

    def give_up(self, share: Share, *, now_ns: int) -> int:
        """Take back what a share has and did not confirm; return how many jobs that is.

        They are the next to be dealt, in their order, except for the `unconfirmed`.
        """
        pieces = share.dealt.copy()
        if share.part:
            whole = pieces.popleft()
            self._failures.pop(whole.first, None)
            self.bytes -= whole.size
            rest = self._part(whole, share.part, whole.jobs)
            self.bytes += rest.size
            pieces.appendleft(rest)
        if share.unconfirmed is not None and share.unconfirmed >= share.confirmed:
            at = share.unconfirmed - share.confirmed
            unconfirmed = pieces[at]
            del pieces[at]
            for half in reversed(self._set_aside(unconfirmed, share.puller, now_ns)):
                pieces.insert(at, half)
        self.waiting.extendleft(reversed(pieces))
        del self.shares[share.id]
        jobs = sum(piece.jobs for piece in pieces)
        self.redealt += jobs
        return jobs

    def _set_aside(self, piece: Piece, puller: int, now_ns: int) -> list[Piece]:
        """Find out which job ends connections: return its halves, or note that it failed."""
        failures = self._failures.pop(piece.first, 0)
        if piece.jobs > 1:
            middle = piece.jobs // 2
            halves = [self._part(piece, 0, middle), self._part(piece, middle, piece.jobs)]
            self.bytes += sum(half.size for half in halves) - piece.size
            self._failures.update((half.first, 0) for half in halves)
            return halves
        failures += 1
        if failures >= FAILURES_MAX:
            self.undeliverable += 1
            self.given_up.append(piece)
            self.jobs -= 1
            self.bytes -= piece.size
            return []
        self._failures[piece.first] = failures
        self.redealt += 1
        self.aside.append(Aside(piece, now_ns + (_RETRY_NS << (failures - 1)), puller))
        return []
