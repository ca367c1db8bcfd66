"""When a stream's heartbeat is due: soon after the last data, then ever more rarely."""

from dataclasses import dataclass

from recovery._checks import at_least, ms_to_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatConfig:
    """How often heartbeats go out. Raises `ValueError` for a value out of limits."""

    initial_ms: float = 10.0
    """Wait after the last data, in ms. 10 ms: a lost tail is seen about as fast as a loss in the
    middle of a stream, and a busy stream never sends one."""

    ceiling_ms: float = 1000.0
    """Longest wait, in ms. 1 s: an idle stream costs one small frame a second, and is noticed to
    have died within a few."""

    factor: float = 2.0
    """Growth of the wait from one heartbeat to the next, at least 1. 2, the usual doubling: eight
    heartbeats from first to rarest, so that the tail survives many losses in a row."""

    def __post_init__(self) -> None:
        at_least("initial_ms", self.initial_ms, 0.001)
        at_least("ceiling_ms", self.ceiling_ms, self.initial_ms)
        at_least("factor", self.factor, 1)


class HeartbeatSchedule:
    """When the next heartbeat of one stream is due.

    Args:
        config: waits.
        now_ns: the time it begins at; the first heartbeat is due `initial_ms` later. Default 0.

    """

    __slots__ = ("_ceiling_ns", "_due_ns", "_factor", "_initial_ns", "_wait_ns")

    def __init__(self, config: HeartbeatConfig, *, now_ns: int = 0) -> None:
        self._initial_ns = ms_to_ns(config.initial_ms)
        self._ceiling_ns = ms_to_ns(config.ceiling_ms)
        self._factor = config.factor
        self._wait_ns = self._initial_ns
        self._due_ns = now_ns + self._initial_ns

    def data_sent(self, *, now_ns: int) -> None:
        """Note that data went out: the next heartbeat is due `initial_ms` from now."""
        self._wait_ns = self._initial_ns
        self._due_ns = now_ns + self._initial_ns

    def due(self, *, now_ns: int) -> bool:
        """Return whether a heartbeat is due."""
        return now_ns >= self._due_ns

    def sent(self, *, now_ns: int) -> None:
        """Note that a heartbeat went out: the next wait is longer, up to the ceiling."""
        self._wait_ns = min(self._ceiling_ns, round(self._wait_ns * self._factor))
        self._due_ns = now_ns + self._wait_ns

    def next_deadline_ns(self) -> int:
        """Return when the next heartbeat is due."""
        return self._due_ns
