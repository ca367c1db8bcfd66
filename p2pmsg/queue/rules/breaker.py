"""Stops the flood when everything fails, and tries again with one job at a time."""

import enum

from recovery._checks import ms_to_ns


class BreakerState(enum.Enum):
    """Whether jobs flow."""

    CLOSED = "closed"
    """They do."""

    OPEN = "open"
    """None does, until the pause is over."""

    HALF_OPEN = "half-open"
    """One is being tried."""


class Breaker:
    """Counts failures in a row.

    ::

        failures_max in a row          pause over, one job out
        CLOSED ───────────▶ OPEN ─────────────────────▶ HALF_OPEN
           ▲                  ▲   failed: pause doubles     │  │
           │                  └─────────────────────────────┘  │
           └───────────────────────── succeeded ───────────────┘

    Args:
        failures_max: how many open it.
        pause_ms: the first pause.
        pause_ceiling_ms: the longest.

    Attributes:
        state: a `BreakerState`.
        failures: how many in a row there were.
        trips: how often it opened from `CLOSED`.

    """

    __slots__ = ("_ceiling_ns", "_failures_max", "_first_ns", "_pause_ns", "_until_ns", "failures",
                 "state", "trips")  # fmt: skip

    def __init__(self, failures_max: int, pause_ms: float, pause_ceiling_ms: float) -> None:
        self._failures_max = failures_max
        self._first_ns = self._pause_ns = ms_to_ns(pause_ms)
        self._ceiling_ns = ms_to_ns(pause_ceiling_ms)
        self._until_ns = 0
        self.state = BreakerState.CLOSED
        self.failures = 0
        self.trips = 0

    def succeeded(self) -> None:
        """Note that a job was done: everything flows."""
        self.failures = 0
        self.state = BreakerState.CLOSED
        self._pause_ns = self._first_ns

    def failed(self, *, now_ns: int, may_open: bool = True) -> None:
        """Note that a job was not done. Those that were out when it opened change nothing."""
        self.failures += 1
        if self.state is BreakerState.HALF_OPEN:
            self._pause_ns = min(2 * self._pause_ns, self._ceiling_ns)
            self._open(now_ns)
        elif self.state is BreakerState.CLOSED and self.failures >= self._failures_max and may_open:
            self.trips += 1
            self._open(now_ns)

    def allows(self, *, now_ns: int) -> bool:
        """Whether a job may be handed out."""
        if self.state is BreakerState.CLOSED:
            return True
        return self.state is BreakerState.OPEN and now_ns >= self._until_ns

    def tried(self) -> None:
        """Note that one was handed out although it is open."""
        self.state = BreakerState.HALF_OPEN

    def untried(self) -> None:
        """Note that the one that was tried came back undone: another may be tried."""
        if self.state is BreakerState.HALF_OPEN:
            self.state = BreakerState.OPEN

    def next_deadline_ns(self) -> int | None:
        """Return when a job may be tried."""
        return self._until_ns if self.state is BreakerState.OPEN else None

    def _open(self, now_ns: int) -> None:
        self.state = BreakerState.OPEN
        self._until_ns = now_ns + self._pause_ns
