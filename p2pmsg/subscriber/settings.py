"""The identity of a subscriber, and what it subscribes to."""

from dataclasses import dataclass

from p2pmsg.config import SubscriberConfig
from p2pmsg.start import Start
from p2pmsg.subscriber.resume import Resume


@dataclass(frozen=True, slots=True)
class Settings:
    """What does not change while a subscriber lives."""

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
        """What it subscribes to, as publishers are asked for it."""
        return self.topics or ["*"]
