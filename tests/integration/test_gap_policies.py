"""What is done about missing messages, topic by topic."""

import itertools
import time

import pytest

import p2pmsg
from p2pmsg.testing import lose_datagrams
from tests.integration.peers import check_ledger, eventually, take
from tests.integration.test_udp_multicast import GROUP, free_port


@pytest.fixture
def place():
    return GROUP.format(200, free_port())


def lose_one(publisher, subscriber, topic, value, **options):
    lose_datagrams(subscriber, 1.0)
    publisher.publish(topic, value, **options)
    publisher.flush()
    time.sleep(0.005)
    lose_datagrams(subscriber, 0)


def test_skip_goes_on_at_once_and_hands_over_what_comes_late(
    make_publisher, make_subscriber, place
):
    publisher = make_publisher(place)
    skipping = make_subscriber(place, joins=publisher, on_gap={"t": "skip"})
    waiting = make_subscriber(place, joins=publisher)
    publisher.publish("t", 0)
    assert skipping.receive(5).value == 0
    for one in (skipping, waiting):
        lose_datagrams(one, 1.0)
    publisher.publish("t", 1)
    publisher.flush()
    time.sleep(0.005)
    for one in (skipping, waiting):
        lose_datagrams(one, 0)
    publisher.publish("t", 2)
    found = [skipping.receive(5) for _ in range(2)]  # the other one has it repaired, for both
    assert [(message.value, message.late) for message in found] == [(2, False), (1, True)]
    assert [message.value for message in take(waiting, 3)] == [0, 1, 2]
    stats = check_ledger(skipping, lost=0, delivered=3)
    assert stats.late == 1
    publisher.publish("t", 3)
    message = skipping.receive(5)
    assert (message.value, message.sequence, message.late) == (3, 3, False)


def test_each_topic_has_its_policy(make_publisher, make_subscriber, place):
    publisher = make_publisher(place)
    told = []
    policies = {"trades": "wait", "quotes*": "skip", "quotes.us": told.append}
    subscriber = make_subscriber(place, joins=publisher, on_gap=policies)
    for topic in ("trades", "quotes.eu"):
        publisher.publish(topic, 0)
        lose_one(publisher, subscriber, topic, 1)
        publisher.publish(topic, 2)
    messages = take(subscriber, 5)
    by_topic = {
        topic: [message.value for message in messages if message.topic == topic]
        for topic in ("trades", "quotes.eu")
    }
    assert by_topic == {"trades": [0, 1, 2], "quotes.eu": [0, 2]}
    stats = check_ledger(subscriber)
    assert [(loss.topic, loss.reason) for loss in stats.losses] == [("quotes.eu", "skipped")]


@pytest.mark.parametrize("scheme", ["udp", "tcp"])
def test_a_slow_reader_gets_the_newest_value_of_each_key(
    make_publisher, make_subscriber, place, scheme
):
    publisher = make_publisher(place) if scheme == "udp" else make_publisher()
    subscriber = make_subscriber(publisher.endpoint, joins=publisher, on_gap={"book": "latest"})
    for number in range(3000):
        publisher.publish("book", number, key=f"k{number % 3}")
        publisher.publish("all", number)
    publisher.flush()
    eventually(lambda: subscriber.stats().published == 6000)
    newest, others = {}, []
    while subscriber.stats().outstanding:
        for message in subscriber.receive_many(timeout=5):
            if message.topic == "book":
                newest[message.key] = message.value
                assert message.sequence == message.value
            else:
                others.append(message.value)
    assert newest == {"k0": 2997, "k1": 2998, "k2": 2999}
    assert others == list(range(3000))
    stats = check_conflated(subscriber)
    assert stats.conflated > 2000


def check_conflated(subscriber):
    stats = subscriber.stats()
    assert stats.balanced
    total = stats.delivered + stats.outstanding + stats.lost + stats.conflated
    assert stats.published == total
    return stats


def test_a_reader_that_sleeps_is_conflated_and_holds_nobody_up(make_publisher, make_subscriber):
    """Far more than its room goes by, and what it holds stays within that."""
    publisher = make_publisher()
    subscriber = make_subscriber(
        publisher.endpoint, joins=publisher, on_gap="latest", receive_bytes=256 * 1024
    )
    for number in range(200):
        values = [b"%06d" % number + bytes(1000)] * 50
        publisher.publish_many("book", values, keys=[f"k{index}" for index in range(50)])
        assert subscriber.stats().bytes_held < 1024 * 1024
    eventually(lambda: subscriber.stats().published == 10_000)
    newest = {}
    while subscriber.stats().outstanding:
        for message in subscriber.receive_many(timeout=5):
            newest[message.key] = message.value[:6]
    assert newest == {f"k{index}": b"000199" for index in range(50)}
    check_conflated(subscriber)


KEYS = [f"k{index}" for index in range(100)]
READERS = {
    "receive": lambda subscriber: (subscriber.receive(5) for _ in itertools.count()),
    "for": iter,
    "receive_many": lambda subscriber: itertools.chain.from_iterable(
        subscriber.receive_many(1, timeout=5) for _ in itertools.count()
    ),
}


@pytest.mark.parametrize("scheme", ["udp", "tcp"])
@pytest.mark.parametrize("how", READERS)
def test_who_is_slow_over_a_batch_gets_what_is_newest_by_then(
    make_publisher, make_subscriber, place, how, scheme
):
    publisher = make_publisher(place) if scheme == "udp" else make_publisher()
    subscriber = make_subscriber(publisher.endpoint, joins=publisher, on_gap="latest")

    def publish(turn):
        publisher.publish_many("book", [turn] * len(KEYS), keys=KEYS)
        eventually(lambda: subscriber.stats().published == len(KEYS) * (turn + 1))
        time.sleep(0.002)  # a batch of 100 is folded anew after 1 ms

    publish(0)
    reader = READERS[how](subscriber)
    got = [next(reader)]
    for turn in range(1, 6):
        publish(turn)
        got += [next(reader) for _ in range(10)]
        check_conflated(subscriber)
    got += [next(reader) for _ in range(subscriber.stats().outstanding)]

    values = [message.value for message in got]
    # What is 50 messages old when its turn comes is never seen: after the first, all is newest.
    assert values == [0] + [turn for turn in range(1, 6) for _ in range(10)] + [5] * 90
    assert {message.key: message.value for message in got} == dict.fromkeys(KEYS, 5)
    sequences = [message.sequence for message in got]
    assert sequences == sorted(set(sequences))
    stats = check_conflated(subscriber)
    assert (stats.delivered, stats.outstanding, stats.conflated) == (141, 0, 459)


def test_a_cursor_keeps_what_a_batch_that_was_folded_anew_had_left(make_publisher, tmp_path):
    publisher = make_publisher("tcp://127.0.0.1:0")
    options = {"start": "earliest", "on_gap": "latest", "cursor": tmp_path / "a.cursor"}
    with p2pmsg.Subscriber(publisher.endpoint, **options) as subscriber:
        publisher.wait_for_subscribers(1, timeout=5)
        publisher.publish_many("t", range(4), keys=["a", "b", "c", "d"])
        eventually(lambda: subscriber.stats().outstanding == 4)
        assert subscriber.receive(5).key == "a"
        publisher.publish("t", 4, key="c")
        eventually(lambda: subscriber.stats().published == 5)
        time.sleep(0.002)
        message = subscriber.receive(5)
        assert (message.key, message.sequence) == ("b", 1)
        subscriber.commit()
        assert subscriber.stats().streams[0].committed == 3  # d is the oldest that is left
    with p2pmsg.Subscriber(publisher.endpoint, **options) as subscriber:
        eventually(lambda: subscriber.stats().outstanding == 2)
        found = [subscriber.receive(5) for _ in range(2)]
        assert [(message.key, message.value) for message in found] == [("d", 3), ("c", 4)]


@pytest.mark.parametrize(
    ("on_gap", "message"), [("never", "latest"), ({"t": "never"}, "latest"), ({5: "wait"}, "topic")]
)
def test_what_is_no_policy_is_refused(on_gap, message):
    with pytest.raises(p2pmsg.ConfigError, match=message):
        p2pmsg.Subscriber("tcp://127.0.0.1:5", on_gap=on_gap)
    with pytest.raises(p2pmsg.ConfigError, match="start"):
        p2pmsg.Subscriber("tcp://127.0.0.1:5", on_gap={"a": "skip"}, start="earliest")


def test_latest_with_a_cursor_comes_again_from_the_oldest_that_was_not_returned(
    make_publisher, tmp_path
):
    publisher = make_publisher("tcp://127.0.0.1:0")
    options = {"start": "earliest", "on_gap": "latest", "cursor": tmp_path / "a.cursor"}
    with p2pmsg.Subscriber(publisher.endpoint, **options) as subscriber:
        publisher.wait_for_subscribers(1, timeout=5)
        publisher.publish_many("t", range(300), keys=["a"] * 100 + ["b"] * 100 + ["c"] * 100)
        publisher.publish_many("t", range(300, 400), keys=["a"] * 100)
        eventually(lambda: subscriber.stats().outstanding == 400)
        assert [subscriber.receive(5).sequence for _ in range(2)] == [199, 299]
        subscriber.commit()
        stats = subscriber.stats()
        assert (stats.delivered, stats.conflated, stats.outstanding) == (2, 397, 1)
        assert stats.streams[0].committed == 399
        assert stats.balanced
    with p2pmsg.Subscriber(publisher.endpoint, **options) as subscriber:
        batch = subscriber.receive_many(timeout=5)
        assert [(message.key, message.sequence) for message in batch] == [("a", 399)]
        subscriber.commit(batch)
        assert subscriber.stats().streams[0].committed == 400


@pytest.mark.parametrize("on_gap", ["skip", {"quotes*": "skip"}], ids=["all", "a topic"])
def test_skip_with_a_cursor_is_refused(tmp_path, on_gap):
    with pytest.raises(p2pmsg.ConfigError, match="without a cursor"):
        p2pmsg.Subscriber("tcp://127.0.0.1:1", on_gap=on_gap, cursor=tmp_path / "a.cursor")
