"""Which topics a subscriber asked for although nobody that it has joined has them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from p2pmsg.subscriber.relays import RelayConnection
from p2pmsg.subscriber.sessions import Session

WAIT_NS: Final = 5_000_000_000
"""How long after joining it is said: a publisher and its first message may start one by one."""
LOOK_NS: Final = 1_000_000_000
_NEVER_NS: Final = 2**63
_TOPICS_MAX: Final = 8
"""Topics that are named one by one; the others are counted."""
_PUBLISHERS_MAX: Final = 4
_COMPARED_MAX: Final = 1000
"""How many known topics are compared with a missing one: 1,000 take about 10 ms."""


def known_topics(peers: Mapping[int, Session]) -> set[str]:
    """Return the topics that have streams."""
    return {topic for peer in peers.values() for topic in peer.streams}


def asked_peers(
    peers: Mapping[int, Session], relays: Mapping[int, RelayConnection], places: Sequence[str]
) -> list[str]:
    """Return who answered what streams there are, for people.

    Args:
        peers: the sessions.
        relays: the relays that are connected, by their ids.
        places: the endpoint of each line.

    """
    found: list[str] = []
    for peer in peers.values():
        if peer.joined and peer.direct and peer.own.line >= 0:
            place = places[peer.own.line]
            named = repr(place) if peer.name == place else f"{peer.name!r} at {place}"
            found.append(named)
    for relay in relays.values():
        limits = several([*map(repr, relay.carries)], _TOPICS_MAX)
        only = f", which carries only {limits}" if relay.carries else ""
        if relay.complete:
            found += [f"the relay at {places[line]}{only}" for line in relay.lines]
    return found


class MissingTopics:
    """Decides what to say of each exact topic, once; never of prefixes.

    Attributes:
        next_ns: when `look` has something to do.

    """

    def __init__(self, topics: Iterable[str]) -> None:
        self._missing = [topic for topic in dict.fromkeys(topics) if not topic.endswith("*")]
        self._joined_ns: int | None = None
        self.next_ns = 0 if self._missing else _NEVER_NS

    def check(self, known: set[str], asked: Sequence[str], now_ns: int) -> list[str]:
        """Return what to say now.

        Args:
            known: the topics of which there are streams.
            asked: who has been asked.
            now_ns: monotonic time.

        """
        self._missing = [topic for topic in self._missing if topic not in known]
        self.next_ns = now_ns + LOOK_NS if self._missing else _NEVER_NS
        if not asked:
            self._joined_ns = None
        elif self._joined_ns is None:
            self._joined_ns = now_ns
        if self._joined_ns is None or now_ns - self._joined_ns < WAIT_NS:
            return []
        names = several(asked, _PUBLISHERS_MAX)
        said = [_describe(topic, known, names) for topic in self._missing[:_TOPICS_MAX]]
        if len(self._missing) > _TOPICS_MAX:
            said.append(f"nobody has {len(self._missing) - _TOPICS_MAX:,} other topics yet")
        self._missing, self.next_ns = [], _NEVER_NS
        return said


def _describe(topic: str, known: set[str], names: str) -> str:
    import difflib  # most programs never need it

    text = f"nobody has {topic!r} yet; asked for {WAIT_NS / 1e9:.0f} s: {names}"
    similar = difflib.get_close_matches(topic, sorted(known)[:_COMPARED_MAX])
    return f"{text}. Similar topics: {', '.join(map(ascii, similar))}" if similar else text


def several(texts: Sequence[str], count_max: int) -> str:
    """Return some texts, and how many others there are."""
    shown = ", ".join(texts[:count_max])
    rest = len(texts) - count_max
    return f"{shown} and {rest:,} others" if rest > 0 else shown
