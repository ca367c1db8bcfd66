"""How long to wait before the next attempt."""

import math
from random import Random

from recovery._checks import at_least, at_most


class Backoff:
    """Exponential back-off with a ceiling and jitter.

    The delay of attempt `n` is `initial_ns * factor ** n`, at most `ceiling_ns`; jitter then takes
    off a random part of it. Jitter only shortens, so the ceiling holds, and receivers that lost
    the same frame do not ask in step even when all of them have reached the ceiling.

    Args:
        initial_ns: delay of attempt 0, in ns, at least 1.
        ceiling_ns: longest delay, in ns, at least `initial_ns`.
        factor: growth per attempt, at least 1. Default 2, the usual doubling: an outage of any
            length costs only logarithmically many attempts until the ceiling.
        jitter: largest part of a delay that is taken off, 0 to 1. Default 0: exact delays.
        rng: source of the jitter; needed where `jitter` is above 0.

    Raises:
        ValueError: where an argument is outside its limits.

    """

    __slots__ = ("_attempts_growing", "_ceiling_ns", "_factor", "_initial_ns", "_jitter", "_rng")

    def __init__(
        self,
        initial_ns: int,
        ceiling_ns: int,
        factor: float = 2.0,
        jitter: float = 0.0,
        rng: Random | None = None,
    ) -> None:
        at_least("initial_ns", initial_ns, 1)
        at_least("ceiling_ns", ceiling_ns, initial_ns)
        at_least("factor", factor, 1)
        at_least("jitter", jitter, 0)
        at_most("jitter", jitter, 1)
        if jitter > 0 and rng is None:
            raise ValueError(f"rng is needed where jitter is above 0, and jitter is {jitter!r}")
        self._initial_ns = initial_ns
        self._ceiling_ns = ceiling_ns
        self._factor = factor
        self._jitter = jitter
        self._rng = rng
        # From this attempt on the ceiling rules; it also keeps factor ** attempt from overflowing.
        growing = math.log(ceiling_ns / initial_ns) / math.log(factor) if factor > 1 else math.inf
        self._attempts_growing = growing

    def delay_ns(self, attempt: int) -> int:
        """Delay after attempt `attempt` (0-based), in ns; `ValueError` for a negative attempt."""
        at_least("attempt", attempt, 0)
        if attempt >= self._attempts_growing:
            delay = self._ceiling_ns
        else:
            delay = min(self._ceiling_ns, round(self._initial_ns * self._factor**attempt))
        if self._jitter and self._rng is not None:
            delay -= round(delay * self._jitter * self._rng.random())
        return delay
