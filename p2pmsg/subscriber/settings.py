"""Who a subscriber is, and what it wants."""

from dataclasses import dataclass

from p2pmsg.config import SubscriberConfig
from p2pmsg.start import Start
from p2pmsg.subscriber.resume import Resume


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What does not change in the life of a subscriber."""

    subscriber: int
    """The id by which publishers count it."""
    name: str
    topics: list[str]
    """What it subscribes to; empty: everything."""
    start: Start
    config: SubscriberConfig
    cursor: Resume | None = None
    """Where streams resume; None: nowhere."""

    @property
    def patterns(self) -> list[str]:
        """What it subscribes to, as publishers are told."""
        return self.topics or ["*"]
