"""What must hold at the end of a simulation."""

from recovery import LossReason, RangeSet
from tests.simulation.simulator.oracle import Seen, key_of, title_of
from tests.simulation.simulator.relay import SimulatedRelay


def final_violations(subscriber, history):
    """Return what is wrong at a subscriber that should have everything."""
    if subscriber.core is None:
        yield f"{subscriber.name} is dead"
        return
    if held := subscriber.core.bytes_held:
        yield f"{subscriber.name} holds {held} bytes, and nothing waits"
    for stream in subscriber.core.streams:
        yield from _stream_violations(subscriber, stream)
        # A publisher that is gone can confirm nothing.
        if stream.receiver.started and not stream.peer.gone:
            known = len(history.of(stream))
            if stream.retired:  # it is of a former incarnation of its publisher, which had more
                known = max([known, *map(len, history.former.get(key_of(stream), ()))])
            if stream.receiver.head > max(known, stream.receiver.start):
                name = title_of(subscriber.name, stream)
                yield f"{name} believes in {stream.receiver.head} messages of {known}"
    if len(subscriber.publishers) < len(subscriber.sources):
        return  # what it lost a relay may have lost; see `relay_violations`
    for publisher in subscriber.publishers:
        yield from _publisher_violations(subscriber, publisher, history)
    for stream in subscriber.core.streams:
        died_at = history.kept.get(key_of(stream))
        if died_at is not None and stream.receiver.started:
            name = f"{title_of(subscriber.name, stream)}, which died,"
            yield from _start_violations(subscriber, stream, name, history, died_at)


def _stream_violations(subscriber, stream):
    name = title_of(subscriber.name, stream)
    if stream.retired:
        return
    receiver = stream.receiver
    if not receiver.started:
        yield f"{name} has not started"
        return
    if receiver.missing or receiver.buffered:
        yield f"{name} misses {receiver.missing} and holds back {receiver.buffered}"
    seen = subscriber.oracle.seen.get(key_of(stream), Seen())
    if seen.replaced:
        yield f"{name} did not deliver the newest value of {seen.replaced}"
    if receiver.head - receiver.start != seen.delivered + seen.lost + seen.conflated:
        parts = f"{seen.delivered} delivered, {seen.lost} lost and {seen.conflated} conflated"
        yield f"{name} has [{receiver.start}, {receiver.head}), and {parts}"


def _publisher_violations(subscriber, publisher, history):
    if publisher.is_gone:
        return
    core, peer = publisher.core, subscriber.peer_of(publisher)
    if core is None or peer is None or not peer.joined:
        yield f"{subscriber.name} has not joined {publisher.name}"
        return
    for topic in publisher.topics:
        if not subscriber.wants(topic):
            continue
        name = f"{subscriber.name}: {topic!r} of {publisher.name}"
        count = len(history.published.get((core.session, topic), ()))
        stream = peer.streams.get(topic)
        if stream is None:
            earliest = core.own.head(topic)[0]
            if any(history.published.get((core.session, topic), ())[earliest:]):
                yield f"{name} lost {count} messages silently: the stream is unknown"
            continue
        receiver = stream.receiver
        if receiver.head < count:
            yield f"{name} lost [{receiver.head}, {count}) silently"
        yield from _start_violations(subscriber, stream, name, history)
        yield from _rewound_violations(subscriber, stream, name, history)
        yield from _loss_violations(subscriber, publisher, stream, name)


def _start_violations(subscriber, stream, name, history, not_joined=(0, 0)):
    """Check that the stream does not start later than it may.

    `not_joined` is (earliest kept, next) to go by where nobody saw the session being joined.
    """
    peer = stream.peer
    if subscriber.cursor is not None and key_of(stream) in subscriber.cursor.covered:
        return  # where it resumed was looked at then
    if any(one.topic == stream.topic for one in peer.former):
        return  # it began again where its publisher did; the first one's start is looked at
    start = stream.receiver.start
    kind, position = subscriber.start.kind, subscriber.start.position
    if peer.session in subscriber.joined:
        not_joined = (0, 0)  # the stream is younger than that
    earliest, following = subscriber.joins.get(key_of(stream), not_joined)
    if kind == "sequence":
        latest = position
    elif peer.session in subscriber.whole and kind in ("latest", "earliest"):
        latest = 0  # it was here before the session began
    elif kind == "latest":
        latest = following
    elif kind == "earliest":
        latest = earliest
    else:
        messages = history.of(stream)
        times = [None if message is None else message.timestamp_ns for message in messages]
        latest = next(
            (
                sequence
                for sequence in range(earliest, following)
                if (time_ns := times[sequence]) is not None and time_ns >= position
            ),
            following,
        )
    if start > latest:
        yield f"{name} starts at {start} instead of {latest}"


def _rewound_violations(subscriber, stream, name, history):
    """Check that what a publisher sent after it had gone back came, or was reported lost."""
    key = key_of(stream)
    if key not in history.former:
        return
    starts = [o.receiver.start for o in stream.peer.former if o.topic == stream.topic]
    if starts and min(starts) <= history.went_back[key] < stream.receiver.start:
        yield f"{name} begins again at {stream.receiver.start} instead of {history.went_back[key]}"
    seen, published = subscriber.oracle.seen.get(key), history.published[key]
    first = max(history.went_back[key], stream.receiver.start)
    for sequence in range(first, len(published)):
        want = published[sequence]
        got = None if seen is None else seen.messages.get(sequence)
        lost = seen is not None and seen.gone.overlap(sequence, sequence + 1)
        if want is not None and got is not want and not lost:
            yield f"{name} did not get the new message {sequence}, and no loss was reported"
            return


def _loss_violations(subscriber, publisher, stream, name):
    """Check that what was lost had to be."""
    seen = subscriber.oracle.seen.get(key_of(stream))
    reasons = set(seen.reasons) if seen else set()
    if LossReason.EVICTED.value in reasons and not publisher.evicted:
        yield f"{name} lost messages as evicted, and nothing was"
    if LossReason.CRASH.value in reasons and not publisher.system_crashes:
        yield f"{name} lost messages to a crash, and there was none"
    if LossReason.SKIPPED.value in reasons and not subscriber.policy.any_skips:
        yield f"{name} skipped messages although it waits"


def relay_violations(subscriber):
    """Say what was lost although a relay had it, all the time."""
    core = subscriber.core
    relays = [place for place in subscriber.sources if isinstance(place, SimulatedRelay)]
    for place in relays:
        if place.core is not None and place.core.bytes_held:
            yield f"{place.name} holds {place.core.bytes_held} bytes, and nothing waits"
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
                for start, stop in place.never_had.get((session, topic), ()):
                    kept.remove(start, stop)
                yield from _lost_of(subscriber, place, stream, kept)


def _lost_of(subscriber, place, stream, kept):
    name = title_of(subscriber.name, stream)
    for loss in stream.receiver.lost_ranges:
        had = kept.overlap(loss.start, loss.stop)
        if had:
            yield f"{name} lost {had} ({loss.reason.value}), which {place.name} had"
