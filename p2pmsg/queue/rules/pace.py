"""How much is done in a stretch of time, by which is decided how much may be under way."""

from typing import Final

_OVER_NS: Final = 10_000_000
"""A measurement takes so long at least: acknowledgements come some ms apart."""


class Pace:
    """Measures how many jobs are done within some time.

    What it measured holds for five times that time: a worker that has done nothing since may have
    other jobs now, and counts as slow.

    Attributes:
        span_ns: the time.

    """

    __slots__ = ("_count", "_since_ns", "_within", "span_ns")

    def __init__(self, span_ns: int) -> None:
        self.span_ns = span_ns
        self._since_ns = self._count = self._within = 0

    def add(self, count: int, *, now_ns: int) -> None:
        """Note that so many are done."""
        self._count += count
        passed_ns = now_ns - self._since_ns
        if passed_ns >= max(1, min(self.span_ns // 2, _OVER_NS)):
            self._within = self._count * self.span_ns // passed_ns
            self._since_ns, self._count = now_ns, 0

    def within_span(self, *, now_ns: int) -> int:
        """Return how many are done within the time, as measured last; 0 where that is too old."""
        return self._within if now_ns < self.expires_ns else 0

    @property
    def expires_ns(self) -> int:
        """Until when the measurement holds."""
        return self._since_ns + 5 * self.span_ns
