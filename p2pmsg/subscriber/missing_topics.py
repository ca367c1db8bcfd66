"""Which topics a subscriber asked for although nobody that it has joined has them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from p2pmsg.subscriber.relays import RelayConnection
from p2pmsg.subscriber.sessions import Session
from p2pmsg.topics import matches

WAIT_NS: Final = 5_000_000_000
"""How long after joining it is said: a publisher and its first message may start one by one."""
LOOK_NS: Final = 1_000_000_000
_NEVER_NS: Final = 2**63
_TOPICS_MAX: Final = 8
"""Topics that are named one by one; the others are counted."""
_PUBLISHERS_MAX: Final = 4
_COMPARED_MAX: Final = 1000
"""How many known topics are compared with a missing one: 1,000 take about 10 ms."""


class Asked(NamedTuple):
    """Who was asked for topics: a publisher, or a relay for what publishers have."""

    place: str
    """Who and where it is, for people."""
    carries: Sequence[str] | None = None
    """Of a relay, the topics and prefixes that it says it takes; empty: it does not say. None: it
    is a publisher."""

    def leaves_out(self, topic: str) -> bool:
        """Whether it is a relay that says that it does not take a topic."""
        return bool(self.carries) and not matches(topic, list(self.carries or ()))

    @property
    def limits(self) -> str:
        """What a relay says that it takes, for people."""
        carries = self.carries or ()
        return f"{self.place} carries only {several([*map(repr, carries)], _TOPICS_MAX)}"

    def __str__(self) -> str:
        may_not = self.carries is not None and not self.carries
        return f"{self.place} (which may not carry it)" if may_not else self.place


def known_topics(peers: Mapping[int, Session]) -> set[str]:
    """Return the topics that have streams."""
    return {topic for peer in peers.values() for topic in peer.streams}


def asked_peers(
    peers: Mapping[int, Session], relays: Mapping[int, RelayConnection], places: Sequence[str]
) -> list[Asked]:
    """Return who answered what streams there are.

    Args:
        peers: the sessions.
        relays: the relays that are connected, by their ids.
        places: the endpoint of each line, for people.

    """
    found: dict[tuple[int, int], Asked] = {}
    for peer in peers.values():
        if not peer.joined or peer.gone:
            continue
        own = peer.handshake
        if peer.direct and own.line >= 0 and (own.joined or not peer.relayed):
            place = places[own.line]
            found[own.line, peer.session] = Asked(
                repr(place) if peer.name == place else f"{peer.name!r} at {place}"
            )
        for route in peer.relayed:
            if route.handshake.joined and route.key in relays:
                line = route.handshake.line
                found[line, route.key] = _relay(places[line], relays[route.key])
    if not found:
        return [
            _relay(places[line], up) for up in relays.values() if up.complete for line in up.lines
        ]
    return list(found.values())


def _relay(place: str, relay: RelayConnection) -> Asked:
    return Asked(f"the relay at {place}", relay.carries)


class MissingTopics:
    """Decides what to say of each exact topic, once; never of prefixes.

    Attributes:
        next_ns: when `look` has something to do.

    """

    def __init__(self, topics: Iterable[str]) -> None:
        self._missing = [topic for topic in dict.fromkeys(topics) if not topic.endswith("*")]
        self._joined_ns: int | None = None
        self.next_ns = 0 if self._missing else _NEVER_NS

    def check(self, known: set[str], asked: Sequence[Asked], now_ns: int) -> list[str]:
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
        said = [_describe(topic, known, asked) for topic in self._missing[:_TOPICS_MAX]]
        if len(self._missing) > _TOPICS_MAX:
            said.append(_begin(f"{len(self._missing) - _TOPICS_MAX:,} other topics", asked))
        self._missing, self.next_ns = [], _NEVER_NS
        return said


def _describe(topic: str, known: set[str], asked: Sequence[Asked]) -> str:
    import difflib  # most programs never need them
    from unicodedata import normalize

    without = [one for one in asked if one.leaves_out(topic)]
    limits = several([one.limits for one in without], _PUBLISHERS_MAX)
    others = [one for one in asked if one not in without]
    if not others:
        text = f"nothing of {topic!r} can come: {limits}"
    else:
        names = several([*map(str, others)], _PUBLISHERS_MAX)
        text = f"{_begin(repr(topic), others)}; asked for {WAIT_NS / 1e9:.0f} s: {names}"
        if without:
            text += f". And {limits}"
    plain = normalize("NFC", topic)
    if same := [ascii(one) for one in known if normalize("NFC", one) == plain]:
        other = f"the same text in another Unicode normalization than {topic!a}"
        return f"{text}. Published is {same[0]}, {other}"
    similar = difflib.get_close_matches(topic, sorted(known)[:_COMPARED_MAX])
    return f"{text}. Similar topics: {', '.join(map(repr, similar))}" if similar else text


def _begin(what: str, asked: Sequence[Asked]) -> str:
    """Return that there is nothing: by relays nobody knows whether it is published."""
    if any(one.carries is not None for one in asked):
        return f"nothing is known of {what} yet"
    return f"nobody has published on {what} yet"


def several(texts: Sequence[str], count_max: int) -> str:
    """Return some texts, and how many others there are."""
    shown = ", ".join(texts[:count_max])
    rest = len(texts) - count_max
    return f"{shown} and {rest:,} others" if rest > 0 else shown
