"""Where a connection is, and what it must get before it joins the others. No clock, no socket.

The id of an event says where its connection is. It is a list of `SESSION:SEQUENCE:TOPIC`, the last
message of each stream, separated by commas; `SESSION:SEQUENCE` where the request names one topic.
The first entry is the event's own. The sequence is -1 where there was none yet. A session has 16
hexadecimal digits, and a topic is percent-encoded. Where there is no stream yet, the whole id is
`-`, with 16 digits that name the gateway, as of its start, where the connection began at that
gateway.

A position in `Last-Event-ID` may be after the place that this gateway has read up to: the
connection comes from another gateway, or this one is slow. It waits, and what does not come in time
is taken for a publisher that has gone back.

::

    position < at     read ─▶ from what publishers keep
    position > at     ahead ─▶ it waits until `at` is there ─▶ too late: rewound
    no `at`           unknown ─▶ it waits until the stream is there ─▶ too late: given up
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
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


READ_MAX: Final = 4096
"""Messages of one step: others run in between, and what is read is bounded."""


@dataclass(slots=True)
class Step:
    """What is to be done next.

    Attributes:
        rewound: streams whose publisher is at an earlier place than the connection: the new place
            and the connection's.
        read: the range that is to be read of one stream, from what publishers keep.
        ahead: streams that this gateway has read less of than the connection, and how far.
        unknown: streams that the connection names and nobody has; only where nothing is to be read.

    """

    rewound: dict[Key, tuple[int, int]] = field(default_factory=dict)
    read: tuple[Key, int, int] | None = None
    ahead: dict[Key, int] = field(default_factory=dict)
    unknown: list[Key] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Whether the connection has all that this gateway has, and may join."""
        return not (self.rewound or self.read or self.ahead or self.unknown)


class Resume:
    """The positions of a connection until it joins.

    Args:
        positions: the next sequence of each stream that its id names.
        begun: where it begins in streams that its id does not name. Default: at 0, as they began
            while it was away.

    Attributes:
        positions: the same, as it advances.

    """

    def __init__(
        self, positions: Mapping[Key, int], begun: Mapping[Key, int] = MappingProxyType({})
    ) -> None:
        self.positions = dict(positions)
        self._begun = begun
        self._ahead_of: dict[Key, int] = {}

    def step(
        self, missed: Mapping[Key, int], went_back: Mapping[Key, int], *, is_late: bool = False
    ) -> Step:
        """Return what to do next; the position in a stream that went back is moved at once.

        Args:
            missed: the next sequence of each stream that it is to have; see `Fanout.missed`.
            went_back: where publishers have gone back to since the last step.
            is_late: whether what this gateway has read less of was waited for long enough. Such a
                stream goes on from where it was first found: what has come since then is new.

        """
        found = Step()
        for key, at in missed.items():
            if key not in self.positions and key in self._begun:  # at once, so that ids name it
                self.positions[key] = min(at, self._begun[key])
            position = self.positions.get(key, 0)
            back = min(at, went_back[key]) if key in went_back else position
            if is_late and position > at:
                back = min(back, self._ahead_of.get(key, at))
            if position > back and key in self.positions:
                found.rewound[key] = back, position
                self.positions[key] = position = back
            if position > at:
                found.ahead[key] = at
                self._ahead_of[key] = min(at, self._ahead_of.get(key, at))
                continue
            self._ahead_of.pop(key, None)
            if position < at and found.read is None:
                found.read = key, position, min(at, position + READ_MAX)
            elif key not in self.positions and not at:
                self.positions[key] = 0
        if found.read is None:
            found.unknown = [key for key in self.positions if key not in missed]
        return found

    def advance(self, key: Key, following: int) -> None:
        """Note that all before `following` was delivered or reported lost."""
        self.positions.pop(key, None)
        self.positions[key] = following

    def forget(self, key: Key) -> None:
        """Leave out a stream that nobody has."""
        del self.positions[key]
