"""How often and how fast an endpoint is asked, and how much may wait for it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from p2pmsg.checks import at_least, check, check_fields

Order = Literal["stream", "key", "none"]
ORDERS: Final = ("stream", "key", "none")
STANDARD_DELAYS: Final = (
    0.0, 5.0, 300.0, 1_800.0, 7_200.0, 18_000.0, 36_000.0, 50_400.0, 72_000.0, 86_400.0,
)  # fmt: skip
"""Standard Webhooks' schedule: at once, after 5 s, 5 min, 30 min, 2, 5, 10, 14, 20 and 24 h."""
_DELAYS_MAX: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """When a message is tried again. `ConfigError` for a value out of its limits."""

    delays: Sequence[float] = STANDARD_DELAYS
    """How long to wait before each attempt, in seconds since the one before; the first is of no
    use and 0. After the last one fails the message becomes a dead letter. Default: Standard
    Webhooks' schedule, 10 attempts in 75 hours."""

    jitter: float = 0.1
    """How much longer or shorter a wait may be, as a share of it, so that senders that failed
    together do not come back together. Default 0.1: from 0.9 to 1.1 times."""

    retry_after_max: float = 86_400.0
    """How long a `Retry-After` may hold the endpoint, in seconds. Default 24 h."""

    def __post_init__(self) -> None:
        check_fields(self, jitter=(0, 1))
        object.__setattr__(self, "delays", tuple(self.delays))
        ok = 1 <= len(self.delays) <= _DELAYS_MAX
        check("delays", self.delays, ok, f"1 to {_DELAYS_MAX} times in seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerConfig:
    """When an endpoint counts as down, and how it is probed. `ConfigError` for a bad value."""

    failures: int = 5
    """After how many failures in a row only probes are sent. A message that the receiver refuses
    counts once. With `order="stream"`, where a retry is a probe, 2 are enough. Default 5."""

    cooldown: float = 5.0
    """How long until the first probe, in seconds; it doubles each time. Default 5."""

    cooldown_max: float = 300.0
    """The longest time between two probes, in seconds. Default 300: an endpoint that comes back is
    found within five minutes."""

    def __post_init__(self) -> None:
        check_fields(self, failures=1, cooldown=0.001)
        at_least("cooldown_max", self.cooldown_max, self.cooldown)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryRules:
    """All that the delivery to one endpoint goes by; times in seconds."""

    order: Order = "stream"
    concurrency: int = 1
    """Requests under way at once."""
    batch_max: int = 1
    """Messages of one request."""
    window: int = 1000
    """Messages in memory that are not delivered; the rest waits in the publisher's log."""
    window_bytes: int = 64 * 2**20
    parked_max: int = 10_000
    """Messages that failed and wait on this machine's disk, so that others go on."""
    parked_bytes: int = 64 * 2**20
    rate: float | None = None
    """Requests a second at most."""
    retry: Retry = Retry()
    breaker: BreakerConfig = BreakerConfig()

    def __post_init__(self) -> None:
        check_fields(self, concurrency=1, batch_max=1, window=1, window_bytes=1, rate=0.001)
