"""Relays over real sockets: they serve what publishers that are gone have sent."""

import logging
import random
import shutil
import signal

import pytest

import p2pmsg
from p2pmsg import LogConfig, PublisherConfig, Relay, SubscriberConfig
from p2pmsg.moldudp64 import MoldPublisher
from p2pmsg.reader import RangeReader
from tests.endpoints import free_port, lasting_endpoint
from tests.integration.peers import LOOPBACK, eventually

SMALL = PublisherConfig(frame_bytes=4096)


def kill(child):
    child.signal(signal.SIGKILL)
    child.wait()


def take(subscriber, count):
    """Receive `count` messages; their sequences."""
    return [subscriber.receive(60).sequence for _ in range(count)]


def has(relay, following, *, streams=1):
    """Wait until a relay has every stream up to `following`."""
    eventually(
        lambda: (
            len(heads := relay.stats().streams) == streams
            and all(head[1] >= following for head in heads.values())
        )
    )


def balanced(subscriber, delivered, lost=0):
    stats = subscriber.stats()
    assert stats.balanced
    assert (stats.delivered, stats.lost, stats.outstanding) == (delivered, lost, 0)
    return stats


def test_a_subscriber_with_both_endpoints_carries_on(
    tmp_path, make_child, make_relay, make_subscriber
):
    child = make_child("publish_feed", LOOPBACK, str(tmp_path / "log"), "100")
    endpoint, _ = child.line().split()
    relay = make_relay(endpoint)
    has(relay, 100)
    subscriber = make_subscriber([endpoint, relay.endpoint], start="earliest")
    assert take(subscriber, 100) == list(range(100))
    for _ in range(20):
        child.order("500")
    has(relay, 10_100)
    kill(child)
    shutil.rmtree(tmp_path / "log")
    assert take(subscriber, 10_000) == list(range(100, 10_100))
    balanced(subscriber, 10_100)


def test_what_the_publisher_has_forgotten_comes_from_the_relay(
    make_publisher, make_relay, make_subscriber
):
    publisher = make_publisher(replay_bytes=20_000, config=SMALL)
    relay = make_relay(publisher.endpoint)
    publisher.publish("t", 0)
    relay.wait_for_streams(1, timeout=60)
    for number in range(1, 20_000):
        publisher.publish("t", number)
        if number % 500 == 0:
            has(relay, number - 200)
    publisher.flush()
    has(relay, 20_000)
    assert publisher.stats().messages_evicted > 10_000
    subscriber = make_subscriber([publisher.endpoint, relay.endpoint], start=0)
    assert take(subscriber, 20_000) == list(range(20_000))
    stats = balanced(subscriber, 20_000)
    assert stats.repaired["relay"] > 10_000
    earliest = make_subscriber([publisher.endpoint, relay.endpoint], start="earliest")
    assert take(earliest, 20_000) == list(range(20_000))


def test_one_relay_has_several_publishers_and_sees_new_ones(
    make_publisher, make_relay, make_subscriber
):
    publishers = [make_publisher(lasting_endpoint(), name=f"p{index}") for index in range(3)]
    relay = make_relay([publisher.endpoint for publisher in publishers])
    subscriber = make_subscriber(relay.endpoint)
    for publisher in publishers:
        publisher.wait_for_subscribers(1, timeout=60)
    eventually(lambda: len(subscriber.stats().publishers) == 3)
    for publisher in publishers:
        publisher.publish_many("t", list(range(1000)))
    messages = [subscriber.receive(60) for _ in range(3000)]
    for publisher in publishers:
        mine = [message.value for message in messages if message.session == publisher.session]
        assert mine == list(range(1000))
    # Another session at the place of the first one: nothing of it is too old.
    endpoint = publishers[0].endpoint
    publishers[0].close()
    again = make_publisher(endpoint, name="again")
    again.publish_many("t", list(range(500)))
    found = [subscriber.receive(60) for _ in range(500)]
    assert [message.sequence for message in found] == list(range(500))
    assert {message.publisher for message in found} == {"again"}
    balanced(subscriber, 3500)


def ring(make_relay, count):
    """Relays each of which has the next one as its upstream, the last one the first."""
    places = [lasting_endpoint() for _ in range(count)]
    return [
        make_relay(places[(index + 1) % count], places[index], name=f"r{index}")
        for index in range(count)
    ], places


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_loop_is_noticed_and_refused(make_relay, caplog, count):
    with caplog.at_level(logging.WARNING, "p2pmsg"):
        relays, _ = ring(make_relay, count)
        eventually(lambda: any(relay.stats().loops_refused for relay in relays))
        refusing = next(relay for relay in relays if relay.stats().loops_refused)
        eventually(lambda: "a loop" in caplog.text)
    assert len(refusing.stats().refused) <= 1


@pytest.mark.parametrize("with_publisher", [True, False])
def test_a_relay_is_killed_and_goes_on_on_its_log(
    tmp_path, make_child, make_publisher, make_relay, make_subscriber, with_publisher
):
    publisher = make_publisher(config=SMALL)
    publisher.publish_many("t", list(range(4000)))
    endpoint = lasting_endpoint()
    child = make_child("relay", publisher.endpoint, endpoint, str(tmp_path))
    child.line()
    subscriber = make_subscriber(endpoint, start="earliest")
    assert take(subscriber, 4000) == list(range(4000))
    kill(child)
    publisher.publish_many("t", list(range(4000, 6000)))
    if not with_publisher:
        publisher.close(timeout=0.0)
    relay = make_relay(publisher.endpoint, endpoint, log=LogConfig(tmp_path))
    earliest, following = relay.stats().streams[publisher.session, "t"]
    assert earliest == 0
    assert 4000 <= following <= (6000 if with_publisher else 4000)
    late = make_subscriber(endpoint, start="earliest")
    assert take(late, 4000) == list(range(4000))
    if with_publisher:
        eventually(lambda: late.stats().publishers == [publisher.name])
    else:  # a relay that is killed may not have brought a name to its disk yet
        assert late.stats().publishers in ([publisher.name], [""])
    if with_publisher:
        assert take(subscriber, 2000) == list(range(4000, 6000))
        assert take(late, 2000) == list(range(4000, 6000))
        balanced(subscriber, 6000)
    eventually(lambda: relay.stats().repaired["log"])  # counted once it is sent


def test_a_multicast_is_relayed_over_tcp(make_publisher, make_relay, make_subscriber):
    publisher = make_publisher(f"udp://239.255.12.1:{free_port()}?interface=127.0.0.1")
    relay = make_relay(publisher.endpoint)
    publisher.wait_for_subscribers(1, timeout=60)
    publisher.publish_many("t", list(range(5000)))
    has(relay, 5000)
    subscriber = make_subscriber(relay.endpoint, start="earliest")
    assert take(subscriber, 5000) == list(range(5000))
    publisher.publish("t", "large" * 10_000)
    assert subscriber.receive(60).value == "large" * 10_000
    publisher.close(timeout=0.0)
    late = make_subscriber(relay.endpoint, start="earliest")
    assert [late.receive(60).value for _ in range(5000)] == list(range(5000))


@pytest.mark.parametrize("both", [True, False])
def test_a_durable_subscriber_goes_on_at_a_relay(
    tmp_path, make_publisher, make_relay, make_subscriber, both
):
    publisher = make_publisher(name="feed")
    relay = make_relay(publisher.endpoint)
    publisher.publish_many("t", list(range(1000)))
    has(relay, 1000)
    places = [publisher.endpoint, relay.endpoint] if both else relay.endpoint
    cursor = tmp_path / "cursor"
    first = make_subscriber(places, start="earliest", cursor=cursor)
    assert take(first, 600) == list(range(600))
    first.commit()
    first.close()
    publisher.publish_many("t", list(range(1000, 1500)))
    has(relay, 1500)
    publisher.close(timeout=0.0)
    second = make_subscriber(places, cursor=cursor)
    assert take(second, 900) == list(range(600, 1500))
    assert second.stats().lost == 0


def test_closing_waits_for_those_who_miss_something(make_publisher, make_relay, make_subscriber):
    publisher = make_publisher(config=SMALL)
    relay = make_relay(publisher.endpoint)
    subscriber = make_subscriber(relay.endpoint, start="earliest")
    relay.wait_for_streams(0)
    publisher.publish_many("t", list(range(5000)))
    has(relay, 5000)
    relay.wait_for_subscribers(1, timeout=60)
    relay.close(timeout=1000.0)  # longer than a test may take
    assert relay.stats().undelivered == 0
    assert take(subscriber, 5000) == list(range(5000))
    with pytest.raises(p2pmsg.ClosedError):
        relay.wait_for_subscribers(2)


def test_a_full_log_holds_the_relay_up_and_says_so(tmp_path, make_publisher, make_relay, caplog):
    publisher = make_publisher()
    log = tmp_path / "log"
    relay = make_relay(publisher.endpoint, log=LogConfig(log, segment_bytes=4096))
    publisher.publish("t", b"x" * 100)
    has(relay, 1)

    def is_gone():
        shutil.rmtree(log, ignore_errors=True)  # the relay may just be writing its metadata
        return not log.exists()

    eventually(is_gone)
    with caplog.at_level(logging.ERROR, "p2pmsg"):
        for _ in range(100):
            publisher.publish("t", b"x" * 1000)
        publisher.flush()
        eventually(lambda: "cannot keep" in caplog.text)
    assert all(following < 101 for _, following in relay.stats().streams.values())
    with pytest.raises(p2pmsg.errors.LogFailedError):
        relay.close(timeout=0.0)


WRONG = {
    "no upstream": ([[], LOOPBACK], {}, "endpoints must be at least one"),
    "an upstream that is none": (["nowhere", LOOPBACK], {}, "nowhere"),
    "an endpoint that is none": ([LOOPBACK, "tcp://x"], {}, "tcp://x"),
    "a topic": (["tcp://127.0.0.1:1", LOOPBACK], {"topics": [3]}, "topics must be"),
    "a log": (["tcp://127.0.0.1:1", LOOPBACK], {"log": 5}, "log must be a LogConfig or a str"),
    "a datagram endpoint": (
        ["tcp://127.0.0.1:1", "udp://239.0.0.1:9999"], {}, "for a relay",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "options", "text"), WRONG.values(), ids=WRONG)
def test_wrong_arguments(arguments, options, text):
    if arguments[0] == LOOPBACK:
        arguments[0] = "tcp://127.0.0.1:1"
    with pytest.raises(p2pmsg.ConfigError, match=text):
        Relay(*arguments, **options)


def test_a_publishers_log_is_refused(tmp_path):
    with p2pmsg.Publisher(LOOPBACK, log=LogConfig(tmp_path)) as publisher:
        publisher.publish("t", 1)
    with pytest.raises(p2pmsg.ConfigError, match="this is a publisher's"):
        Relay("tcp://127.0.0.1:1", LOOPBACK, log=LogConfig(tmp_path))


PATIENT = SubscriberConfig(repair_timeout=60.0)
"""On a busy machine the next one is killed before the one that was killed has caught up."""


@pytest.mark.rounds(2, 60)
def test_nothing_is_missing_whichever_is_killed(tmp_path, make_child, make_subscriber, rounds):
    rng = random.Random(8)  # one whose first two rounds kill each of them once
    at, place = lasting_endpoint(), lasting_endpoint()

    def publisher():
        # With pauses: more than the subscriber takes would only keep the machine busy.
        child = make_child("publish_logged", at, str(tmp_path / "feed"), "interval", 0.002)
        child.line()
        return child

    def relay():
        child = make_child("relay", at, place, str(tmp_path / "relay"))
        child.line()
        return child

    children = {publisher: publisher(), relay: relay()}
    subscriber = make_subscriber(place, start=0, config=PATIENT)
    expected = 0
    for _ in range(rounds):
        for _ in range(rng.randrange(200, 2000)):
            assert subscriber.receive(60).sequence == expected
            expected += 1
        who = rng.choice([publisher, relay])
        children[who].signal(signal.SIGKILL)
        children[who].wait()
        children[who] = who()
    for _ in range(2000):
        assert subscriber.receive(60).sequence == expected
        expected += 1
    stats = subscriber.stats()
    assert (stats.lost, stats.balanced) == (0, True)


FEED = "mold://239.192.77.5:{}?interface=127.0.0.1&request=127.0.0.1:{}"
COUNT = 500


def test_a_mold_feed_is_logged_and_served_on_after_it_has_ended(tmp_path, make_subscriber):
    feed = FEED.format(free_port(), free_port())
    values = [b"%d" % number for number in range(COUNT)]
    with Relay([feed], "tcp://127.0.0.1:0", log=LogConfig(tmp_path)) as relay:
        with MoldPublisher(feed, session="FEED") as publisher:
            first = make_subscriber(relay.endpoint, start="earliest")
            for value in values:
                publisher.publish(value)
            messages = [first.receive(60) for _ in values]
        assert [message.value for message in messages] == values
        assert [message.sequence for message in messages] == list(range(1, COUNT + 1))
        assert first.stats().lost == 0

    with Relay([feed], "tcp://127.0.0.1:0", log=LogConfig(tmp_path)) as again:
        with RangeReader(again.endpoint) as reader:
            (topic, head), *others = reader.heads(60).streams.items()
            assert (head.earliest, head.next, others) == (1, COUNT + 1, [])
            batches = reader.fetch(topic, 1, COUNT + 1)
            assert [message.value for batch in batches for message in batch] == values
        assert isinstance(again.stats(), p2pmsg.relay.RelayStats)
