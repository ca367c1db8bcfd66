"""What must hold at the end of a simulation for those who have relays."""

from collections.abc import Iterator

from p2pmsg.subscriber.sessions import Stream
from p2pmsg.testing.simulated_relay import SimulatedRelay
from p2pmsg.testing.simulated_subscriber import SimulatedSubscriber
from recovery import RangeSet


def has_all_of_relay(subscriber: SimulatedSubscriber, line: int, place: SimulatedRelay) -> bool:
    """Whether a subscriber knows of everything that a relay serves."""
    core, relay = subscriber.core, place.relay
    if core is None or relay is None or core.lines[line].relay != relay.id:
        return False
    for session, served in relay.sessions.items():
        peer = core.peers.get(session)
        routes = [] if peer is None else [route.handshake for route in peer.relayed]
        routes = [one for one in routes if one.line == line]
        if peer is None or not any(one.joined and one.probe is None for one in routes):
            return False
        for topic, (_, following) in served.heads().items():
            stream = peer.streams.get(topic)
            behind = stream is None or stream.receiver.head < following
            if behind and following and subscriber.wants(topic):
                return False
    return True


def relay_violations(subscriber: SimulatedSubscriber) -> Iterator[str]:
    """Say what was lost although a relay had it, all the time."""
    core = subscriber.core
    relays = [place for place in subscriber.places if isinstance(place, SimulatedRelay)]
    for place in relays:
        if core is None or place.relay is None or place.evicted:
            continue
        for session, served in place.relay.sessions.items():
            for topic in served.streams:
                peer = core.peers.get(session)
                stream = None if peer is None else peer.streams.get(topic)
                if stream is None or not subscriber.wants(topic):
                    continue
                kept = RangeSet([served.head(topic)])
                for loss in served.streams[topic].losses:
                    kept.remove(loss.start, loss.stop)
                yield from _lost_of(subscriber, place, stream, kept)


def _lost_of(
    subscriber: SimulatedSubscriber, place: SimulatedRelay, stream: Stream, kept: RangeSet
) -> Iterator[str]:
    name = f"{subscriber.name}: {stream.topic!r} of {stream.peer.name}"
    for loss in stream.receiver.lost_ranges:
        had = kept.overlap(loss.start, loss.stop)
        if had:
            yield f"{name} lost {had} ({loss.reason.value}), which {place.name} had"
