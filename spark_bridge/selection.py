"""Which streams a query wants, and where it starts and ends in them. Pure."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import p2pmsg
from spark_bridge.options import EARLIEST, EVERYBODY, LATEST, SourceOptions, Wanted

Start = Callable[[str, str, p2pmsg.reader.Heads], int]
"""Where a stream starts, or ends: of endpoint, topic and heads."""


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

    def asked(self) -> tuple[str, ...]:
        """Return what to ask the peers for where they may deny something.

        The topics, or of a pattern the prefix that all its topics have: `quotes*`.
        """
        if self.pattern is None:
            return self.known_topics or ()
        return (f"{literal_prefix(self.pattern.pattern)}*",)

    def topics_of(self, endpoint: str, heads: p2pmsg.reader.Heads) -> Iterable[str]:
        """Return the topics that are wanted of one publisher, those to come among them."""
        if self.pattern is not None:
            return [topic for topic in heads.streams if self.pattern.fullmatch(topic)]
        if self.assign is None:
            return self.topics
        assigned = self.assign.items()
        return [topic for topic, who in assigned if named_by(who, endpoint, heads) is not None]

    def positions(self, endpoint: str, heads: p2pmsg.reader.Heads, start: Start) -> dict[str, int]:
        """Return where each topic that is wanted of one publisher starts."""
        return {topic: start(endpoint, topic, heads) for topic in self.topics_of(endpoint, heads)}


def literal_prefix(pattern: str) -> str:
    """Return with what all texts begin that a regular expression matches, as far as it is plain."""
    if "|" in pattern:
        return ""
    plain = re.match(r"(?:[\w/:,=@%&~!<>;\-\" ']|\\[.\-/])*", pattern, re.ASCII)
    assert plain is not None
    found, rest = plain[0], pattern[plain.end() :]
    if rest[:1] in ("*", "?", "{"):  # the last one may be missing
        found = re.sub(r"\\?.$", "", found)
    return found.replace("\\", "")


def offset_for(wanted: Wanted, topic: str, endpoint: str, heads: p2pmsg.reader.Heads) -> int | None:
    """Return the offset that JSON offsets have for a stream; None where they have none."""
    offsets = wanted.get(topic)
    if offsets is None:
        return None
    who = named_by([*offsets], endpoint, heads)
    if who is not None:
        return offsets[who]
    return offsets.get(EVERYBODY)


def resolve(offset: int | str, stream: p2pmsg.reader.StreamHead | None) -> int:
    """Return the sequence for an offset: itself, -2 or `earliest`, -1 or `latest`."""
    if offset in (EARLIEST, "earliest"):
        return 0 if stream is None else stream.earliest
    if offset in (LATEST, "latest"):
        return 0 if stream is None else stream.next
    assert isinstance(offset, int)
    return offset


def named_by(who: Iterable[str], endpoint: str, heads: p2pmsg.reader.Heads) -> str | None:
    """Return which of the names in `who` means a session; None where none does."""
    names = set(who)
    for name in (f"{heads.session:016x}", endpoint, heads.publisher):
        if name in names:
            return name
    return None


def at_offsets(wanted: str | Wanted | None, default: str) -> Start:
    """Return where streams start or end by offsets; by `default` where there are none."""

    def start(endpoint: str, topic: str, heads: p2pmsg.reader.Heads) -> int:
        found = offset_for(wanted, topic, endpoint, heads) if isinstance(wanted, dict) else wanted
        return resolve(default if found is None else found, heads.streams.get(topic))

    return start
