"""When a stream's heartbeat is due: soon after the last data, then ever more rarely."""

from typing import Final

from recovery.checks import to_ns

INTERVAL_MIN_S: Final = 0.01
"""Wait after the last data. A lost tail is seen about as fast as a loss in the middle of a stream,
and a busy stream never sends a heartbeat. To more than 100 subscribers it is 0.1 ms for each."""
INTERVAL_MAX_S: Final = 1.0
"""Longest wait: an idle stream costs one small frame a second, and is noticed to have died within a
few. Longer where there are too many such streams for `PER_SECOND_MAX`."""
PER_SECOND_MAX: Final = 400.0
"""How many heartbeats a second idle streams have together, so that each of them waits longer where
they are more. 400 cost a percent of a core at either end; of 20,000 idle streams each has one in
50 s, 67 at most. Each wait is still at most about twice the one before: a tail of which everything
was lost for a while is known before that time has passed once again."""
_FACTOR: Final = 2
"""Growth of the wait, the usual doubling: eight heartbeats from first to rarest, so that the tail
survives many losses in a row."""


class HeartbeatSchedule:
    """When the next heartbeat of one stream is due.

    Args:
        now_ns: the time it begins at; the first heartbeat is due `interval_min` later. Default 0.
        interval_min, interval_max: the first wait and the longest, in seconds. Default 0.01 and 1.

    """

    __slots__ = ("_ceiling_ns", "_due_ns", "_initial_ns", "_wait_ns")

    def __init__(
        self,
        *,
        now_ns: int = 0,
        interval_min: float = INTERVAL_MIN_S,
        interval_max: float = INTERVAL_MAX_S,
    ) -> None:
        self._initial_ns = to_ns(interval_min)
        self._ceiling_ns = to_ns(interval_max)
        self._wait_ns = self._initial_ns
        self._due_ns = now_ns + self._initial_ns

    def data_sent(self, *, now_ns: int, least_ns: int = 0) -> None:
        """Note that data went out: the next heartbeat is due `interval_min` from now.

        Or `least_ns` where that is more, up to `interval_max`.
        """
        wait_ns = self._initial_ns
        if least_ns > wait_ns:
            wait_ns = min(least_ns, self._ceiling_ns)
        self._wait_ns = wait_ns
        self._due_ns = now_ns + wait_ns

    def due(self, *, now_ns: int) -> bool:
        """Return whether a heartbeat is due."""
        return now_ns >= self._due_ns

    def sent(self, *, now_ns: int, ceiling_ns: int = 0, early: float = 0.0) -> None:
        """Note that a heartbeat went out: the next wait is longer, up to the ceiling.

        That is `interval_max`, or `ceiling_ns` where it is more. A wait above `interval_max` is
        shortened by a part of it, `early`, 0 to 1: streams whose data came at the same time need
        not all have their heartbeats at the same time, and nothing in between. Such a one is due at
        the next quarter of `interval_max` before its time, with others: waking up for each one
        takes ten times as long as sending it.
        """
        longest_ns = max(self._ceiling_ns, ceiling_ns)
        wait_ns = round(min(longest_ns, self._wait_ns * _FACTOR))
        self._wait_ns = max(min(wait_ns, self._ceiling_ns), round(wait_ns * (1 - early)))
        self._due_ns = now_ns + self._wait_ns
        if self._wait_ns > self._ceiling_ns:
            self._due_ns -= self._due_ns % max(1, self._ceiling_ns // 4)

    @property
    def is_slow(self) -> bool:
        """Whether the wait is `interval_max` or longer: there was no data for some time."""
        return self._wait_ns >= self._ceiling_ns

    def next_deadline_ns(self) -> int:
        """Return when the next heartbeat is due."""
        return self._due_ns
