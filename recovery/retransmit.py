"""Which answer to a NACK goes out next.

Requesters take turns, one job each. One whose budget is used up, or whose queue is full, is parked
until it may go on, and costs the others nothing::

    request ──▶ ready (in turn) ──sent, budget used up──▶ parked ──time──▶ ready
                  │  └──block──────────────────────────────▲
                  └──nothing wanted any more──▶ idle (remembered for its budget and stats)
"""

from collections import OrderedDict, deque
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass

from recovery.budget import TokenBucket
from recovery.checks import to_ns
from recovery.deadlines import DeadlineHeap
from recovery.ranges import RangeSet
from recovery.sent_frames import SentFrames


@dataclass(slots=True)
class RequesterStats:
    """What one requester has asked for and got."""

    bytes_sent: int = 0
    messages_sent: int = 0
    ranges_refused: int = 0
    """Ranges not answered: bounds met, or not kept any more."""
    requests: int = 0
    throttled: int = 0
    """Times that it used up its budget while it still wanted more."""


REQUESTERS_MAX = 4096
_ANSWERED_MAX = 4096
_Answer = tuple[int, str, int, int, int]
"""When it was sent, stream, start, stop, and the number of its frame."""
_FLIGHT_NS = 30_000_000_000
"""How long an answer may be on its way: as long as a slow link takes for what queues hold."""


class _Requester:
    __slots__ = ("answered", "bucket", "ranges_held", "stats", "wanted")

    def __init__(self, bucket: TokenBucket) -> None:
        self.bucket = bucket
        self.wanted: dict[str, RangeSet] = {}
        self.ranges_held = 0
        # The newest answers; a forgotten one costs a repetition.
        self.answered: deque[_Answer] = deque(maxlen=_ANSWERED_MAX)
        self.stats = RequesterStats()

    def add(self, stream: str, start: int, stop: int, ranges_max: int) -> bool:
        """Want `[start, stop)`, which is not empty; False where that would be a range too many."""
        wanted = self.wanted.get(stream)
        if wanted is None:  # mostly
            if self.ranges_held >= ranges_max:
                return False
            self.ranges_held += 1
            self.wanted[stream] = RangeSet([(start, stop)])
            return True
        before = len(wanted)
        wanted.add(start, stop)
        grown = len(wanted) - before
        if grown > 0 and self.ranges_held >= ranges_max:
            wanted.remove(start, stop)  # it touched nothing, or the number had not grown
            return False
        self.ranges_held += grown
        return True

    def remove(self, stream: str, start: int, stop: int, ranges_max: int) -> None:
        """Want `[start, stop)` no more.

        Where that cuts a range in two and so passes the bound, the upper part is forgotten and
        counted as refused; its requester will ask for it again.
        """
        wanted = self.wanted.get(stream)
        if wanted is None:
            return
        if wanted.first == wanted.last == (start, stop):  # all that it waits for, mostly
            self.ranges_held -= 1
            del self.wanted[stream]
            return
        before = len(wanted)
        wanted.remove(start, stop)
        self.ranges_held += len(wanted) - before
        upper = wanted.containing(stop)
        if self.ranges_held > ranges_max and upper is not None:
            wanted.remove(*upper)
            self.ranges_held -= 1
            self.stats.ranges_refused += 1
        if not wanted:
            del self.wanted[stream]


class RetransmitScheduler:
    """What each requester still waits for, and whose turn it is.

    Args:
        linger: time for which an answered range is not answered again to the same requester, in
            seconds. Default 0.01, as in Aeron: longer than most round trips, and half of a
            receiver's first retry. One that says how many frames it has received gets nothing again
            that is on its way, unless this is 0.
        budget_bytes_s: bytes a second that one requester may have, at least 1. Default 128 MiB/s, a
            gigabit link: one receiver may use its own link fully, and no more.
        budget_burst_bytes: bytes that one requester may have at once after a pause, at least 1.
            Default 32 MiB, a quarter of a second's budget: usual losses are answered at once.
        ranges_max: bound on the ranges that one requester waits for, over all streams; what would
            pass it is refused and named. Default 1024, which are 16 NACKs of 64 ranges.
        requesters_max: bound on the requesters remembered. The one idle for longest is dropped;
            where none is idle the new one is refused. Default 4096, as many as one publisher may
            have subscribers.
        frames: numbers what goes to each requester; who else sends to them notes it there. Default:
            one of its own.

    Attributes:
        frames: as given.
        ranges_refused: ranges refused because a bound was met, over all requesters.
        messages_lingering: messages not answered because they had just been, or are on their way.

    """

    def __init__(
        self,
        *,
        linger: float = 0.01,
        budget_bytes_s: int = 128 * 2**20,
        budget_burst_bytes: int = 32 * 2**20,
        ranges_max: int = 1024,
        requesters_max: int = REQUESTERS_MAX,
        frames: SentFrames | None = None,
    ) -> None:
        self._budget = budget_bytes_s, budget_burst_bytes
        self._ranges_max, self._requesters_max = ranges_max, requesters_max
        self.frames = SentFrames() if frames is None else frames
        self._linger_ns = to_ns(linger)
        self._requesters: dict[bytes, _Requester] = {}
        # Each known requester is in exactly one of these three.
        self._ready: OrderedDict[bytes, None] = OrderedDict()
        self._parked: DeadlineHeap[bytes] = DeadlineHeap()
        self._idle: OrderedDict[bytes, None] = OrderedDict()
        self.ranges_refused = self.messages_lingering = 0

    def request(
        self,
        requester: bytes,
        stream: str,
        ranges: Iterable[tuple[int, int]],
        *,
        now_ns: int,
        received: int | None = None,
    ) -> list[tuple[int, int]]:
        """Take a NACK; returns the ranges refused because a bound is met.

        Ranges are merged with what the requester waits for already. Parts answered to it within
        `linger` are ignored, since that answer is on its way, and so are those that it cannot have
        received yet, where it says how many frames it has `received`. Malformed ranges are ignored.
        """
        well_formed = [(start, stop) for start, stop in ranges if 0 <= start < stop]
        state = self._known(requester)
        if state is None:
            self.ranges_refused += len(well_formed)
            return well_formed
        state.stats.requests += 1
        arrived = self.frames.arrived(requester, received)
        parts = self._not_answered(state, stream, well_formed, now_ns, arrived)
        ranges_max = self._ranges_max
        refused = [(a, b) for a, b in parts if not state.add(stream, a, b, ranges_max)]
        self.ranges_refused += len(refused)
        state.stats.ranges_refused += len(refused)
        if state.wanted and requester in self._idle:
            del self._idle[requester]
            self._ready[requester] = None
            self._park_if_throttled(requester, state, now_ns)
        return refused

    def answer_at_once(
        self,
        requester: bytes,
        stream: str,
        start: int,
        stop: int,
        size: int,
        *,
        now_ns: int,
        received: int | None = None,
    ) -> bool:
        """Take a NACK of one range that goes out now, in `size` bytes; False: call `request`.

        So it is where the requester waits for nothing, was answered nothing within `linger` and has
        a budget. It is `request`, `next_job` and `sent` in one, at a third of what they take.
        """
        state = self._known(requester)
        if state is None or state.wanted:
            return False
        recent, arrived = state.answered, self.frames.arrived(requester, received)
        if recent and self._is_coming(recent[-1], arrived, now_ns):
            return False
        if not state.bucket.try_take(size, now_ns):
            return False
        recent.clear()
        number = self.frames.note(requester)
        if self._linger_ns:
            recent.append((now_ns, stream, start, stop, number))
        stats = state.stats
        stats.requests += 1
        stats.bytes_sent += size
        stats.messages_sent += stop - start
        return True

    def take_back(self, requester: bytes, stream: str, start: int, stop: int) -> None:
        """Let wait what `answer_at_once` took: it could not be sent, and goes out in its turn."""
        state = self._requesters.get(requester)
        if state is None:
            return
        state.stats.messages_sent -= stop - start
        self.frames.take_back(requester)
        if not state.add(stream, start, stop, self._ranges_max):
            self.ranges_refused += 1
            state.stats.ranges_refused += 1
        elif requester in self._idle:
            del self._idle[requester]
            self._ready[requester] = None

    def next_job(self, *, now_ns: int) -> tuple[bytes, str, int, int] | None:
        """Return (requester, stream, start, stop) to answer now, or None.

        Its requester goes to the end of the queue, and the stream to the end of the requester's.
        The caller answers with one frame, or a few, from `start` on and says so with `sent`; a
        job that is neither sent, dropped nor blocked comes again in its next turn.
        """
        while (requester := self._parked.pop_due(now_ns)) is not None:
            self._ready[requester] = None
            self._park_if_throttled(requester, self._requesters[requester], now_ns, again=True)
        if not self._ready:
            return None
        requester = next(iter(self._ready))
        self._ready.move_to_end(requester)
        wanted = self._requesters[requester].wanted
        stream = next(iter(wanted))
        ranges = wanted[stream] = wanted.pop(stream)
        first = ranges.first
        assert first is not None  # what is not wanted any more is forgotten
        return requester, stream, *first

    def sent(
        self, requester: bytes, stream: str, start: int, stop: int, size: int, *, now_ns: int
    ) -> None:
        """Note that `[start, stop)` went to a requester in `size` bytes, and charge its budget."""
        number = self.frames.note(requester)
        state = self._requesters.get(requester)
        if state is None:
            return
        state.remove(stream, start, stop, self._ranges_max)
        state.stats.bytes_sent += size
        state.stats.messages_sent += stop - start
        state.bucket.take(size, now_ns)
        if self._linger_ns:
            self._remember(state, (now_ns, stream, start, stop, number))
        self._settle(requester, state)
        self._park_if_throttled(requester, state, now_ns)

    def drop_range(self, requester: bytes, stream: str, start: int, stop: int) -> None:
        """Forget `[start, stop)`: it is not kept, and the requester was informed."""
        state = self._requesters.get(requester)
        if state is None:
            return
        state.remove(stream, start, stop, self._ranges_max)
        state.stats.ranges_refused += 1
        self._settle(requester, state)

    def block(self, requester: bytes, until_ns: int) -> None:
        """Leave a requester out until `until_ns`: its queue is full."""
        if requester in self._ready:
            del self._ready[requester]
            self._parked.set(requester, until_ns)
        elif requester in self._parked:
            self._parked.set(requester, max(until_ns, self._parked.get(requester) or 0))

    def forget(self, requester: bytes) -> None:
        """Forget a requester, its wishes and its stats: it is gone."""
        self._requesters.pop(requester, None)
        self._ready.pop(requester, None)
        self._idle.pop(requester, None)
        self._parked.discard(requester)

    def resync(self) -> None:
        """Forget what is waited for, after an exception at any line: requesters ask again."""
        for state in self._requesters.values():
            state.wanted.clear()
            state.answered.clear()
            state.ranges_held = 0
        self._ready.clear()
        self._parked = DeadlineHeap()
        self._idle = OrderedDict.fromkeys(self._requesters)

    def next_deadline_ns(self, *, now_ns: int) -> int | None:
        """Return when `next_job` may have something: `now_ns` if it has, None if nothing waits."""
        if self._ready:
            return now_ns
        first = self._parked.first()
        return None if first is None else max(now_ns, first[0])

    def waiting(self, requester: bytes, stream: str) -> RangeSet:
        """Return what a requester still waits for in a stream, as a copy."""
        state = self._requesters.get(requester)
        ranges = None if state is None else state.wanted.get(stream)
        return RangeSet() if ranges is None else ranges.copy()

    def requester_stats(self) -> dict[bytes, RequesterStats]:
        """Return what each remembered requester has asked for and got."""
        return {requester: copy(state.stats) for requester, state in self._requesters.items()}

    def __len__(self) -> int:
        return len(self._requesters)

    def _known(self, requester: bytes) -> _Requester | None:
        state = self._requesters.get(requester)
        if state is None:
            if len(self._requesters) >= self._requesters_max:
                if not self._idle:
                    return None
                self.forget(next(iter(self._idle)))
            state = self._requesters[requester] = _Requester(TokenBucket(*self._budget))
            self._idle[requester] = None
        elif requester in self._idle:
            self._idle.move_to_end(requester)
        return state

    def _is_coming(self, answer: _Answer, arrived: int, now_ns: int) -> bool:
        """Whether an answer is too young to be repeated, or is on its way for certain."""
        when_ns, *_, number = answer
        age_ns = now_ns - when_ns
        return age_ns < self._linger_ns or (number > arrived and age_ns < _FLIGHT_NS)

    def _not_answered(
        self,
        state: _Requester,
        stream: str,
        ranges: list[tuple[int, int]],
        now_ns: int,
        arrived: int,
    ) -> list[tuple[int, int]]:
        """Return what of `ranges` was not answered, or has to be again; count the rest."""
        recent = state.answered
        while recent and not self._is_coming(recent[0], arrived, now_ns):
            recent.popleft()
        if not recent:
            return ranges
        answered = RangeSet((start, stop) for _, name, start, stop, _ in recent if name == stream)
        parts = [part for start, stop in ranges for part in answered.missing(start, stop)]
        self.messages_lingering += sum(b - a for a, b in ranges) - sum(b - a for a, b in parts)
        return parts

    def _remember(self, state: _Requester, answer: _Answer) -> None:
        recent = state.answered
        now_ns, stream, start, stop, number = answer
        if recent:
            when, name, first, last, _ = recent[-1]
            if name == stream and last == start and now_ns - when < self._linger_ns // 8:
                # A run of frames is one entry, by its first frame's time: its end may be answered
                # an eighth of `linger` early, and its entries are few.
                recent[-1] = (when, name, first, stop, number)
                return
        recent.append(answer)

    def _settle(self, requester: bytes, state: _Requester) -> None:
        if not state.wanted and requester not in self._idle:
            self._ready.pop(requester, None)
            self._parked.discard(requester)
            self._idle[requester] = None

    def _park_if_throttled(
        self, requester: bytes, state: _Requester, now_ns: int, *, again: bool = False
    ) -> None:
        if requester in self._ready and state.bucket.available(now_ns) < 1:
            del self._ready[requester]
            self._parked.set(requester, state.bucket.ready_at_ns(now_ns))
            if not again:
                state.stats.throttled += 1
