"""A set of sequences, kept as sorted, disjoint, half-open ranges.

Costs follow the number of ranges, never the number of sequences: ten million missing messages in
a row are one pair of integers.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator


class RangeSet:
    """A set of non-negative integers as sorted, disjoint ranges `[start, stop)`.

    Ranges that touch are merged, so `[0, 3)` and `[3, 5)` are held as `[0, 5)`. Look-ups cost
    O(log n) in the number of ranges; changes move at most two small lists.

    Args:
        ranges: pairs to begin with, in any order; they may overlap. Default: none.

    Raises:
        ValueError: where a range has `start > stop` or `start < 0`; every method that takes a
            range raises it. An empty range (`start == stop`) is allowed and changes nothing.

    """

    __slots__ = ("_size", "_starts", "_stops")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        self._size = 0
        for start, stop in ranges:
            self.add(start, stop)

    def add(self, start: int, stop: int) -> int:
        """Cover `[start, stop)`; returns how many sequences were not covered before."""
        if not 0 <= start < stop:
            _check(start, stop)
            return 0
        starts, stops = self._starts, self._stops
        if not stops or stops[-1] < start:  # mostly
            starts.append(start)
            stops.append(stop)
            self._size += stop - start
            return stop - start
        low = bisect_left(stops, start)  # the first range that reaches or touches start
        high = bisect_right(starts, stop)  # the first range that lies wholly after stop
        if low == high:
            starts.insert(low, start)
            stops.insert(low, stop)
            added = stop - start
        else:
            start, stop = min(start, starts[low]), max(stop, stops[high - 1])
            added = stop - start - sum(stops[low:high]) + sum(starts[low:high])
            starts[low:high] = [start]
            stops[low:high] = [stop]
        self._size += added
        return added

    def remove(self, start: int, stop: int) -> int:
        """Uncover `[start, stop)`; returns how many sequences were covered before."""
        _check(start, stop)
        starts, stops = self._starts, self._stops
        low = bisect_right(stops, start)
        high = bisect_left(starts, stop)
        if low >= high or start == stop:
            return 0
        left, right = starts[low], stops[high - 1]
        removed = sum(stops[low:high]) - sum(starts[low:high])
        kept_starts: list[int] = []
        kept_stops: list[int] = []
        if left < start:
            kept_starts.append(left)
            kept_stops.append(start)
            removed -= start - left
        if right > stop:
            kept_starts.append(stop)
            kept_stops.append(right)
            removed -= right - stop
        starts[low:high] = kept_starts
        stops[low:high] = kept_stops
        self._size -= removed
        return removed

    def overlap(self, start: int, stop: int) -> list[tuple[int, int]]:
        """List the parts of `[start, stop)` that are covered, in order."""
        _check(start, stop)
        if start == stop:
            return []
        low = bisect_right(self._stops, start)
        high = bisect_left(self._starts, stop)
        return [
            (max(start, self._starts[index]), min(stop, self._stops[index]))
            for index in range(low, high)
        ]

    def missing(self, start: int, stop: int) -> list[tuple[int, int]]:
        """List the parts of `[start, stop)` that are not covered, in order."""
        result: list[tuple[int, int]] = []
        for covered_start, covered_stop in self.overlap(start, stop):
            if start < covered_start:
                result.append((start, covered_start))
            start = covered_stop
        if start < stop:
            result.append((start, stop))
        return result

    def containing(self, sequence: int) -> tuple[int, int] | None:
        """Return the whole range that covers `sequence`, or None."""
        index = bisect_right(self._starts, sequence) - 1
        if index < 0 or sequence >= self._stops[index]:
            return None
        return self._starts[index], self._stops[index]

    def is_range(self, start: int, stop: int) -> bool:
        """Whether it is just `[start, stop)`, which is not empty."""
        return self._starts == [start] and self._stops == [stop]

    @property
    def size(self) -> int:
        """How many sequences are covered; O(1)."""
        return self._size

    @property
    def first(self) -> tuple[int, int] | None:
        """The lowest range, or None."""
        return (self._starts[0], self._stops[0]) if self._starts else None

    @property
    def last(self) -> tuple[int, int] | None:
        """The highest range, or None."""
        return (self._starts[-1], self._stops[-1]) if self._starts else None

    def clear(self) -> None:
        """Cover nothing."""
        self._starts.clear()
        self._stops.clear()
        self._size = 0

    def copy(self) -> "RangeSet":
        """Return an independent copy."""
        other = RangeSet()
        other._starts = self._starts.copy()
        other._stops = self._stops.copy()
        other._size = self._size
        return other

    def __contains__(self, sequence: int) -> bool:
        index = bisect_right(self._starts, sequence) - 1
        return index >= 0 and sequence < self._stops[index]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._starts, self._stops, strict=True)

    def __len__(self) -> int:
        return len(self._starts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RangeSet):
            return NotImplemented
        return self._starts == other._starts and self._stops == other._stops

    __hash__ = None  # type: ignore[assignment]  # it can change

    def __repr__(self) -> str:
        return f"RangeSet({list(self)!r})"


def _check(start: int, stop: int) -> None:
    if start < 0 or start > stop:
        raise ValueError(f"a range needs 0 <= start <= stop, not [{start}, {stop})")
