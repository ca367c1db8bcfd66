"""How a receiver asks for what is missing."""

from dataclasses import dataclass

from recovery._checks import above, at_least, at_most


@dataclass(frozen=True, slots=True, kw_only=True)
class NackConfig:
    """How a receiver asks for what is missing. Raises `ValueError` for a value out of limits."""

    delay_ms: float = 0.0
    """Wait before the first NACK, in ms. 0, because TCP does not reorder: a gap is a loss."""

    retry_ms: float = 20.0
    """Wait before the second NACK, in ms; it doubles with each one. 20 ms is twice the time for
    which a publisher ignores repeated NACKs, so that a retry is never ignored."""

    retry_ceiling_ms: float = 1000.0
    """Longest wait between two NACKs of a gap, in ms. 1 s, the same as the rarest heartbeat: a
    publisher that comes back is asked within a second."""

    jitter: float = 0.1
    """Largest part that is randomly taken off a wait, 0 to 1. A tenth is enough that receivers
    which lost the same frame do not ask in step for long."""

    attempts_max: int = 30
    """NACKs for a gap without any progress before it is given up. 30 take some 25 s with the
    other defaults, so that the deadline rules; it matters where the ceiling is low."""

    deadline_ms: float = 10_000.0
    """Time without any progress after which a gap is given up, in ms. 10 s outlast a restart of
    the publisher and a TCP reconnection."""

    gaps_max: int = 4096
    """Bound on the number of gaps (not of messages) of a stream; what would pass it is not
    recorded. 4096 gaps cost about 2 MiB, and are more than any repairable stream has."""

    def __post_init__(self) -> None:
        at_least("delay_ms", self.delay_ms, 0)
        at_least("retry_ms", self.retry_ms, 0.001)
        at_least("retry_ceiling_ms", self.retry_ceiling_ms, self.retry_ms)
        at_least("jitter", self.jitter, 0)
        at_most("jitter", self.jitter, 1)
        at_least("attempts_max", self.attempts_max, 1)
        above("deadline_ms", self.deadline_ms, 0)
        at_least("gaps_max", self.gaps_max, 1)
