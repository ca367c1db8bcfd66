"""Which streams a query wants, and where it wants to begin. Pure."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import p2pmsg
from spark_bridge.options import EARLIEST, EVERYBODY, LATEST, SourceOptions, Wanted


@dataclass(frozen=True, slots=True)
class Selection:
    """The streams that are subscribed to: by topic, by pattern, or by topic and publisher."""

    topics: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    assign: Mapping[str, tuple[str, ...]] | None = None

    @classmethod
    def of(cls, options: SourceOptions) -> "Selection":
        """Return what the options say."""
        pattern = options.subscribePattern
        return cls(
            options.subscribe, None if pattern is None else re.compile(pattern), options.assign
        )

    @property
    def known_topics(self) -> tuple[str, ...] | None:
        """All topics that it can be about; None where any may come."""
        if self.pattern is not None:
            return None
        return self.topics if self.assign is None else tuple(self.assign)

    def topics_of(self, endpoint: str, heads: p2pmsg.Heads) -> Iterable[str]:
        """Return the topics that are wanted of one publisher, those to come among them."""
        if self.pattern is not None:
            return [topic for topic in heads.streams if self.pattern.fullmatch(topic)]
        if self.assign is None:
            return self.topics
        assigned = self.assign.items()
        return [topic for topic, who in assigned if named_by(who, endpoint, heads) is not None]


def place(wanted: Wanted, topic: str, endpoint: str, heads: p2pmsg.Heads) -> int | None:
    """Return the offset that JSON offsets have for a stream; None where they have none."""
    places = wanted.get(topic)
    if places is None:
        return None
    who = named_by([*places], endpoint, heads)
    if who is not None:
        return places[who]
    return places.get(EVERYBODY)


def resolve(place: int | str, stream: p2pmsg.StreamHead | None) -> int:
    """Return the sequence for an offset: itself, -2 or `earliest`, -1 or `latest`."""
    if place in (EARLIEST, "earliest"):
        return 0 if stream is None else stream.earliest
    if place in (LATEST, "latest"):
        return 0 if stream is None else stream.next
    assert isinstance(place, int)
    return place


def named_by(who: Iterable[str], endpoint: str, heads: p2pmsg.Heads) -> str | None:
    """Return which of the names in `who` means a session; None where none does."""
    names = set(who)
    for name in (f"{heads.session:016x}", endpoint, heads.publisher):
        if name in names:
            return name
    return None
