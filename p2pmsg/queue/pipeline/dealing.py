"""What a pipeline's pusher has dealt to whom, and what is dealt again; no clock, no socket."""

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


class Share:
    """The frames dealt to one puller, numbered from 0 on a PUSH socket of its own.

    Attributes:
        id: random. identity: of the puller's connection. name: for people. user: whose key it has.
        next: the number of the next frame.
        confirmed: the number of the first frame that is not wholly confirmed.
        part: how many jobs of that frame are confirmed.
        jobs, bytes: what is dealt and not confirmed.
        allowed: how many jobs it may have.
        heard_ns: when the puller was last heard.

    """

    def __init__(
        self, number: int, identity: bytes, name: str, now_ns: int, user: str = ""
    ) -> None:
        self.id = number
        self.user = user
        self.identity = identity
        self.name = name
        self.next = self.confirmed = self.part = 0
        self.jobs = self.bytes = self.done = 0
        self.allowed = ALLOWED_MIN
        self.heard_ns = self._paced_ns = now_ns
        self._paced = 0
        self._paces: deque[int] = deque(maxlen=_PACES)
        self.dealt: deque[Piece] = deque()

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
        cut: returns a piece without its first jobs.

    Attributes:
        shares: by id. waiting: what no share has.
        jobs, bytes: accepted and not confirmed.
        done: jobs confirmed. redealt: jobs dealt again. refused: confirmations that cannot be.

    """

    def __init__(self, dealt_bytes_max: int, cut: Callable[[Piece, int], Piece]) -> None:
        self._bytes_max = dealt_bytes_max
        self._cut = cut
        self.shares: dict[int, Share] = {}
        self.waiting: deque[Piece] = deque()
        self.jobs = self.bytes = self.done = self.redealt = self.refused = 0

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
            self.waiting.popleft()
            if not best.jobs:
                best.begin(now_ns)
            number = best.next
            best.next = number + 1
            best.dealt.append(piece)
            best.jobs += piece.jobs
            best.bytes += size
            yield best, number, piece

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
        share.done += part - share.part
        share.part = part
        if share.done > before:
            share.jobs -= share.done - before
            self.jobs -= share.done - before
            self.done += share.done - before
        return True

    def again(self, share: Share, start: int, stop: int) -> list[tuple[int, Piece]]:
        """Return the frames [start, stop) of a share that are kept, to be sent again."""
        start = max(start, share.confirmed)
        stop = min(stop, share.next)
        return [(number, share.dealt[number - share.confirmed]) for number in range(start, stop)]

    def give_up(self, share: Share) -> int:
        """Take back what a share has and did not confirm; return how many jobs that is.

        They are the next to be dealt, in their order.
        """
        del self.shares[share.id]
        pieces = share.dealt
        if share.part:
            whole = pieces.popleft()
            self.bytes -= whole.size
            if whole.jobs > share.part:
                rest = self._cut(whole, share.part)
                self.bytes += rest.size
                pieces.appendleft(rest)
        self.waiting.extendleft(reversed(pieces))
        jobs = sum(piece.jobs for piece in pieces)
        self.redealt += jobs
        return jobs
