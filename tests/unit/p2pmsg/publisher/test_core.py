from datetime import date
from random import Random
from types import SimpleNamespace

import pytest

from p2pmsg import codec
from p2pmsg.config import PublisherConfig
from p2pmsg.errors import ConfigError
from p2pmsg.multicast.sender import MulticastSender
from p2pmsg.publisher.core import PublisherCore
from p2pmsg.wire import Frame, Kind
from tests.unit.p2pmsg.publisher.served import take_sent

MS = 1_000_000
WALL_NS = 1_700_000_000 * 10**9


def core(**options):
    gather_after = options.pop("gather_after", 0)
    config = PublisherConfig(**options)
    return PublisherCore(
        name="feed",
        session=9,
        recovery="memory://r",
        config=config,
        now_ns=0,
        gather_after=gather_after,
    )


def publish(publisher, *values, topic="t", now_ns=0):
    for value in values:
        sequence = publisher.publish(topic, value, None, None, None, now_ns=now_ns, wall_ns=WALL_NS)
    return sequence


def sent(publisher):
    """(kind, sequence, count) of what goes out on the data path."""
    frames = [Frame(data) for data in take_sent(publisher)]
    return [(Kind(frame.kind).name, frame.sequence, frame.count) for frame in frames]


@pytest.mark.parametrize(
    ("count", "linger", "wait_us"),
    [
        (1, 0.001, 20),  # as long as so many would take at `gather_within`
        (2, 0.001, 40),
        (5, 0.001, 50),  # at most a twentieth of `linger`
        (50, 0.001, 50),
        (90, 0.005, 250),
        (500, 0.001, 500),  # more than one a microsecond is a busy stream
        (5_000, 0.001, 1_000),  # up to `linger`
        (5_000, 0.00005, 50),
        (2, 0.0001, 5),
    ],
)
def test_messages_share_a_frame_for_as_long_as_their_rate_is_worth(count, linger, wait_us):
    publisher = core(linger=linger, gather_within=2e-5)
    publish(publisher, "first", *range(count), now_ns=MS)
    assert sent(publisher) == [("DATA", 0, 1)]
    assert publisher.next_deadline_ns() == MS + wait_us * 1000

    publisher.handle_timer(now_ns=MS + wait_us * 1000 - 1)
    assert sent(publisher) == []
    publisher.handle_timer(now_ns=MS + wait_us * 1000)
    assert sent(publisher) == [("DATA", 1, count)]


class TestSlowSending:
    """A frame to a thousand subscribers takes a millisecond: messages are gathered meanwhile."""

    @pytest.mark.parametrize(("linger", "due_us"), [(0.001, 2_600), (0.0002, 2_300)])
    def test_after_slow_frames_messages_wait_for_as_long_again(self, linger, due_us):
        publisher = core(linger=linger, gather_within=2e-5)
        publish(publisher, "first", now_ns=MS)
        assert sent(publisher) == [("DATA", 0, 1)]
        publisher.on_sent(0, 600_000)
        publisher.on_sent(1_400_000, 2_000_000)

        for number in range(20):
            publish(publisher, number, now_ns=2_100_000 + 10_000 * number)
        gathered = sum(count for _, _, count in sent(publisher))
        if linger == 0.001:
            assert gathered == 0
            assert publisher.next_deadline_ns() == due_us * 1000
            publish(publisher, "one more", now_ns=due_us * 1000 - 1)
            publisher.handle_timer(now_ns=due_us * 1000)
            assert sent(publisher) == [("DATA", 1, 21)]
        else:  # `linger` bounds it
            assert publisher.next_deadline_ns() <= due_us * 1000
            publisher.handle_timer(now_ns=due_us * 1000)
            assert gathered + sum(count for _, _, count in sent(publisher)) == 20

    def test_what_comes_later_goes_out_at_once(self):
        publisher = core()
        publisher.on_sent(0, 600_000)
        publish(publisher, "first", now_ns=MS)
        publisher.on_sent(MS, MS + 600_000)
        publish(publisher, "later", now_ns=MS + 1_200_000)
        assert sent(publisher) == [("DATA", 0, 1), ("DATA", 1, 1)]
        assert publisher.publish_alone("t", "x", None, None, None, 5 * MS, WALL_NS) == 2

    def test_it_holds_for_the_short_way_too(self):
        publisher = core()
        publisher.on_sent(0, 600_000)
        publish(publisher, "first", now_ns=MS)
        publisher.on_sent(MS, MS + 600_000)
        sent(publisher)
        at_ns = MS + 1_100_000
        assert publisher.publish_alone("t", "x", None, None, None, at_ns, WALL_NS) == -1

    @pytest.mark.parametrize("took_us", [[5_000], [10, 5_000], [5_000, 199], [150, 150]])
    def test_a_single_stall_or_quick_frames_change_nothing(self, took_us):
        publisher = core()
        for each in took_us:
            publisher.on_sent(0, each * 1000)
        publish(publisher, "first", now_ns=MS)
        publish(publisher, "second", now_ns=MS + 100_000)
        assert sent(publisher) == [("DATA", 0, 1), ("DATA", 1, 1)]

    @pytest.mark.parametrize(("connections", "frames"), [(63, 21), (64, 2), (1000, 2)])
    def test_with_many_subscribers_a_frame_takes_longer_than_its_sender(self, connections, frames):
        """ZeroMQ's thread sends it, long after the caller has filled a thousand queues."""
        publisher = core(linger=0.001)
        publisher.control.connections = connections
        publish(publisher, "first", now_ns=MS)
        for began_ns in (MS, MS + 90_000):
            publisher.on_sent(began_ns, began_ns + 90_000)
        for number in range(20):
            publish(publisher, number, now_ns=MS + 300_000 + 40_000 * number)
        publisher.handle_timer(now_ns=MS + 1_300_000)
        made = sent(publisher)
        assert sum(count for _, _, count in made) == 21
        assert len(made) == frames
        publish(publisher, "later", now_ns=10 * MS)
        assert sent(publisher) == [("DATA", 21, 1)]

    def test_without_linger_nothing_waits(self):
        publisher = core(linger=0)
        publisher.on_sent(0, 600_000)
        publish(publisher, "first", now_ns=MS)
        publisher.on_sent(MS, MS + 600_000)
        publish(publisher, "second", now_ns=MS + 700_000)
        assert sent(publisher) == [("DATA", 0, 1), ("DATA", 1, 1)]


@pytest.mark.parametrize("gap_us", [1.5, 5, 20, 50])
@pytest.mark.parametrize("burst", [1, 10])
def test_a_publisher_that_is_not_busy_sends_in_time_without_its_timer(gap_us, burst):
    """It looks at the clock often enough, also after a burst that gathered much."""
    publisher = core()
    now_us, published_us, waited_us = 1000.0, [], []
    for number in range(4000):
        if number % 500 >= burst:
            now_us += gap_us
        published_us.append(now_us)
        publish(publisher, b"v" * 128, now_ns=int(now_us * 1000))
        for _, start, count in sent(publisher):
            waited_us += [now_us - each for each in published_us[start : start + count]]
    assert sorted(waited_us)[int(0.99 * len(waited_us))] <= 130 + 8 * gap_us
    assert max(waited_us) <= 1000


@pytest.mark.parametrize("grouped", [False, True], ids=["frames", "datagrams"])
@pytest.mark.parametrize("gap_us", [10, 30, 100, 400])
def test_a_burst_does_not_make_a_calm_stream_gather_permanently(grouped, gap_us):
    """What fills a datagram may be ten messages of 100 µs each."""
    publisher = core(frame_bytes=1400, linger=0.005)
    if grouped:
        config = publisher.config
        publisher.use_multicast(
            MulticastSender(publisher.own, publisher.replay, config, 1400, Random(1))
        )
    publish(publisher, *[b"v" * 100] * 30, now_ns=MS)
    take_sent(publisher)
    for number in range(200):
        publish(publisher, b"v" * 100, now_ns=2 * MS + number * gap_us * 1000)
    counts = [count for _, _, count in sent(publisher)]
    if gap_us < 15:  # gather_within
        assert min(counts[2:-1]) > 5
    else:
        assert counts[0] > 1
        assert set(counts[2:]) == {1}


@pytest.mark.parametrize("linger_ms", [0.5, 1.0, 5.0])
@pytest.mark.parametrize("gap_us", [5, 100, 400])
@pytest.mark.parametrize("value", [1, b"v" * 1000], ids=["small", "large"])
def test_messages_go_in_time_where_the_timer_is_never_handled(linger_ms, gap_us, value):
    """A program that keeps the interpreter to itself starves the thread that handles it."""
    publisher = core(linger=linger_ms / 1000)
    waited_us = []
    published_us = {}
    for number in range(0, 2000, 2):
        now_us = 1000 + number * gap_us
        for one in range(number, number + 2):  # the second one is gathered
            published_us[one] = now_us
            publish(publisher, value, now_ns=now_us * 1000)
        for _, start, count in sent(publisher):
            waited_us += [now_us - published_us[one] for one in range(start, start + count)]
    waited_us += [now_us - published_us[one] for one in range(len(waited_us), 2000)]
    assert max(waited_us) <= 2 * linger_ms * 1000 + 8 * gap_us


@pytest.mark.parametrize("key", [None, "BTCUSDT"])
@pytest.mark.parametrize("size", [100, 3000])
def test_frames_are_full_where_messages_follow_one_another_quickly(key, size):
    publisher, value = core(), b"v" * size
    for number in range(5 * 131_072 // size):
        now_ns = 1000 + number * 250
        publisher.publish("t", value, key, None, None, now_ns=now_ns, wall_ns=WALL_NS)
        publisher.handle_timer(now_ns=now_ns)
    alone, *full = [len(data) for data in take_sent(publisher)]
    assert alone < 2 * size + 100
    assert len(full) >= 4
    assert min(full) > (0.9 if key is None else 0.7) * 131_072  # space for keys is set aside


def test_a_topic_too_many_is_refused_and_the_others_go_on():
    publisher = core(streams_max=2)
    publish(publisher, 0, topic="a")
    publish(publisher, 0, topic="b")
    with pytest.raises(ConfigError, match="streams_max"):
        publish(publisher, 0, topic="c")

    assert publish(publisher, 1, topic="a", now_ns=MS) == 1
    assert publisher.published == 3


class OfAttrs:
    __attrs_attrs__ = (SimpleNamespace(name="_side"),)
    _side = "buy"


@pytest.mark.parametrize("part", [date.max, OfAttrs()], ids=["date", "private field"])
@pytest.mark.parametrize(("gap_ns", "is_sampled"), [(1_000, True), (3_000, False)])
def test_only_at_full_rate_are_values_within_a_frame_not_looked_at(
    caplog, gap_ns, is_sampled, part
):
    publisher, now_ns = core(linger=1), MS
    for _ in range(100):
        now_ns += gap_ns
        publish(publisher, {"price": 1}, now_ns=now_ns)
        if "t" in publisher.open_batches:
            assert publisher.open_batches["t"].encode_into != codec.encoder.encode_into
    publisher.flush(now_ns=now_ns)
    publish(publisher, {"price": 2}, now_ns=now_ns)
    assert (publisher.streams["t"].rushed_ns is not None) == is_sampled
    batch = publisher.open_batches["t"]
    assert (batch.encode_into == codec.encoder.encode_into) == is_sampled

    publish(publisher, {"price": part}, now_ns=now_ns)
    assert batch.encode_into != codec.encoder.encode_into
    assert ("a value has a Decimal or the like" in caplog.text) == is_sampled
    for _ in range(100):
        publish(publisher, {"price": 1}, now_ns=now_ns)
    publisher.flush(now_ns=now_ns)
    publish(publisher, {"price": 1}, now_ns=now_ns)
    assert publisher.open_batches["t"].encode_into != codec.encoder.encode_into


def test_of_a_multicast_nothing_is_announced_that_has_not_left():
    """It would be asked for and sent twice, the first time past the pace and the receivers."""
    publisher = core()
    publisher.use_multicast(
        MulticastSender(publisher.own, publisher.replay, publisher.config, 1400, Random(1))
    )
    for topic in ("a", "ab", "a", "b"):
        publish(publisher, *[b"v" * 1000] * 2, topic=topic, now_ns=MS)
        publisher.flush(now_ns=MS)
    assert len(publisher.outbox) == 8
    all_sealed = {"a": (0, 4), "ab": (0, 2), "b": (0, 2)}

    def heads():
        return {topic: publisher.own.head(topic)[1] for topic in all_sealed}

    assert heads() == {"a": 0, "ab": 0, "b": 0}
    for left, expected in enumerate([(1, 0, 0), (2, 0, 0), (2, 1, 0), (2, 2, 0), (3, 2, 0)], 1):
        publisher.outbox.popleft()
        assert (left, *heads().values()) == (left, *expected)
    assert publisher.heads() == all_sealed
    publish(publisher, b"another", topic="b", now_ns=MS)
    assert heads() == {"a": 3, "ab": 2, "b": 0}
    publisher.begin_close(now_ns=MS)  # the rest may never leave
    assert heads() == {"a": 4, "ab": 2, "b": 3}
