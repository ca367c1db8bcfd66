"""Hostile peers of publishers and subscribers are counted and dropped; all others go on exactly."""

import contextlib
import resource
import time

import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import p2pmsg
from p2pmsg import PublisherConfig, control, wire
from p2pmsg.wire import Kind, control_frame
from tests.integration.hostile import (
    HostilePublisher,
    data_body,
    frame,
    malformed,
    noise,
    throw_bytes,
    unreadable_bodies,
)
from tests.integration.peers import (
    TOPIC,
    Collector,
    check_exact,
    check_ledger,
    eventually,
    small_frames,
)

FEW_EXAMPLES = settings(
    max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture
def stranger(opened):
    """Give raw ZeroMQ sockets of a context of their own."""
    context = zmq.Context()
    opened.callback(context.destroy, linger=0)

    def connect(kind, endpoint, queue=0):
        used = context.socket(kind)
        used.linger = 0
        used.sndhwm = used.rcvhwm = queue
        used.connect(endpoint)
        opened.callback(used.close)
        return used

    return connect


@pytest.fixture
def good_pair(make_publisher, make_subscriber):
    publisher = make_publisher(config=small_frames())
    subscriber = make_subscriber(publisher.endpoint, joins=publisher, on_gap="raise")
    return publisher, Collector(subscriber)


def check_goes_on(publisher, collector, count=2_000):
    before = publisher.stats().published
    for n in range(before, before + count):
        publisher.publish(TOPIC, n)
    check_exact(collector.wait_for(before + count))
    check_ledger(collector.subscriber, outstanding=0, lost=0)


def invalid(publisher):
    return sum(publisher.stats().frames_invalid.values())


def test_garbage_to_the_recovery_endpoint(good_pair, stranger):
    publisher, collector = good_pair
    dealer = stranger(zmq.DEALER, publisher.recovery_endpoint)
    frames = malformed(TOPIC.encode(), publisher.session)
    frames += malformed(b"", publisher.session)
    small = [data for data in frames if len(data) < 60_000]
    for data in small:
        dealer.send(data)
        dealer.send_multipart([data, data, data])
    eventually(lambda: invalid(publisher) == 2 * len(small))
    assert publisher.stats().frames_invalid["parts"] == len(small)
    for data in frames:  # a large one ends the connection
        dealer.send(data)
    check_goes_on(publisher, collector)
    assert publisher.stats().subscribers == 1


REQUESTS = {
    "probe": (Kind.PROBE, control.Probe(1, ["*"], "latest")),
    "joined": (Kind.JOINED, control.Joined(1, "x")),
    "nack": (Kind.NACK, control.Nack(TOPIC, [(0, 5)])),
    "leave": (Kind.LEAVE, control.Joined(1, "x")),
    "settled": (Kind.SETTLED, control.Settled(TOPIC, 5)),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_with_a_body_that_does_not_fit(good_pair, stranger, name):
    publisher, collector = good_pair
    kind, body = REQUESTS[name]
    packed = wire.encoder.encode(body)
    bodies = [packed[:length] for length in range(len(packed))]
    bodies += [packed + b"\0", b"\x91" * 10_000, b"\xdd\xff\xff\xff\xff", b"\xc0", b"\x94\xc0"]
    bodies += [b"\x92\xa6trades\xdd\xff\xff\xff\xff", b"\x92\xa6trades\x91\x92\xff\x01"]
    dealer = stranger(zmq.DEALER, publisher.recovery_endpoint)
    for data in bodies:
        dealer.send(frame(b"", kind, publisher.session, 0, 0, data))
    dealer.send(frame(b"", kind, publisher.session ^ 1, 0, 0, packed))
    eventually(lambda: invalid(publisher) > len(bodies))
    check_goes_on(publisher, collector)


def nack(session, *ranges, topic=TOPIC):
    return control_frame(Kind.NACK, session, control.Nack(topic, list(ranges)))


def test_a_nack_for_everything_and_beyond(good_pair, stranger):
    publisher, collector = good_pair
    publisher.publish_many(TOPIC, range(10_000))
    collector.wait_for(10_000)
    dealer = stranger(zmq.DEALER, publisher.recovery_endpoint)
    session = publisher.session
    for _ in range(20):
        dealer.send(nack(session, (0, 2**63 - 1)))
        dealer.send(nack(session, (10**18, 10**18 + 1), (5, 4), (7, 7)))
        dealer.send(nack(session, *((n, n + 1) for n in range(0, 2048, 2))))
        dealer.send(nack(session, (0, 5), topic="unknown"))
    check_goes_on(publisher, collector)
    answers = 0
    dealer.rcvtimeo = 60_000
    while answers <= 10:
        answers += bool(dealer.recv())
    assert publisher.stats().published == 12_000


def test_a_flood_of_probes_is_bounded(make_publisher, make_subscriber, stranger):
    """Each probe costs a frame of the data path; while that has no space, none is added."""
    publisher = make_publisher(on_full="raise", config=PublisherConfig(queue_frames=1))
    make_subscriber(publisher.endpoint, joins=publisher, receive_bytes=2**16)
    with contextlib.suppress(Exception):
        while True:
            publisher.publish(TOPIC, bytes(10_000))
    dealer = stranger(zmq.DEALER, publisher.recovery_endpoint)
    for n in range(8_000):
        body = control.Probe(n, ["*"], "latest")
        dealer.send(control_frame(Kind.PROBE, publisher.session, body))
    most = 0
    heads = control_frame(Kind.HEADS_REQUEST, publisher.session)
    dealer.send(heads)
    deadline = time.monotonic() + 60
    while not dealer.poll(1):  # the reply says that all probes were taken
        most = max(most, publisher.stats().unsent_frames)
        assert time.monotonic() < deadline
    assert max(most, publisher.stats().unsent_frames) < 2_000


def test_a_crowd_that_says_it_has_joined_delays_close_no_longer_than_it_may(
    make_publisher, stranger
):
    publisher = make_publisher()
    dealer = stranger(zmq.DEALER, publisher.recovery_endpoint)
    for n in range(5_000):
        dealer.send(control_frame(Kind.JOINED, publisher.session, control.Joined(n, "crowd")))
    eventually(lambda: publisher.stats().subscribers == 5_000)
    publisher.close(timeout=0.3)
    assert publisher.stats().undelivered == 5_000  # it would wait until they are forgotten


def test_random_bytes_to_every_listening_socket(good_pair):
    publisher, collector = good_pair
    rng = noise()
    for endpoint in (publisher.endpoint, publisher.recovery_endpoint):
        throw_bytes(endpoint, rng, 40)
    check_goes_on(publisher, collector)


PREFIX = b"hostile"


@pytest.fixture
def hostile(opened):
    def make(**options):
        made = HostilePublisher(**options)
        opened.callback(made.close)
        return made

    return make


@pytest.fixture
def joined(hostile, make_publisher, make_subscriber):
    """A subscriber of a good publisher and a hostile one, which it believes it has joined."""

    def make(**options):
        publisher, bad = make_publisher(name="good"), hostile()
        subscriber = make_subscriber([publisher.endpoint, bad.endpoint], joins=publisher, **options)
        assert bad.joined.wait(60)
        return publisher, bad, subscriber

    return make


def check_good_one_goes_on(publisher, collector, count=1_000):
    before = publisher.stats().published
    for n in range(count):
        publisher.publish(TOPIC, before + n)

    def own():
        return [m.value for m in list(collector.messages) if m.session == publisher.session]

    eventually(lambda: len(own()) >= before + count)
    assert own() == list(range(before + count))
    check_ledger(collector.subscriber)


def test_malformed_frames_are_counted_by_reason(joined):
    publisher, bad, subscriber = joined()
    collector = Collector(subscriber)
    frames = malformed(PREFIX, bad.session)
    # Only what begins with a topic or a welcome gets through the filter: all topics are taken.
    bad.send(*frames)
    reasons = {"magic", "version", "kind", "compression", "length", "session", "count"}
    eventually(lambda: reasons <= set(subscriber.stats().frames_invalid))
    assert sum(subscriber.stats().frames_invalid.values()) >= len(reasons)
    check_good_one_goes_on(publisher, collector)


def test_unreadable_messages_are_reported_lost_and_the_next_arrive(joined):
    publisher, bad, subscriber = joined()
    collector = Collector(subscriber)
    frames = unreadable_bodies(PREFIX, bad.session, 1)
    good = [frame(PREFIX, 1, bad.session, n, 1, data_body([n])) for n in (0, len(frames) + 1)]
    bad.send(good[0], *frames, good[1])
    eventually(lambda: len(collector.messages) == 2)
    assert [message.value for message in collector.messages] == [0, len(frames) + 1]
    stats = check_ledger(subscriber, delivered=2, lost=len(frames), outstanding=0)
    assert sum(loss.count for loss in stats.losses) == len(frames)
    assert {loss.reason.value for loss in stats.losses} == {"malformed"}
    assert stats.frames_invalid["body"] + stats.frames_invalid["columns"] == len(frames)
    check_good_one_goes_on(publisher, collector)


def test_lies_about_counts_cost_no_memory(joined):
    publisher, bad, subscriber = joined(on_gap=lambda report: None)
    collector = Collector(subscriber)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    huge = b"\x94\xdd\xff\xff\xff\xff" + b"\xc0" * 1000
    for number in range(50):
        bad.send(frame(PREFIX, 1, bad.session, number * (2**32 - 1), 2**32 - 1, huge))
    eventually(lambda: subscriber.stats().frames_invalid.get("count") == 50)
    check_ledger(subscriber, lost=0, outstanding=0)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024
    check_good_one_goes_on(publisher, collector)


def test_forged_sessions_and_welcomes(joined):
    publisher, bad, subscriber = joined()
    collector = Collector(subscriber)
    rng = noise()
    for _ in range(100):
        session = rng.getrandbits(64)
        welcome = control.Welcome("forged", bad.recovery, rng.choice([-1.0, 0.0, 1e308]))
        bad.send(control_frame(Kind.WELCOME, session, welcome))
        bad.send(frame(PREFIX, 1, session, 0, 1, data_body([0])))
        bad.send(frame(PREFIX, 1, rng.getrandbits(64), 0, 1, data_body([0])))
    for recovery in ("", "tcp://", "tcp://*:1", "http://a", "tcp://nobody.invalid:1", "x" * 1024):
        welcome = control.Welcome("forged", recovery, 1.0)
        bad.send(control_frame(Kind.WELCOME, rng.getrandbits(64), welcome))
    for stall_ms in (float("nan"), float("inf"), float("-inf")):
        welcome = control.Welcome("forged", bad.recovery, stall_ms)
        bad.send(control_frame(Kind.WELCOME, rng.getrandbits(64), welcome))
    check_good_one_goes_on(publisher, collector)


def test_more_topics_than_are_taken(hostile, make_publisher, make_subscriber):
    publisher, bad = make_publisher(), hostile()
    config = p2pmsg.SubscriberConfig(streams_max=100)
    subscriber = make_subscriber([publisher.endpoint, bad.endpoint], joins=publisher, config=config)
    assert bad.joined.wait(60)
    collector = Collector(subscriber)
    publisher.publish(TOPIC, 0)
    eventually(lambda: collector.messages)
    bad.send(*(frame(b"t%d" % n, 1, bad.session, 0, 1, data_body([n])) for n in range(500)))
    eventually(lambda: subscriber.stats().frames_invalid.get("streams_max", 0) > 300)
    assert len(subscriber.stats().streams) <= 100
    check_good_one_goes_on(publisher, collector)


def test_garbage_over_the_recovery_channel(joined):
    publisher, bad, subscriber = joined(repair_timeout=30.0, on_gap=lambda report: None)
    collector = Collector(subscriber)
    bad.send(frame(PREFIX, 1, bad.session, 0, 1, data_body([0])))
    bad.send(frame(PREFIX, 1, bad.session, 10, 1, data_body([10])))
    eventually(lambda: Kind.NACK in bad.asked)
    refused = [
        control_frame(Kind.REFUSED, bad.session, control.Refused(topic, ranges, reason))
        for topic, ranges, reason in (
            ("hostile", [(5, 5)], "evicted"),
            ("hostile", [(7, 3)], "evicted"),
            ("nobody", [(0, 3)], "evicted"),
            ("hostile", [(0, 2**63 - 1)], "because"),
            ("hostile", [], "evicted"),
        )
    ]
    bad.reply(*malformed(PREFIX, bad.session, 10**6), *refused)
    bad.reply(frame(PREFIX, 1, bad.session, 2**62, 1, data_body([1])))  # nobody asked for it
    bad.reply(frame(PREFIX, 1, bad.session, 1, 9, data_body([*range(1, 10)])))
    eventually(lambda: sum(m.session == bad.session for m in list(collector.messages)) >= 11)
    own = [m.value for m in collector.messages if m.session == bad.session]
    assert own == list(range(11))
    check_good_one_goes_on(publisher, collector)


def test_a_frame_above_the_limit_ends_the_connection_only(hostile, make_publisher, make_subscriber):
    publisher, bad = make_publisher(), hostile()
    config = p2pmsg.SubscriberConfig(frame_bytes_max=100_000, publisher_timeout=0.5)
    subscriber = make_subscriber([publisher.endpoint, bad.endpoint], joins=publisher, config=config)
    assert bad.joined.wait(60)
    collector = Collector(subscriber)
    bad.send(frame(PREFIX, 1, bad.session, 0, 1, data_body([bytes(200_000)])))
    check_good_one_goes_on(publisher, collector)
    bad.joined.clear()
    assert bad.joined.wait(60), "it does not come back"
    bad.send(frame(PREFIX, 1, bad.session, 0, 1, data_body(["small"])))
    eventually(lambda: any(m.value == "small" for m in list(collector.messages)))


@FEW_EXAMPLES
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=200),
            st.binary(max_size=100).map(lambda body: frame(PREFIX, 1, 7, 0, 1, b"\x94\x91" + body)),
            st.builds(
                frame,
                st.sampled_from([b"", b"hostile", b"trades"]),
                st.sampled_from([0, 1, 2, 3, 16, 18, 21, 23]),
                st.sampled_from([7, 8]),
                st.integers(0, 2**63),
                st.sampled_from([0, 1, 2, 2**32 - 1]),
                st.one_of(st.binary(max_size=60), st.just(data_body([1]))),
            ),
        ),
        max_size=20,
    )
)
def test_anything_from_a_publisher(shared, frames):
    publisher, bad, collector = shared
    bad.send(*frames)
    if hasattr(bad, "requester"):
        bad.reply(*frames)
    check_good_one_goes_on(publisher, collector, 20)


@pytest.fixture
def shared(joined):
    publisher, bad, subscriber = joined(repair_timeout=0.2, on_gap=lambda report: None)
    return publisher, bad, Collector(subscriber)
