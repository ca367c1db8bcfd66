"""The positions of a connection as the id of an event, and read from `Last-Event-ID`.

An id is a list of `SESSION:SEQUENCE:TOPIC`, the last message of each stream, separated by commas;
`SESSION:SEQUENCE` where the request names one topic. The first entry is the event's own. The
sequence is -1 where there was none yet. A session has 16 hexadecimal digits, and a topic is
percent-encoded. Where there is no stream yet, the whole id is `-`, with 16 digits that name the
gateway, as of its start, where the connection began at that gateway.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from urllib.parse import quote, unquote

from p2pmsg.errors import MessageError
from p2pmsg.toolkit import check_topic, matches

Key = tuple[int, str]
"""A stream: session and topic."""

NO_STREAMS: Final = "-"
ID_BYTES_MAX: Final = 4096
"""Proxies often take 8 KiB of headers."""
READ_BYTES_MAX: Final = 6144
"""An id that is read may be longer: one that is written while a connection resumes names all."""
_NO_STREAMS: Final = re.compile(f"{NO_STREAMS}(?:[0-9a-f]{{16}})?")
_ENTRY: Final = re.compile(r"([0-9a-f]{16}):(-1|[0-9]{1,19})(?::([!-+\--~]+))?")


def single_topic(topics: Sequence[str]) -> str | None:
    """Return the topic, where only one is named, and not a prefix: then ids go without it."""
    return topics[0] if len(topics) == 1 and not topics[0].endswith("*") else None


def entry(key: Key, last: int, *, with_topic: bool) -> str:
    """Return one stream's entry: `last` is the sequence of its last message."""
    session, topic = key
    place = f"{session:016x}:{last}"
    return f"{place}:{quote(topic, safe='')}" if with_topic else place


def around(key: Key, others: Iterable[str], *, with_topic: bool) -> tuple[str, str]:
    """Return what stands around the sequence in the ids of a stream's events.

    Args:
        key: the stream.
        others: the entries of the connection's other streams.
        with_topic: see `entry`.

    """
    session = f"{key[0]:016x}:"
    topic = entry(key, 0, with_topic=with_topic)[len(session) + 1 :]
    return session, ",".join([topic, *others])


def write_positions(following: Mapping[Key, int], topics: Sequence[str]) -> str:
    """Return an id; `following` has the next sequence of each stream."""
    with_topic = single_topic(topics) is None
    parts = [entry(key, at - 1, with_topic=with_topic) for key, at in following.items()]
    return ",".join(parts) or NO_STREAMS


def read_positions(text: str, topics: Sequence[str]) -> dict[Key, int]:
    """Return the next sequence of each stream that an id names; ValueError where it is none."""
    if _NO_STREAMS.fullmatch(text):
        return {}
    if len(text) > READ_BYTES_MAX:
        raise ValueError(f"takes {len(text)} bytes, and the limit is {READ_BYTES_MAX}")
    only = single_topic(topics)
    found: dict[Key, int] = {}
    for part in text.split(","):
        match = _ENTRY.fullmatch(part)
        topic = None if match is None else _topic(match[3], only)
        if match is None or topic is None or not matches(topic, list(topics)):
            raise ValueError(f"{part[:80]!r} is no place in a stream of {', '.join(topics)}")
        following = int(match[2]) + 1
        if following >= 2**63:
            raise ValueError(f"the sequence {match[2]} is above {2**63 - 2}")
        found[int(match[1], 16), topic] = following
    return found


def _topic(written: str | None, only: str | None) -> str | None:
    if written is None:
        return only
    try:
        topic = unquote(written, errors="strict")
        check_topic(topic)
    except (MessageError, UnicodeDecodeError):
        return None
    return topic
