"""The publisher's memory of the frames it has sent."""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable
from itertools import repeat
from operator import itemgetter
from typing import NamedTuple

from recovery.checks import to_ns


class Kept(NamedTuple):
    """A frame of messages `[start, stop)`, as it was sent."""

    start: int
    stop: int
    frame: bytes | memoryview
    timestamp_ns_max: int
    """The newest of its messages' timestamps, in ns since the epoch."""


class PartedFrame:
    """A frame in parts, which are joined when it is asked for.

    What is large in it is somebody else's object, which is so kept without a copy: of what it takes
    to publish 64 KiB a third.
    """

    __slots__ = ("_parts", "_size")

    def __init__(self, parts: tuple[bytes, ...], size: int) -> None:
        self._parts = parts
        self._size = size

    def __len__(self) -> int:
        return self._size

    def join(self) -> bytes:
        """Return the whole frame."""
        return b"".join(self._parts)


# What a stream keeps for a frame is a plain tuple, three times cheaper to make than a Kept:
# (start, stop, frame, timestamp_ns_max, newest timestamp so far).
_Row = tuple[int, int, bytes | memoryview | PartedFrame, int, int]
_STOP = itemgetter(1)
_NEWEST = itemgetter(4)
Free = Callable[[list[bytes | memoryview]], None]
_GONE: _Row = (0, 0, b"", 0, 0)
_COMPACT_AT = 1024
_FREED_AT_ONCE = 8


class _Stream:
    __slots__ = ("first", "newest_ns", "next", "rows")

    def __init__(self) -> None:
        self.rows: list[_Row] = []
        self.first = 0  # rows before it are evicted; they are cut off when they are the half
        self.next = 0
        self.newest_ns = -(2**63)


class ReplayBuffer:
    """The newest frames of several streams, bounded by bytes, age and number over all of them.

    What passes a bound evicts the oldest frames, in the order in which they were appended,
    whichever stream they belong to. Appending is O(1) amortised, looking up O(log n).

    Args:
        bytes_max: bound on the bytes of all kept frames. Default 64 MiB, half a second of a gigabit
            link, many times what a repair takes. A frame's bookkeeping comes on top: some 200
            bytes, 300 more for a message of 4 KiB or more that stands alone, and 900 for a frame
            of 32 KiB that ZeroMQ sends.
        age_max: age at which a frame is dropped, in seconds. Default None: age does not matter,
            since old frames serve late joiners as long as there is space.
        frames_max: bound on the number of kept frames. Default a million, whose bookkeeping costs
            about 200 MiB.
        streams_max: bound on the number of streams, since the next sequence of each is remembered
            for ever. Frames of a stream past it are not kept. Default 65,536, which cost 20 MiB.
        free: empties a list of evicted frames that are memoryviews, where that takes more than to
            forget them; of eight at a time, which are kept until then. It is called when all is
            done; what it raises changes nothing. Default: none is needed.

    Attributes:
        bytes_held: bytes of the frames kept now.
        messages_evicted: messages dropped to keep a bound, those never kept included: in a frame
            larger than `bytes_max`, or of one stream too many.

    """

    __slots__ = (
        "_age_ns",
        "_appended_ns",
        "_bytes_max",
        "_evicted",
        "_frames_max",
        "_free",
        "_order",
        "_streams",
        "_streams_max",
        "bytes_held",
        "messages_evicted",
    )

    def __init__(
        self,
        bytes_max: int = 64 * 2**20,
        *,
        age_max: float | None = None,
        frames_max: int = 1_000_000,
        streams_max: int = 65_536,
        free: Free | None = None,
    ) -> None:
        self._free = free
        self._evicted: list[bytes | memoryview] = []
        self._bytes_max = bytes_max
        self._frames_max = frames_max
        self._streams_max = streams_max
        self._age_ns = None if age_max is None else to_ns(age_max)
        self._streams: dict[str, _Stream] = {}
        self._order: deque[_Stream] = deque()  # one entry a kept frame
        self._appended_ns: deque[int] = deque()  # as _order, only where age matters
        self.bytes_held = 0
        self.messages_evicted = 0

    def append(
        self,
        stream: str,
        start: int,
        count: int,
        frame: bytes | memoryview | PartedFrame,
        *,
        now_ns: int,
        timestamp_ns_max: int,
    ) -> None:
        """Remember a frame of `count` messages from `start` on, not below `next(stream)`.

        A frame larger than `bytes_max` evicts nothing: it is not kept. Raises `ValueError` for a
        count below 1 or a sequence that goes back.
        """
        kept = self._streams.get(stream)
        if kept is None:
            if len(self._streams) >= self._streams_max:
                self.messages_evicted += count
                return
            kept = self._streams[stream] = _Stream()
        if start < kept.next or count < 1:
            raise ValueError(
                f"a frame needs start >= {kept.next} and count >= 1, not {start} and {count}"
            )
        stop, size = start + count, len(frame)
        if size > self._bytes_max:
            kept.next = stop
            self.messages_evicted += count
            return
        if timestamp_ns_max > kept.newest_ns:
            kept.newest_ns = timestamp_ns_max
        row, add = (start, stop, frame, timestamp_ns_max, kept.newest_ns), kept.rows.append
        kept.next = stop  # no call until the next one is done, so an interrupt leaves both or none
        add(row)
        order = self._order
        order.append(kept)
        if self._age_ns is not None:
            self._appended_ns.append(now_ns)
        self.bytes_held += size
        while self.bytes_held > self._bytes_max or len(order) > self._frames_max:
            self._evict_oldest()
        self._free_evicted()

    def begin(self, stream: str, following: int) -> None:
        """Begin a stream at `following`: what was before it is kept elsewhere.

        Raises `ValueError` where the stream is known.
        """
        if stream in self._streams:
            raise ValueError(f"stream {stream!r} has begun")
        if len(self._streams) < self._streams_max:
            self._streams[stream] = kept = _Stream()
            kept.next = following

    def forget(self, stream: str) -> bool:
        """Forget a stream, its next sequence too, unless frames of it are kept; whether it did."""
        kept = self._streams.get(stream)
        if kept is None or kept.first < len(kept.rows):
            return kept is None
        del self._streams[stream]
        return True

    def append_many(
        self, stream: str, frames: list[tuple[int, int, bytes, int]], *, now_ns: int
    ) -> None:
        """Do as `append` does, for frames (start, count, frame, timestamp_ns_max) in a row.

        It takes a third of the time. `ValueError` where they do not follow one another.
        """
        first = frames[0]
        self.append(stream, *first[:3], now_ns=now_ns, timestamp_ns_max=first[3])
        kept = self._streams.get(stream)
        rest = frames[1:]
        size = sum(len(frame) for _, _, frame, _ in rest)
        if kept is None or size > self._bytes_max:
            for start, count, frame, latest_ns in rest:
                self.append(stream, start, count, frame, now_ns=now_ns, timestamp_ns_max=latest_ns)
            return
        following, newest_ns = kept.next, kept.newest_ns
        rows: list[_Row] = []
        for start, count, frame, latest_ns in rest:
            if start != following or count < 1:
                raise ValueError(f"a frame needs start = {following}, not {start}, and count >= 1")
            following += count
            if latest_ns > newest_ns:
                newest_ns = latest_ns
            rows.append((start, following, frame, latest_ns, newest_ns))
        # In this order, an interrupt leaves at most frames that are kept and not counted on yet.
        kept.rows += rows
        self._order.extend(repeat(kept, len(rows)))
        if self._age_ns is not None:
            self._appended_ns.extend(repeat(now_ns, len(rows)))
        kept.next, kept.newest_ns = following, newest_ns
        self.bytes_held += size
        while self.bytes_held > self._bytes_max or len(self._order) > self._frames_max:
            self._evict_oldest()
        self._free_evicted()

    def first(self, stream: str, start: int, stop: int) -> Kept | None:
        """Return the first kept frame that overlaps `[start, stop)`, or None."""
        kept = self._streams.get(stream)
        if kept is None or start >= stop:
            return None
        rows = kept.rows
        index = bisect_right(rows, start, kept.first, key=_STOP)
        return _kept(rows[index]) if index < len(rows) and rows[index][0] < stop else None

    def earliest(self, stream: str) -> int | None:
        """Return the first sequence kept of a stream, or None where nothing is."""
        kept = self._streams.get(stream)
        if kept is None or kept.first == len(kept.rows):
            return None
        return kept.rows[kept.first][0]

    def next(self, stream: str) -> int:
        """Return the sequence after the last one appended; 0 for an unknown stream."""
        kept = self._streams.get(stream)
        return 0 if kept is None else kept.next

    def first_at_or_after(self, stream: str, timestamp_ns: int) -> Kept | None:
        """Return the first kept frame with a `timestamp_ns_max` of at least `timestamp_ns`.

        O(log n) while timestamps grow; where they go back, as many more steps as frames do.
        """
        kept = self._streams.get(stream)
        if kept is None:
            return None
        rows = kept.rows
        # Timestamps need not be sorted, but the newest so far is: before it nothing can match.
        for index in range(bisect_left(rows, timestamp_ns, kept.first, key=_NEWEST), len(rows)):
            if rows[index][3] >= timestamp_ns:
                return _kept(rows[index])
        return None

    def expire(self, *, now_ns: int) -> None:
        """Drop the frames that are as old as `age_max`."""
        if self._age_ns is None:
            return
        limit_ns = now_ns - self._age_ns
        while self._appended_ns and self._appended_ns[0] <= limit_ns:
            self._evict_oldest()
        self._free_evicted()

    def next_deadline_ns(self) -> int | None:
        """Return when `expire` has something to do, or None."""
        if self._age_ns is None or not self._appended_ns:
            return None
        return self._appended_ns[0] + self._age_ns

    def _evict_oldest(self) -> None:
        kept = self._order[0]
        rows, first = kept.rows, kept.first
        start, stop, frame, _, _ = rows[first]
        size, half = len(frame), len(rows) // 2
        # From here to the first call at the end no other: an interrupt comes before it all or
        # after it. What it may keep from happening then is but the frame's being freed at leisure.
        rows[first] = _GONE
        first += 1
        if first >= _COMPACT_AT and first >= half:
            del rows[:first]
            first = 0
        kept.first = first
        self.bytes_held -= size
        self.messages_evicted += stop - start
        self._order.popleft()
        if self._age_ns is not None:
            self._appended_ns.popleft()
        if self._free is not None and isinstance(frame, memoryview):
            self._evicted.append(frame)

    def _free_evicted(self) -> None:
        if len(self._evicted) >= _FREED_AT_ONCE and self._free is not None:
            self._free(self._evicted)


def _kept(row: _Row) -> Kept:
    start, stop, frame, timestamp_ns_max, _ = row
    if isinstance(frame, PartedFrame):
        frame = frame.join()
    return Kept(start, stop, frame, timestamp_ns_max)
