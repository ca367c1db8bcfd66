"""Whether a subscriber, or a relay, knows of all that was sent to it."""

from collections.abc import Mapping, Sequence
from typing import Any

from p2pmsg.toolkit import Session, matches


def knows_all(topics: Sequence[str], peer: Session, heads: Mapping[str, tuple[int, int]]) -> bool:
    """Whether who takes `topics`, (): all, knows of all messages of a session that it takes."""
    for topic, (_, following) in heads.items():
        stream = peer.streams.get(topic)
        head = 0 if stream is None else stream.receiver.head
        if head < following and matches(topic, topics or ["*"]):
            return False
    return True


def knows_all_of_relay(
    core: Any, topics: Sequence[str], line: int, place: Any, *, hears: bool = True
) -> bool:
    """Whether it has joined all that a relay serves, on that line, and knows of all of it.

    `hears`: whether the data path from the relay works.
    """
    relay = place.core
    if core.lines[line].relay != relay.id:
        return False
    met = place.source.peers.items()
    joined = {session for session, peer in met if peer.joined and not peer.gone}
    if joined - relay.sessions.keys():  # of one that is gone it may have nothing to serve
        return False
    for session, served in relay.sessions.items():
        peer = core.peers.get(session)
        routes = [] if peer is None else [one for one in peer.relayed if one.line == line]
        sure = [one for one in routes if one.joined and (one.probe is None or not hears)]
        if peer is None or not sure:  # over a dead data path no echo comes
            return False
        if not knows_all(topics, peer, served.heads()):
            return False
    return True
