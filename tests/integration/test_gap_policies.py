"""What `on_gap` does about messages that cannot be repaired, topic by topic: exact ranges."""

import logging
import struct
import time

import pytest

import p2pmsg
from p2pmsg.testing import lose_datagrams
from p2pmsg.wire import Kind
from tests.endpoints import free_port
from tests.integration.inside import unheard_requests
from tests.integration.peers import (
    TOPIC,
    check_exact,
    check_ledger,
    eventually,
    ranges,
    take,
    take_all,
)
from tests.integration.test_udp_multicast import GROUP


@pytest.fixture
def place():
    return GROUP.format(200, free_port())


def test_skip_goes_on_at_once_and_hands_over_what_comes_late(
    make_publisher, make_subscriber, place
):
    publisher = make_publisher(place)
    skipping = make_subscriber(place, joins=publisher, on_gap={"t": "skip"})
    waiting = make_subscriber(place, joins=publisher)
    publisher.publish("t", 0)
    assert skipping.receive(60).value == 0
    for one in (skipping, waiting):
        lose_datagrams(one, 1.0)
    publisher.publish("t", 1)
    publisher.flush()
    eventually(lambda: not publisher.stats().unsent_frames)
    time.sleep(0.05)
    lose_datagrams(skipping, 0)
    publisher.publish("t", 2)
    found = [skipping.receive(60)]
    lose_datagrams(waiting, 0)  # it learns only now of what it lacks
    found.append(skipping.receive(60))  # the other one has it repaired, for both
    assert [(message.value, message.late) for message in found] == [(2, False), (1, True)]
    assert [message.value for message in take(waiting, 3)] == [0, 1, 2]
    stats = check_ledger(skipping, lost=0, delivered=3)
    assert stats.late == 1
    publisher.publish("t", 3)
    message = skipping.receive(60)
    assert (message.value, message.sequence, message.late) == (3, 3, False)


@pytest.mark.parametrize("scheme", ["udp", "tcp"])
def test_a_slow_reader_gets_the_newest_value_of_each_key(
    make_publisher, make_subscriber, place, scheme
):
    publisher = make_publisher(place) if scheme == "udp" else make_publisher()
    subscriber = make_subscriber(publisher.endpoint, joins=publisher, on_gap={"book": "latest"})
    for number in range(900):
        publisher.publish("book", number, key=f"k{number % 3}")
        publisher.publish("all", number)
    publisher.flush()
    eventually(lambda: subscriber.stats().published == 1800)
    newest, others = {}, []
    while subscriber.stats().outstanding:
        for message in subscriber.receive_many(timeout=60):
            if message.topic == "book":
                newest[message.key] = message.value
                assert message.sequence == message.value
            else:
                others.append(message.value)
    assert newest == {"k0": 897, "k1": 898, "k2": 899}
    assert others == list(range(900))
    stats = check_conflated(subscriber)
    assert stats.conflated > 600


def check_conflated(subscriber):
    stats = subscriber.stats()
    assert stats.balanced
    total = stats.delivered + stats.outstanding + stats.lost + stats.conflated
    assert stats.published == total
    return stats


def test_a_cursor_keeps_what_a_batch_that_was_folded_again_had_left(make_publisher, tmp_path):
    publisher = make_publisher("tcp://127.0.0.1:0")
    options = {"start": "earliest", "on_gap": "latest", "cursor": tmp_path / "a.cursor"}
    with p2pmsg.Subscriber(publisher.endpoint, **options) as subscriber:
        publisher.wait_for_subscribers(1, timeout=60)
        publisher.publish_many("t", range(4), keys=["a", "b", "c", "d"])
        eventually(lambda: subscriber.stats().outstanding == 4)
        assert subscriber.receive(60).key == "a"
        publisher.publish("t", 4, key="c")
        eventually(lambda: subscriber.stats().published == 5)
        time.sleep(0.002)
        message = subscriber.receive(60)
        assert (message.key, message.sequence) == ("b", 1)
        subscriber.commit()
        assert subscriber.stats().streams[0].committed == 3  # d is the oldest that is left
    with p2pmsg.Subscriber(publisher.endpoint, **options) as subscriber:
        eventually(lambda: subscriber.stats().outstanding == 2)
        found = [subscriber.receive(60) for _ in range(2)]
        assert [(message.key, message.value) for message in found] == [("d", 3), ("c", 4)]


@pytest.mark.parametrize(
    ("on_gap", "text"), [("never", "latest"), ({"t": "never"}, "latest"), ({5: "wait"}, "on_gap")]
)
def test_what_is_no_policy_is_refused(on_gap, text):
    with pytest.raises(p2pmsg.ConfigError, match=text):
        p2pmsg.Subscriber("tcp://127.0.0.1:5", on_gap=on_gap)
    with pytest.raises(p2pmsg.ConfigError, match="start"):
        p2pmsg.Subscriber("tcp://127.0.0.1:5", on_gap={"a": "skip"}, start="earliest")


def test_latest_with_a_cursor_comes_again_from_the_oldest_that_was_not_returned(
    make_publisher, tmp_path
):
    publisher = make_publisher("tcp://127.0.0.1:0")
    options = {"start": "earliest", "on_gap": "latest", "cursor": tmp_path / "a.cursor"}
    with p2pmsg.Subscriber(publisher.endpoint, **options) as subscriber:
        publisher.wait_for_subscribers(1, timeout=60)
        publisher.publish_many("t", range(300), keys=["a"] * 100 + ["b"] * 100 + ["c"] * 100)
        publisher.publish_many("t", range(300, 400), keys=["a"] * 100)
        eventually(lambda: subscriber.stats().outstanding == 400)
        assert [subscriber.receive(60).sequence for _ in range(2)] == [199, 299]
        subscriber.commit()
        stats = subscriber.stats()
        assert (stats.delivered, stats.conflated, stats.outstanding) == (2, 397, 1)
        assert stats.streams[0].committed == 399
        assert stats.balanced
    with p2pmsg.Subscriber(publisher.endpoint, **options) as subscriber:
        batch = subscriber.receive_many(timeout=60)
        assert [(message.key, message.sequence) for message in batch] == [("a", 399)]
        subscriber.commit(batch)
        assert subscriber.stats().streams[0].committed == 400


PREFIX = TOPIC.encode() + b"\0"


class DropRange:
    """Drops DATA frames of certain sequences on the data path.

    And heartbeats amid such a range, which come where publishing pauses: they would part it in two.
    """

    def __init__(self, *sequences):
        self.sequences = set(sequences)

    def __call__(self, prefix):
        if not prefix.startswith(PREFIX):
            return False
        (sequence,) = struct.unpack_from("!Q", prefix, len(PREFIX) + 14)
        kind = prefix[len(PREFIX) + 3]
        if kind == Kind.HEARTBEAT:
            return {sequence - 1, sequence} <= self.sequences
        return kind == Kind.DATA and sequence in self.sequences


@pytest.fixture
def lossy(make_publisher, make_subscriber, make_proxy):
    """A publisher that keeps two messages, and a subscriber that loses certain ones."""

    def make(*lost, replay_bytes=2_500, **options):
        publisher = make_publisher(replay_bytes=replay_bytes, name="source")
        proxy = make_proxy(publisher, drop=DropRange(*lost))
        return publisher, make_subscriber(proxy.endpoint, joins=publisher, **options), proxy

    return make


def publish(publisher, start, stop):
    """Publish frames of one message each, 1,000 bytes and more."""
    for n in range(start, stop):
        publisher.publish(TOPIC, n, headers={"padding": bytes(1000)})
        publisher.flush()


LOST = [(3, 5, "evicted"), (9, 10, "evicted")]
REST = [0, 1, 2, 5, 6, 7, 8, *range(10, 20)]


def publish_past(publisher, proxy):
    """Publish past what is kept before the subscriber sees any of it."""
    proxy.stall()
    publish(publisher, 0, 20)
    proxy.resume()


def test_wait_logs_the_loss_and_goes_on(lossy, caplog):
    publisher, subscriber, proxy = lossy(3, 4, 9)
    with caplog.at_level(logging.WARNING, "p2pmsg"):
        publish_past(publisher, proxy)
        messages = take_all(subscriber, 20)
    check_exact(messages, REST)
    stats = check_ledger(subscriber, delivered=17, lost=3, outstanding=0)
    assert ranges(stats.losses) == LOST
    assert proxy.frames_dropped >= 3
    logged = [record.getMessage() for record in caplog.records]
    assert sum("lost" in text and "'trades'" in text for text in logged) == 2


def test_raise_names_the_loss_and_the_iterator_goes_on(lossy):
    publisher, subscriber, proxy = lossy(3, 4, 9, on_gap="raise")
    publish_past(publisher, proxy)
    messages, reports = [], []
    iterator = iter(subscriber)
    while len(messages) < 17:
        try:
            messages.append(next(iterator))
        except p2pmsg.MessagesLostError as error:
            reports.append((len(messages), error.report))
            assert "lost" in str(error)
            assert "evicted" in str(error)
    check_exact(messages, REST)
    assert ranges(report for _, report in reports) == LOST
    assert [at for at, _ in reports] == [3, 7]  # each in its place in the order
    report = reports[0][1]
    assert (report.topic, report.publisher, report.count) == (TOPIC, "source", 2)
    assert report.session == publisher.session
    check_ledger(subscriber, delivered=17, lost=3, outstanding=0)


def test_a_callable_gets_the_report_in_its_place(lossy):
    order = []
    publisher, subscriber, proxy = lossy(
        3, 4, 9, on_gap=lambda report: order.append((report.start, report.stop))
    )
    publish_past(publisher, proxy)
    while len(order) < 19:
        order.append(subscriber.receive(60).sequence)
    assert order == [0, 1, 2, (3, 5), 5, 6, 7, 8, (9, 10), *range(10, 20)]


def test_a_callable_that_raises_does_not_end_the_iterator(lossy):
    def refuse(report):
        raise KeyError(report.start)

    publisher, subscriber, proxy = lossy(3, 4, 9, on_gap=refuse)
    publish_past(publisher, proxy)
    messages, errors = [], []
    iterator = iter(subscriber)
    while len(messages) < 17:
        try:
            messages.append(next(iterator))
        except KeyError as error:
            errors.append(error.args[0])
    check_exact(messages, REST)
    assert errors == [3, 9]


def test_what_is_repaired_is_no_loss(lossy):
    publisher, subscriber, _ = lossy(3, 4, 9, 19, on_gap="raise", replay_bytes=10**6)
    publish(publisher, 0, 20)
    check_exact(take(subscriber, 20))
    stats = check_ledger(subscriber, delivered=20, outstanding=0, lost=0)
    assert stats.repaired == {"buffer": 4}
    assert stats.repair_latency.count >= 1
    # One may have been asked for again before it came.
    eventually(lambda: publisher.stats().messages_repaired == 4 + subscriber.stats().duplicates)


def test_the_deadline_passes_where_nobody_answers(make_publisher, make_subscriber, make_proxy):
    publisher = make_publisher(recovery_endpoint="tcp://127.0.0.1:0")
    proxy = make_proxy(publisher, drop=DropRange(3, 4))
    subscriber = make_subscriber(
        proxy.endpoint, joins=publisher, on_gap="raise", repair_timeout=0.3
    )
    begun = time.monotonic()
    with unheard_requests(publisher):
        publish(publisher, 0, 10)
        check_exact(take(subscriber, 3))
        with pytest.raises(p2pmsg.MessagesLostError) as lost:
            subscriber.receive(60)
    assert time.monotonic() - begun >= 0.3
    assert ranges([lost.value.report]) == [(3, 5, "timeout")]
    check_exact(take(subscriber, 5), range(5, 10))
    check_ledger(subscriber, delivered=8, outstanding=0, lost=2)
