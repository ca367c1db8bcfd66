"""What the delivery to one endpoint goes by."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from p2pmsg.checks import check, check_fields

Order = Literal["stream", "key", "none"]
ORDERS: Final = ("stream", "key", "none")
STANDARD_DELAYS: Final = (
    0.0, 5.0, 300.0, 1_800.0, 7_200.0, 18_000.0, 36_000.0, 50_400.0, 72_000.0, 86_400.0,
)  # fmt: skip
"""Standard Webhooks' schedule: at once, after 5 s, 5 min, 30 min, 2, 5, 10, 14, 20 and 24 h."""
_DELAYS_MAX: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryRules:
    """The rules of one delivery; times in seconds.

    Attributes:
        order: what waits for the message before it: those of its stream, of its key, or none.
        concurrency: requests under way at once.
        batch_max: messages of one request.
        rate: requests a second at most; None: not limited.
        retry: how long to wait before each attempt.
        window: messages in memory that are not delivered; the publisher's log has the others.
        parked_max: messages that failed and wait on this machine's disk, so that others go on.

    """

    order: Order = "stream"
    concurrency: int = 1
    batch_max: int = 1
    rate: float | None = None
    retry: Sequence[float] = STANDARD_DELAYS
    window: int = 1000
    parked_max: int = 10_000

    def __post_init__(self) -> None:
        check_fields(self, concurrency=1, rate=0.001)
        ok = 1 <= len(self.retry) <= _DELAYS_MAX
        check("retry", self.retry, ok, f"1 to {_DELAYS_MAX} times in seconds")
