"""What must hold at the end of a simulation."""

from collections.abc import Iterator

from p2pmsg.subscriber.sessions import Stream
from p2pmsg.testing.oracle import Book
from p2pmsg.testing.simulated_publisher import SimulatedPublisher
from p2pmsg.testing.simulated_subscriber import SimulatedSubscriber
from recovery import LossReason


def final_violations(subscriber: SimulatedSubscriber, book: Book) -> Iterator[str]:
    """Return what is wrong at a subscriber that should have everything."""
    if subscriber.core is None:
        yield f"{subscriber.name} is dead"
        return
    for stream in subscriber.core.streams:
        yield from _stream_violations(subscriber, stream)
        if stream.receiver.started and not stream.peer.gone:  # who is gone can confirm nothing
            key = (stream.peer.session, stream.topic)
            known = len(book.published.get(key, ()))
            if stream.retired:  # it is of a former life of its publisher, which had more
                known = max([known, *map(len, book.former.get(key, ()))])
            if stream.receiver.head > max(known, stream.receiver.start):
                name = f"{subscriber.name}: {stream.topic!r} of {stream.peer.name}"
                yield f"{name} believes in {stream.receiver.head} messages of {known}"
    if len(subscriber.publishers) < len(subscriber.places):
        return  # what it lost a relay may have lost; see `relay_verdict`
    for publisher in subscriber.publishers:
        yield from _publisher_violations(subscriber, publisher, book)
    for stream in subscriber.core.streams:
        died_at = book.kept.get((stream.peer.session, stream.topic))
        if died_at is not None and stream.receiver.started:
            name = f"{subscriber.name}: {stream.topic!r} of {stream.peer.name}, which died,"
            yield from _start_violations(subscriber, stream, name, book, died_at)


def _stream_violations(subscriber: SimulatedSubscriber, stream: Stream) -> Iterator[str]:
    name = f"{subscriber.name}: {stream.topic!r} of {stream.peer.name}"
    if stream.retired:
        return
    receiver = stream.receiver
    if not receiver.started:
        yield f"{name} has not started"
        return
    if receiver.missing or receiver.buffered:
        yield f"{name} misses {receiver.missing} and holds back {receiver.buffered}"
    key = (stream.peer.session, stream.topic)
    seen = subscriber.witness.seen.get(key)
    delivered, lost, conflated = (
        (seen.delivered, seen.lost, seen.conflated) if seen else (0, 0, 0)
    )
    if seen and seen.replaced:
        yield f"{name} did not deliver the newest value of {seen.replaced}"
    if receiver.head - receiver.start != delivered + lost + conflated:
        told = f"{delivered} delivered, {lost} lost and {conflated} conflated"
        yield f"{name} has [{receiver.start}, {receiver.head}), and {told}"


def _publisher_violations(
    subscriber: SimulatedSubscriber, publisher: SimulatedPublisher, book: Book
) -> Iterator[str]:
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
        count = len(book.published.get((core.session, topic), ()))
        stream = peer.streams.get(topic)
        if stream is None:
            earliest = core.head(topic)[0]
            if any(book.published.get((core.session, topic), ())[earliest:]):
                yield f"{name} lost {count} messages silently: the stream is unknown"
            continue
        receiver = stream.receiver
        if receiver.head < count:
            yield f"{name} lost [{receiver.head}, {count}) silently"
        yield from _start_violations(subscriber, stream, name, book)
        yield from _rewound_violations(subscriber, stream, name, book)
        yield from _loss_violations(subscriber, publisher, stream, name)


def _start_violations(
    subscriber: SimulatedSubscriber,
    stream: Stream,
    name: str,
    book: Book,
    not_joined: tuple[int, int] = (0, 0),
) -> Iterator[str]:
    """Check that the stream does not start later than it may.

    `not_joined` is (earliest kept, next) to go by where nobody saw the session being joined.
    """
    peer = stream.peer
    if subscriber.cursor is not None and (peer.session, stream.topic) in subscriber.cursor.covered:
        return  # where it resumed was looked at then
    if any(one.topic == stream.topic for one in peer.former):
        return  # it began again where its publisher did; the first one's start is looked at
    start = stream.receiver.start
    kind, position = subscriber.start.kind, subscriber.start.position
    if peer.session in subscriber.joined:
        not_joined = (0, 0)  # the stream is younger than that
    earliest, following = subscriber.joins.get((peer.session, stream.topic), not_joined)
    if kind == "sequence":
        latest = position
    elif peer.session in subscriber.whole and kind in ("latest", "earliest"):
        latest = 0  # it was here before the session began
    elif kind == "latest":
        latest = following
    elif kind == "earliest":
        latest = earliest
    else:
        messages = book.published.get((peer.session, stream.topic), [])
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


def _rewound_violations(
    subscriber: SimulatedSubscriber, stream: Stream, name: str, book: Book
) -> Iterator[str]:
    """Check that what a publisher sent after it had gone back came, or was reported lost."""
    key = (stream.peer.session, stream.topic)
    if key not in book.former:
        return
    starts = [o.receiver.start for o in stream.peer.former if o.topic == stream.topic]
    if starts and min(starts) <= book.went_back[key] < stream.receiver.start:
        yield f"{name} begins again at {stream.receiver.start} instead of {book.went_back[key]}"
    seen, published = subscriber.witness.seen.get(key), book.published[key]
    first = max(book.went_back[key], stream.receiver.start)
    for sequence in range(first, len(published)):
        want = published[sequence]
        got = None if seen is None else seen.messages.get(sequence)
        lost = seen is not None and seen.gone.overlap(sequence, sequence + 1)
        if want is not None and got is not want and not lost:
            yield f"{name} did not get the new message {sequence}, and was not told so"
            return


def _loss_violations(
    subscriber: SimulatedSubscriber, publisher: SimulatedPublisher, stream: Stream, name: str
) -> Iterator[str]:
    """Check that what was lost had to be."""
    seen = subscriber.witness.seen.get((stream.peer.session, stream.topic))
    reasons = set(seen.reasons) if seen else set()
    if LossReason.EVICTED.value in reasons and not publisher.evicted:
        yield f"{name} lost messages as evicted, and nothing was"
    may_crash = publisher.system_crashes or (publisher.gathers and publisher.crashes)
    if LossReason.CRASH.value in reasons and not may_crash:
        yield f"{name} lost messages to a crash, and there was none"
    if LossReason.SKIPPED.value in reasons and subscriber.wait_for_repair:
        yield f"{name} skipped messages although it waits"
