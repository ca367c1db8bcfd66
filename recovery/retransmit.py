"""Which answer to a NACK goes out next.

Requesters take turns, one job each. One whose budget is used up, or whose queue is full, is parked
until it may go on, and costs the others nothing::

    request ──▶ ready (in turn) ──sent, budget used up──▶ parked ──time──▶ ready
                  │  └──block──────────────────────────────▲
                  └──nothing wanted any more──▶ remembered for its budget
"""

from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence
from operator import itemgetter
from typing import Final, Generic, TypeVar

from recovery.budget import TokenBucket
from recovery.checks import to_ns
from recovery.deadlines import DeadlineHeap
from recovery.ranges import RangeSet

SENT_MAX: Final = 8192
"""Requesters of which it is remembered how many frames went to them; beyond it the one that was met
first is forgotten. Twice as many as have requests at a publisher."""


class _Sent:
    __slots__ = ("base", "count", "received")

    def __init__(self, count: int) -> None:
        self.count = count
        self.base = 0
        self.received: int | None = None


class SentFrames:
    """Numbers the frames that go to each requester.

    A requester says how many have come. It counts on where its connection was made again, and is
    another requester then; what it had when it first said so was sent to the former one.
    """

    __slots__ = ("_highest", "_requesters")

    def __init__(self) -> None:
        self._requesters: dict[bytes, _Sent] = {}
        self._highest = 0

    def note(self, requester: bytes) -> int:
        """Note that a frame was sent; returns its number, which grows."""
        sent = self._requesters.get(requester) or self._begin(requester)
        number = sent.count = sent.count + 1
        if number > self._highest:
            self._highest = number
        return number

    def arrived(self, requester: bytes, received: int | None) -> int:
        """Return the number up to which frames have come, by how many its requester received.

        All count as come where it does not say (None), and where its number has gone back.
        """
        sent = self._requesters.get(requester) or self._begin(requester)
        if received is None:
            return sent.count
        if sent.received is None or received < sent.received:
            sent.base = sent.count - received
        sent.received = received
        return sent.base + received

    def _begin(self, requester: bytes) -> _Sent:
        if len(self._requesters) >= SENT_MAX:
            del self._requesters[next(iter(self._requesters))]
        # Numbers that were given before, to one that was forgotten, are below it.
        sent = self._requesters[requester] = _Sent(self._highest)
        return sent


REQUESTERS_MAX: Final = 4096
"""Requesters that are remembered, as many as one publisher may have subscribers. Of those that wait
for nothing the one that asked longest ago is dropped; where all wait the new one is refused."""
RANGES_MAX: Final = 1024
"""Ranges that one requester waits for, over all streams: 16 NACKs of 64. What would pass it is
refused and named."""
S = TypeVar("S", bound=Hashable)
"""What names a stream."""
_ANSWERED_MAX = 4096
_Answer = tuple[int, S, int, int, int]
"""When it was sent, stream, start, stop, and the number of its frame."""
_STOP: Final = itemgetter(1)
_FLIGHT_NS = 30_000_000_000
"""How long an answer may be on its way: as long as a slow link takes for what queues hold."""


class _Requester(Generic[S]):
    __slots__ = ("answered", "bucket", "ranges_held", "wanted")

    def __init__(self, bucket: TokenBucket) -> None:
        self.bucket = bucket
        self.wanted: dict[S, RangeSet] = {}
        self.ranges_held = 0
        # The newest answers; a forgotten one costs a repetition.
        self.answered: deque[_Answer[S]] = deque(maxlen=_ANSWERED_MAX)

    def add(self, stream: S, start: int, stop: int) -> bool:
        """Want `[start, stop)`, which is not empty; False where that would be a range too many."""
        wanted = self.wanted.get(stream)
        if wanted is None:  # mostly
            if self.ranges_held >= RANGES_MAX:
                return False
            self.ranges_held += 1
            self.wanted[stream] = RangeSet([(start, stop)])
            return True
        before = len(wanted)
        wanted.add(start, stop)
        grown = len(wanted) - before
        if grown > 0 and self.ranges_held >= RANGES_MAX:
            wanted.remove(start, stop)  # it touched nothing, or the number had not grown
            return False
        self.ranges_held += grown
        return True

    def remove(self, stream: S, start: int, stop: int) -> None:
        """Want `[start, stop)` no more.

        Where that cuts a range in two and so passes the bound, the upper part is forgotten; its
        requester will ask for it again.
        """
        wanted = self.wanted.get(stream)
        if wanted is None:
            return
        if wanted.is_range(start, stop):  # all that it waits for, mostly
            self.ranges_held -= 1
            del self.wanted[stream]
            return
        before = len(wanted)
        wanted.remove(start, stop)
        self.ranges_held += len(wanted) - before
        upper = wanted.containing(stop)
        if self.ranges_held > RANGES_MAX and upper is not None:
            wanted.remove(*upper)
            self.ranges_held -= 1
        if not wanted:
            del self.wanted[stream]


class RetransmitScheduler(Generic[S]):
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

    Attributes:
        frames: numbers what goes to each requester; who else sends to them notes it there.

    """

    def __init__(
        self,
        *,
        linger: float = 0.01,
        budget_bytes_s: int = 128 * 2**20,
        budget_burst_bytes: int = 32 * 2**20,
    ) -> None:
        self._budget = budget_bytes_s, budget_burst_bytes
        self.frames = SentFrames()
        self._linger_ns = to_ns(linger)
        # In the order in which they asked last.
        self._requesters: OrderedDict[bytes, _Requester[S]] = OrderedDict()
        # Each requester that wants something is in one of these two.
        self._ready: OrderedDict[bytes, None] = OrderedDict()
        self._parked: DeadlineHeap[bytes] = DeadlineHeap()

    def request(
        self,
        requester: bytes,
        stream: S,
        ranges: Sequence[tuple[int, int]],
        *,
        now_ns: int,
        received: int | None = None,
    ) -> list[tuple[int, int]]:
        """Take a NACK; returns the ranges refused because a bound is met.

        Ranges are merged with what the requester waits for already. Parts answered to it within
        `linger` are ignored, since that answer is on its way, and so are those that it cannot have
        received yet, where it says how many frames it has `received`. Malformed ranges are ignored.
        """
        state = self._requesters.get(requester) or self._begin(requester)
        refused: list[tuple[int, int]] = []
        if state is not None:
            self._requesters.move_to_end(requester)
            arrived = self.frames.arrived(requester, received)
            if state.answered:
                ranges = self._not_answered(state, stream, ranges, now_ns, arrived)
        for start, stop in ranges:
            if not 0 <= start < stop:
                continue
            if state is None or not state.add(stream, start, stop):
                refused.append((start, stop))
        if state is not None and state.wanted and requester not in self._parked.times:
            self._ready[requester] = None
        return refused

    def next_job(self, *, now_ns: int) -> tuple[bytes, S, int, int] | None:
        """Return (requester, stream, start, stop) to answer now, or None.

        Its requester goes to the end of the queue, and the stream to the end of the requester's.
        The caller answers with one frame, or a few, from `start` on and says so with `sent`; a
        job that is neither sent, dropped nor blocked comes again in its next turn.
        """
        ready = self._ready
        while self._parked.times and (due := self._parked.pop_due(now_ns)) is not None:
            ready[due] = None
        while ready:
            requester = next(iter(ready))
            state = self._requesters[requester]
            if state.bucket.is_spent(now_ns):
                del ready[requester]
                self._parked.set(requester, state.bucket.ready_at_ns(now_ns))
                continue
            ready.move_to_end(requester)
            wanted = state.wanted
            stream = next(iter(wanted))
            ranges = wanted[stream] = wanted.pop(stream)
            first = ranges.first
            assert first is not None  # what is not wanted any more is forgotten
            return requester, stream, *first
        return None

    def sent(
        self, requester: bytes, stream: S, start: int, stop: int, size: int, *, now_ns: int
    ) -> None:
        """Note that `[start, stop)` went to a requester in `size` bytes, and charge its budget."""
        number = self.frames.note(requester)
        state = self._requesters.get(requester)
        if state is None:
            return
        state.remove(stream, start, stop)
        state.bucket.take(size, now_ns)
        if self._linger_ns:
            self._remember(state.answered, (now_ns, stream, start, stop, number))
        if not state.wanted:
            self._settle(requester)

    def drop_range(self, requester: bytes, stream: S, start: int, stop: int) -> None:
        """Forget `[start, stop)`: it is not kept, and the requester was informed."""
        state = self._requesters.get(requester)
        if state is None:
            return
        state.remove(stream, start, stop)
        if not state.wanted:
            self._settle(requester)

    def block(self, requester: bytes, until_ns: int) -> None:
        """Leave a requester out until `until_ns`: its queue is full."""
        if requester in self._ready:
            del self._ready[requester]
            self._parked.set(requester, until_ns)
        elif requester in self._parked:
            self._parked.set(requester, max(until_ns, self._parked.get(requester) or 0))

    def forget(self, requester: bytes) -> None:
        """Forget a requester and its wishes: it is gone."""
        self._requesters.pop(requester, None)
        self._settle(requester)

    def resync(self) -> None:
        """Forget what is waited for, after an exception at any line: requesters ask again."""
        for state in self._requesters.values():
            state.wanted.clear()
            state.answered.clear()
            state.ranges_held = 0
        self._ready.clear()
        self._parked = DeadlineHeap()

    def next_deadline_ns(self, *, now_ns: int) -> int | None:
        """Return when `next_job` may have something: `now_ns` if it has, None if nothing waits."""
        if self._ready:
            return now_ns
        first = self._parked.first()
        return None if first is None else max(now_ns, first[0])

    def waiting(self, requester: bytes, stream: S) -> RangeSet:
        """Return what a requester still waits for in a stream, as a copy."""
        state = self._requesters.get(requester)
        ranges = None if state is None else state.wanted.get(stream)
        return RangeSet() if ranges is None else ranges.copy()

    def __len__(self) -> int:
        return len(self._requesters)

    def _begin(self, requester: bytes) -> _Requester[S] | None:
        known = self._requesters
        if len(known) >= REQUESTERS_MAX:
            idle = next((each for each, state in known.items() if not state.wanted), None)
            if idle is None:
                return None
            del known[idle]
        state = known[requester] = _Requester(TokenBucket(*self._budget))
        return state

    def _not_answered(
        self,
        state: _Requester[S],
        stream: S,
        ranges: Sequence[tuple[int, int]],
        now_ns: int,
        arrived: int,
    ) -> Sequence[tuple[int, int]]:
        """Return what of `ranges` was not answered, or has to be again."""
        recent = state.answered
        while recent:
            when_ns, _, _, _, number = recent[0]
            age_ns = now_ns - when_ns
            if age_ns < self._linger_ns or (number > arrived and age_ns < _FLIGHT_NS):
                break  # too young to be repeated, or on its way for certain
            recent.popleft()
        if not recent or not ranges:
            return ranges
        low, high = min(ranges)[0], max(map(_STOP, ranges))
        answered = RangeSet(
            (start, stop)
            for _, name, start, stop, _ in recent
            if start < high and stop > low and name == stream
        )
        if not answered:
            return ranges
        parts: list[tuple[int, int]] = []
        for start, stop in ranges:
            if 0 <= start < stop:
                parts += answered.missing(start, stop)
        return parts

    def _remember(self, recent: deque[_Answer[S]], answer: _Answer[S]) -> None:
        if recent:
            now_ns, stream, start, stop, number = answer
            when, name, first, last, _ = recent[-1]
            if name == stream and last == start and now_ns - when < self._linger_ns // 8:
                # A run of frames is one entry, by its first frame's time: its end may be answered
                # an eighth of `linger` early, and its entries are few.
                recent[-1] = (when, name, first, stop, number)
                return
        recent.append(answer)

    def _settle(self, requester: bytes) -> None:
        """Give no more turns to a requester: it wants nothing."""
        if requester in self._ready:
            del self._ready[requester]
        else:
            self._parked.discard(requester)
