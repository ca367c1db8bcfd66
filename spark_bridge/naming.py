"""Whether what the options name is there: publishers, topics, and offsets up to the heads. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

import p2pmsg
from spark_bridge.errors import OptionError
from spark_bridge.options import EVERYBODY, SourceOptions
from spark_bridge.selection import Selection, named_by, place

_LISTED_MAX: Final = 8

Found = Sequence[tuple[str, p2pmsg.Heads]]
"""What there is: each session once, with the endpoint where it is read."""


def nobody(options: SourceOptions, found: Found, empty: Iterable[str] = ()) -> OptionError | None:
    """Return an error for the first publisher that is named, and that nobody is.

    Args:
        options: of the query.
        found: what there is.
        empty: endpoints that have answered and have no session yet (relays).

    """
    empty = set(empty)
    for option, topic, who in _named(options):
        if who not in empty and not any(
            named_by((who,), endpoint, heads) and _is_assigned(options, topic, endpoint, heads)
            for endpoint, heads in found
        ):
            there = listed(_who(endpoint, heads) for endpoint, heads in found)
            return OptionError(
                option,
                f"names {who!r} for topic {topic!r}, and nobody of whom it is read has such a "
                f"name, endpoint or session; there are {there}",
            )
    return None


def beyond(option: str, options: SourceOptions, found: Found) -> OptionError | None:
    """Return an error for the first offset that is beyond the head of its stream.

    Args:
        option: `startingOffsets` or `endingOffsets`.
        options: of the query.
        found: what there is.

    """
    wanted, time_ns = options.startingOffsets, options.startingTimestamp
    if option == "endingOffsets":
        wanted, time_ns = options.endingOffsets, options.endingTimestamp
    if not isinstance(wanted, dict) or time_ns is not None:  # a time goes before
        return None
    for endpoint, heads in found:
        for topic in Selection.of(options).topics_of(endpoint, heads):
            offset, stream = place(wanted, topic, endpoint, heads), heads.streams.get(topic)
            head = 0 if stream is None else stream.next
            if offset is not None and offset > head:
                return OptionError(
                    option,
                    f"has {offset} for topic {topic!r} of {_who(endpoint, heads)}, whose head is "
                    f"{head}: the offset that its next message will have",
                )
    return None


def backwards(options: SourceOptions, found: Found) -> OptionError | None:
    """Return an error for the first stream that `endingOffsets` ends before it starts."""
    first, last = options.startingOffsets, options.endingOffsets
    times = (options.startingTimestamp, options.endingTimestamp)
    if not (isinstance(first, dict) and isinstance(last, dict)) or times != (None, None):
        return None
    for endpoint, heads in found:
        for topic in Selection.of(options).topics_of(endpoint, heads):
            start, stop = (place(each, topic, endpoint, heads) for each in (first, last))
            if start is not None and stop is not None and 0 <= stop < start:
                return OptionError(
                    "endingOffsets",
                    f"has {stop} for topic {topic!r} of {_who(endpoint, heads)}, before its start: "
                    f"startingOffsets has {start}",
                )
    return None


def nothing_then(options: SourceOptions, found: Found) -> str | None:
    """Return what is to be said of a batch that reads nothing since its times leave nothing."""
    times = {
        name: getattr(options, name)
        for name in ("startingTimestamp", "endingTimestamp")
        if getattr(options, name) is not None
    }
    if not times or not found:
        return None
    said = " and ".join(
        f"{name} {datetime.fromtimestamp(time_ns // 10**9, UTC):%Y-%m-%dT%H:%M:%SZ}"
        for name, time_ns in times.items()
    )
    return f"nothing is read: no peer has a message within {said}"


def missing_topics(selection: Selection, found: Found) -> str | None:
    """Return what is to be said of topics that nobody has; None where there are none."""
    streams: dict[str, None] = {}
    for endpoint, heads in found:
        wanted = set(selection.topics_of(endpoint, heads))
        streams |= dict.fromkeys(topic for topic in heads.streams if topic in wanted)
    others = {topic: None for _, heads in found for topic in heads.streams if topic not in streams}
    there = f"; there are {listed(map(repr, others))}" if others else ""
    if selection.pattern is not None:
        if streams:
            return None
        return f"nobody has a topic that matches {selection.pattern.pattern!r}{there}"
    missing = [topic for topic in selection.known_topics or () if topic not in streams]
    if not missing:
        return None
    return f"nobody has the topic {listed(map(repr, missing))}{there}"


def listed(items: Iterable[str]) -> str:
    """Return the first of some items as a text, and how many more there are."""
    known = list(items)
    text = ", ".join(known[:_LISTED_MAX]) or "none"
    more = len(known) - _LISTED_MAX
    return f"{text} and {more} more" if more > 0 else text


def _named(options: SourceOptions) -> Iterator[tuple[str, str, str]]:
    """Yield each option, topic and publisher where a publisher is named."""
    for topic, names in (options.assign or {}).items():
        for who in names:
            yield "assign", topic, who
    for option, wanted in (
        ("startingOffsets", options.startingOffsets),
        ("endingOffsets", options.endingOffsets),
    ):
        if isinstance(wanted, dict):
            for topic, places in wanted.items():
                for who in places:
                    if who != EVERYBODY:
                        yield option, topic, who


def _is_assigned(options: SourceOptions, topic: str, endpoint: str, heads: p2pmsg.Heads) -> bool:
    assign = options.assign
    return assign is None or named_by(assign.get(topic, ()), endpoint, heads) is not None


def _who(endpoint: str, heads: p2pmsg.Heads) -> str:
    name = f"{heads.publisher!r} at " if heads.publisher else ""
    return f"{name}{endpoint} (session {heads.session:016x})"
