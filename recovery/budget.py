"""A token bucket in whole numbers."""

from recovery.checks import NS_PER_S


class TokenBucket:
    """So many tokens (bytes, here) a second, and so many at once after a pause.

    It starts full. Whole numbers of token-nanoseconds, so nothing drifts however long it runs.

    Args:
        rate_per_s: tokens gained a second; at least 1.
        burst: most tokens held; at least 1.

    """

    __slots__ = ("_burst", "_level", "_rate", "_updated_ns")

    def __init__(self, rate_per_s: int, burst: int) -> None:
        self._rate = rate_per_s
        self._burst = burst * NS_PER_S
        self._level = self._burst
        self._updated_ns = -(2**63)

    def available(self, now_ns: int) -> int:
        """Return the tokens held, rounded down; negative while a debt is paid back."""
        elapsed_ns = now_ns - self._updated_ns
        if elapsed_ns > 0:
            self._updated_ns = now_ns
            level = self._level + elapsed_ns * self._rate
            self._level = level if level < self._burst else self._burst
        return self._level // NS_PER_S

    def is_spent(self, now_ns: int) -> bool:
        """Whether no token is held."""
        return self._level < NS_PER_S and self.available(now_ns) < 1

    def take(self, amount: int, now_ns: int) -> None:
        """Take tokens, into debt if need be: a frame cannot be cut to what is left.

        One that takes only while `available` is above 0 is never in debt by more than one frame.
        """
        self.available(now_ns)
        self._level -= amount * NS_PER_S

    def try_take(self, amount: int, now_ns: int) -> bool:
        """Take tokens if one at least is available; it is `available` and `take` in one."""
        if self.available(now_ns) < 1:
            return False
        self._level -= amount * NS_PER_S
        return True

    def ready_at_ns(self, now_ns: int) -> int:
        """Return when at least one token is available; `now_ns` if one is."""
        self.available(now_ns)
        short = NS_PER_S - self._level
        return now_ns if short <= 0 else now_ns - (-short // self._rate)
