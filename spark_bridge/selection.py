"""Which streams a query wants, and where it starts and ends in them. Pure."""

import re
from collections.abc import Callable, Iterable

import p2pmsg
from spark_bridge.options import EARLIEST, EVERYBODY, LATEST, SourceOptions, Wanted

Start = Callable[[str, str, p2pmsg.reader.Heads], int]
"""Where a stream starts, or ends: of endpoint, topic and heads."""


def known_topics(options: SourceOptions) -> tuple[str, ...] | None:
    """Return all topics that a query can be about; None where any may come."""
    if options.subscribePattern is not None:
        return None
    return options.subscribe if options.assign is None else tuple(options.assign)


def topics_of(options: SourceOptions, endpoint: str, heads: p2pmsg.reader.Heads) -> Iterable[str]:
    """Return the topics that are wanted of one publisher, those to come among them."""
    if options.subscribePattern is not None:
        return filter(re.compile(options.subscribePattern).fullmatch, heads.streams)
    if options.assign is None:
        return options.subscribe
    assigned = options.assign.items()
    return [topic for topic, who in assigned if named_by(who, endpoint, heads) is not None]


def positions_of(
    options: SourceOptions, endpoint: str, heads: p2pmsg.reader.Heads, start: Start
) -> dict[str, int]:
    """Return where each topic that is wanted of one publisher starts."""
    return {topic: start(endpoint, topic, heads) for topic in topics_of(options, endpoint, heads)}


def offset_for(wanted: Wanted, topic: str, endpoint: str, heads: p2pmsg.reader.Heads) -> int | None:
    """Return the offset that JSON offsets have for a stream; None where they have none."""
    offsets = wanted.get(topic)
    if offsets is None:
        return None
    who = named_by([*offsets], endpoint, heads)
    if who is not None:
        return offsets[who]
    return offsets.get(EVERYBODY)


def named_by(who: Iterable[str], endpoint: str, heads: p2pmsg.reader.Heads) -> str | None:
    """Return which of the names in `who` means a session; None where none does."""
    names = set(who)
    for name in (f"{heads.session:016x}", endpoint, heads.publisher):
        if name in names:
            return name
    return None


def start_of(options: SourceOptions, default: str, at_time: Callable[[int], Start]) -> Start:
    """Return where streams start by `startingTimestamp` or `startingOffsets`.

    Args:
        options: of the query.
        default: `latest` or `earliest`, where the options do not say, or do not name a stream.
        at_time: returns where streams stood at a time, in ns.

    """
    return _at(options.startingTimestamp, options.startingOffsets, default, at_time)


def end_of(options: SourceOptions, at_time: Callable[[int], Start]) -> Start:
    """Return where the streams of a batch end by `endingTimestamp` or `endingOffsets`."""
    return _at(options.endingTimestamp, options.endingOffsets, "latest", at_time)


def _at(
    time_ns: int | None, wanted: str | Wanted | None, default: str, at_time: Callable[[int], Start]
) -> Start:
    if time_ns is not None:
        return at_time(time_ns)

    def start(endpoint: str, topic: str, heads: p2pmsg.reader.Heads) -> int:
        offset = offset_for(wanted, topic, endpoint, heads) if isinstance(wanted, dict) else wanted
        stream = heads.streams.get(topic)
        offset = default if offset is None else offset
        if offset in (EARLIEST, "earliest"):
            return 0 if stream is None else stream.earliest
        if offset in (LATEST, "latest"):
            return 0 if stream is None else stream.next
        assert isinstance(offset, int)
        return offset

    return start
