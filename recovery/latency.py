"""A histogram of times that costs the same however many are recorded."""

_EXPONENT_MAX = 62
_BUCKETS = _EXPONENT_MAX * 4


class LatencyHistogram:
    """Times in ns, in buckets that are powers of two, each cut into four.

    A percentile is therefore at most a quarter too high, and 248 counters hold any number of times
    up to 2**63 ns (292 years); longer ones are counted in the last bucket.

    Attributes:
        count: times recorded.
        max: the longest, in ns; 0 while there is none.

    """

    __slots__ = ("_buckets", "count", "max")

    def __init__(self) -> None:
        self._buckets = [0] * _BUCKETS
        self.count = 0
        self.max = 0

    def __repr__(self) -> str:
        return f"<LatencyHistogram: {self.count}, half within {self.percentile(50)} ns>"

    def __getstate__(self) -> tuple[list[int], int, int]:
        return self._buckets.copy(), self.count, self.max

    def __setstate__(self, state: tuple[list[int], int, int]) -> None:
        self._buckets, self.count, self.max = state

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LatencyHistogram):
            return NotImplemented
        return self.__getstate__() == other.__getstate__()

    __hash__ = None  # type: ignore[assignment]

    def record(self, ns: int) -> None:
        """Count a time of `ns` nanoseconds; a negative one, as a wrong clock gives, as 0."""
        ns = max(0, ns)
        self._buckets[_index(ns)] += 1
        self.count += 1
        if ns > self.max:
            self.max = ns

    def merge(self, other: "LatencyHistogram") -> None:
        """Add what the histogram `other` has recorded."""
        for index, count in enumerate(other._buckets):
            self._buckets[index] += count
        self.count += other.count
        self.max = max(self.max, other.max)

    def percentile(self, p: float) -> int:
        """Return a time, in ns, that `p` per cent of all do not exceed: a bucket's upper edge.

        Never above `max`; 0 while nothing is recorded. Raises `ValueError` unless 0 < p <= 100.
        """
        if not 0 < p <= 100:
            raise ValueError(f"p must be above 0 and at most 100, not {p!r}")
        wanted = self.count * p / 100
        seen = 0
        for index, count in enumerate(self._buckets):
            seen += count
            if count and seen >= wanted:
                return self.max if index == _BUCKETS - 1 else min(self.max, _upper_edge(index))
        return self.max


def _index(ns: int) -> int:
    if ns < 4:
        return ns
    exponent = ns.bit_length() - 1
    if exponent > _EXPONENT_MAX:
        return _BUCKETS - 1
    return (exponent - 1) * 4 + ((ns >> (exponent - 2)) & 3)


def _upper_edge(index: int) -> int:
    if index < 4:
        return index
    exponent = index // 4 + 1
    return ((5 + index % 4) << (exponent - 2)) - 1
