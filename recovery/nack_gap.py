"""The gaps of one stream, in order."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from recovery.loss import LossReason
from recovery.ranges import RangeSet


class Gap:
    """Messages `[start, stop)` that are missing, and how often they were asked for.

    Attributes:
        put_off: it is not asked for before there is room for what it lacks.

    """

    __slots__ = ("attempts", "detected_ns", "put_off", "reason", "start", "stop")

    def __init__(self, start: int, stop: int, detected_ns: int, reason: LossReason) -> None:
        self.start = start
        self.stop = stop
        self.detected_ns = detected_ns
        self.reason = reason
        self.attempts = 0
        self.put_off = False


class GapTable:
    """The gaps of one stream, sorted; what there is to know of them without changing any.

    Args:
        gaps_max: bound on their number.

    """

    __slots__ = ("_gaps", "_gaps_max", "_missing_count", "_starts")

    def __init__(self, gaps_max: int) -> None:
        self._gaps_max = gaps_max
        self._starts: list[int] = []
        self._gaps: list[Gap] = []
        self._missing_count = 0

    def can_fill(self, start: int, stop: int) -> bool:
        """Return False where taking `[start, stop)` out would split a gap past `gaps_max`."""
        return len(self._gaps) < self._gaps_max or not self._splits(start, stop)

    def overlap(self, start: int, stop: int) -> list[tuple[int, int]]:
        """List the parts of `[start, stop)` that are missing, in order."""
        low, high = self._touched(start, stop)
        return [(max(start, gap.start), min(stop, gap.stop)) for gap in self._gaps[low:high]]

    @property
    def stop(self) -> int:
        """Where the last gap ends; 0 where there is none."""
        return self._gaps[-1].stop if self._gaps else 0

    @property
    def missing(self) -> RangeSet:
        """What is missing now, as a copy of its own."""
        return RangeSet(self.ranges())

    @property
    def missing_count(self) -> int:
        """How many messages are missing now; O(1)."""
        return self._missing_count

    def ranges(self) -> Iterable[tuple[int, int]]:
        """List the gaps in order; touching ones are not merged."""
        return [(gap.start, gap.stop) for gap in self._gaps]

    def __len__(self) -> int:
        return len(self._gaps)

    def _touched(self, start: int, stop: int) -> tuple[int, int]:
        """Find the indices of the gaps that overlap `[start, stop)`."""
        if start >= stop:
            return 0, 0
        low = bisect_right(self._starts, start)
        if low > 0 and self._gaps[low - 1].stop > start:
            low -= 1
        return low, bisect_left(self._starts, stop, low)

    def _splits(self, start: int, stop: int) -> bool:
        low, high = self._touched(start, stop)
        if high - low != 1:
            return False  # of several gaps none is cut in its middle
        gap = self._gaps[low]
        return gap.start < start and stop < gap.stop
