from datetime import date
from random import Random
from types import SimpleNamespace

import pytest

from p2pmsg import codec
from p2pmsg.config import PublisherConfig
from p2pmsg.errors import ConfigError, MessageError
from p2pmsg.multicast.sender import MulticastSender
from p2pmsg.publisher.core import PublisherCore
from p2pmsg.wire import FLAG_CLOSING, Frame, Kind, decode_columns, encoder

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
    frames = [Frame(data) for data in publisher.frames_to_send()]
    return [(Kind(frame.kind).name, frame.sequence, frame.count) for frame in frames]


def test_a_message_of_an_idle_stream_goes_out_at_once():
    publisher = core()
    assert publish(publisher, "a", now_ns=MS) == 0

    (data,) = publisher.frames_to_send()
    frame = Frame(data)
    assert (frame.topic, frame.session, frame.sequence, frame.count) == ("t", 9, 0, 1)
    assert decode_columns(frame)[0] == ["a"]
    assert frame.base_timestamp_ns == WALL_NS
    assert not publisher.open_batches


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
        publisher.note_sent(0, 600_000)
        publisher.note_sent(1_400_000, 2_000_000)

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
        publisher.note_sent(0, 600_000)
        publish(publisher, "first", now_ns=MS)
        publisher.note_sent(MS, MS + 600_000)
        publish(publisher, "later", now_ns=MS + 1_200_000)
        assert sent(publisher) == [("DATA", 0, 1), ("DATA", 1, 1)]
        assert publisher.publish_alone("t", "x", None, None, None, 5 * MS, WALL_NS) == 2

    def test_it_holds_for_the_short_way_too(self):
        publisher = core()
        publisher.note_sent(0, 600_000)
        publish(publisher, "first", now_ns=MS)
        publisher.note_sent(MS, MS + 600_000)
        sent(publisher)
        at_ns = MS + 1_100_000
        assert publisher.publish_alone("t", "x", None, None, None, at_ns, WALL_NS) == -1

    @pytest.mark.parametrize("took_us", [[5_000], [10, 5_000], [5_000, 199], [150, 150]])
    def test_a_single_stall_or_quick_frames_change_nothing(self, took_us):
        publisher = core()
        for each in took_us:
            publisher.note_sent(0, each * 1000)
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
            publisher.note_sent(began_ns, began_ns + 90_000)
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
        publisher.note_sent(0, 600_000)
        publish(publisher, "first", now_ns=MS)
        publisher.note_sent(MS, MS + 600_000)
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


def test_a_stream_is_idle_again_after_gather_within():
    publisher = core(gather_within=5e-05)
    publish(publisher, "a", now_ns=MS)
    publish(publisher, "b", now_ns=MS + 50_000)
    assert sent(publisher) == [("DATA", 0, 1), ("DATA", 1, 1)]


@pytest.mark.parametrize("grouped", [False, True], ids=["frames", "datagrams"])
@pytest.mark.parametrize("gap_us", [10, 30, 100, 400])
def test_a_burst_does_not_make_a_calm_stream_gather_permanently(grouped, gap_us):
    """What fills a datagram may be ten messages of 100 µs each."""
    publisher = core(frame_bytes=1400, linger=0.005)
    if grouped:
        config = publisher.config
        publisher.use_multicast(
            MulticastSender(publisher, publisher.replay, config, 1400, Random(1))
        )
    publish(publisher, *[b"v" * 100] * 30, now_ns=MS)
    publisher.frames_to_send()
    for number in range(200):
        publish(publisher, b"v" * 100, now_ns=2 * MS + number * gap_us * 1000)
    counts = [count for _, _, count in sent(publisher)]
    if gap_us < 15:  # gather_within
        assert min(counts[2:-1]) > 5
    else:
        assert counts[0] > 1
        assert set(counts[2:]) == {1}


class TestMessagesThatCameLate:
    """What a program sends together, since it slept for too long, waits for no company."""

    @pytest.mark.parametrize("together", [2, 8, 32])
    def test_a_stream_that_is_slow_gathers_nothing(self, together):
        publisher, now_ns = core(gather_after=32), MS
        for _ in range(50):
            publish(publisher, *range(together), now_ns=now_ns)
            now_ns += together * 20_000  # less than one each `gather_within`
        assert {count for _, _, count in sent(publisher)} == {1}
        assert not publisher.open_batches

    def test_what_comes_faster_is_gathered_after_so_many(self):
        publisher = core(gather_after=32)
        publish(publisher, *range(100), now_ns=MS)
        assert [count for _, _, count in sent(publisher)] == [1] * 33
        assert publisher.open_batches["t"].count == 67

    def test_a_stream_that_goes_on_being_fast_has_no_frames_of_one(self):
        """Or its receiver had 8 µs a frame to bear, and would fall back."""
        publisher, now_ns = core(gather_after=32), MS
        for _ in range(500):  # 200,000 a second, 20 at a time
            publish(publisher, *[b"v" * 128] * 20, now_ns=now_ns)
            now_ns += 100_000
        counts = [count for _, _, count in sent(publisher)]
        assert sum(count > 1 for count in counts[60:]) >= len(counts[60:]) - 1
        assert len(counts) < 33 + 10 + 2 * 500

    @pytest.mark.parametrize("pause_us", [50, 2_000])
    def test_after_a_pause_it_goes_at_once(self, pause_us):
        publisher = core(gather_after=32)
        publish(publisher, *[b"v" * 1000] * 500, now_ns=MS)
        publisher.flush(now_ns=MS)
        sent(publisher)
        publish(publisher, "later", "and", "more", now_ns=MS + pause_us * 1000)
        alone = 3 if pause_us == 2_000 else 1
        assert [count for _, _, count in sent(publisher)] == [1] * alone

    @pytest.mark.parametrize("took_us", [0, 5_000])
    def test_waiting_for_space_is_no_pause(self, took_us):
        """A publisher that subscribers hold up is busy: frames of one would slow them further."""
        publisher = core(gather_after=32)
        publish(publisher, *range(100), now_ns=MS)
        publisher.flush(now_ns=MS)
        sent(publisher)
        publisher.note_sent(MS, MS + took_us * 1000)
        publish(publisher, *range(10), now_ns=MS + took_us * 1000 + 1000)
        assert sent(publisher) == []
        assert publisher.open_batches["t"].count == 10

    def test_the_short_way_does_the_same(self):
        publisher, numbers = core(gather_after=4), []
        publish(publisher, "first", now_ns=MS)
        for _ in range(10):
            publisher.outbox.clear()
            numbers.append(publisher.publish_alone("t", 1, None, None, None, 2 * MS, WALL_NS))
        assert numbers == [1, 2, 3, 4, 5, -1, -1, -1, -1, -1]
        publisher.outbox.clear()
        later_ns = 2 * MS + 50_000
        assert publisher.publish_alone("t", 1, None, None, None, later_ns, WALL_NS) == 6

    def test_without_gather_within_all_go_at_once(self):
        publisher = core(gather_within=0, gather_after=0)
        publish(publisher, *range(500), now_ns=MS)
        assert [count for _, _, count in sent(publisher)] == [1] * 500


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
    alone, *full = [len(data) for data in publisher.frames_to_send()]
    assert alone < 2 * size + 100
    assert len(full) >= 4
    assert min(full) > (0.9 if key is None else 0.7) * 131_072  # space for keys is set aside


@pytest.mark.parametrize("frame_bytes", [1400, 131_072])
@pytest.mark.parametrize(
    ("value", "key", "headers"),
    [
        (b"v" * 10, None, {"h": "x" * 100}),
        (b"v" * 10, None, {"h": "x" * 500}),
        (1, "1234567890", None),
        (b"v" * 100, None, None),
    ],
)
def test_what_is_next_to_the_values_makes_neither_looks_nor_small_frames(
    frame_bytes, value, key, headers
):
    publisher = core(frame_bytes=frame_bytes)
    looks, columns = 0, 0
    for number in range(4000):
        now_ns = 1000 + number
        batch = publisher.open_batches.get("t")
        if batch is not None:  # what Publisher.publish does
            encoder.encode_into(value, batch.buffer, -1)
            before = batch.limit
            if key is not None or headers is not None:
                batch.add_columns(key, None, headers)
            columns = max(columns, before - batch.limit)
            if len(batch.buffer) < batch.limit:
                batch.end, batch.next = len(batch.buffer), batch.next + 1
                continue
            batch.repair()
            looks += 1
        publisher.publish("t", value, key, None, headers, now_ns=now_ns, wall_ns=WALL_NS)
    frames = sent(publisher)
    fits = frame_bytes // (len(encoder.encode(value)) + columns)
    counts = [count for _, _, count in frames[1:]]
    assert not counts or min(counts) >= min(0.9 * fits, fits - 8)
    looks_a_frame = 1 if frame_bytes == 1400 else 2
    assert looks <= looks_a_frame * len(frames) + 40


def test_one_busy_stream_does_not_hold_up_another():
    publisher = core()
    publish(publisher, "a", "b", now_ns=MS)
    publish(publisher, "x", topic="u", now_ns=MS)
    assert sent(publisher) == [("DATA", 0, 1), ("DATA", 0, 1)]


def test_flush_sends_what_is_gathered():
    publisher = core()
    publish(publisher, "a", "b", "c")
    publisher.flush(now_ns=0)
    assert sent(publisher) == [("DATA", 0, 1), ("DATA", 1, 2)]
    assert publisher.pending == 0


def test_many_at_once_come_after_what_was_gathered():
    publisher = core()
    publish(publisher, "a", "b")
    taken = publisher.publish_many(
        "t", [1, 2, 3], None, None, 0, now_ns=0, wall_ns=WALL_NS, count=10
    )
    assert taken == 3
    assert sent(publisher) == [("DATA", 0, 1), ("DATA", 1, 1), ("DATA", 2, 3)]
    assert publisher.published == 5


def test_data_that_ends_a_silence_says_that_a_heartbeat_is_due_sooner():
    publisher, woken = core(), []
    publisher.heartbeats.sooner = lambda: woken.append(publisher.next_deadline_ns() // MS)
    publish(publisher, "a", now_ns=MS)
    publish(publisher, "b", now_ns=2 * MS)  # one that waits for the first one's, waits no longer
    assert woken == [11]
    for _ in range(4):
        publisher.handle_timer(now_ns=publisher.next_deadline_ns())
    publish(publisher, "c", now_ns=100 * MS)
    assert woken == [11, 110]


def test_closing_flushes_and_says_so_again_and_again():
    publisher = core()
    publish(publisher, "a", "b")
    publisher.frames_to_send()
    publisher.begin_close(now_ns=0)
    publisher.handle_timer(now_ns=0)
    frames = [Frame(data) for data in publisher.frames_to_send()]
    assert [frame.kind for frame in frames] == [Kind.DATA, Kind.HEARTBEAT, Kind.WELCOME]
    assert frames[-1].flags & FLAG_CLOSING
    assert frames[1].sequence == 2

    publisher.handle_timer(now_ns=publisher.next_deadline_ns())
    kinds = [Frame(data).kind for data in publisher.frames_to_send()]
    assert kinds.count(Kind.WELCOME) <= 1


def test_old_frames_are_forgotten_by_the_timer():
    publisher = core(replay_age=0.1)
    publish(publisher, "a")
    assert publisher.head("t") == (0, 1)
    publisher.handle_timer(now_ns=100 * MS)
    assert publisher.head("t") == (1, 1)


TOPICS = {
    "not a str": 5,
    "none": None,
    "empty": "",
    "too long": "é" * 128,
    "with a zero byte": "a\0b",
    "like a prefix": "a*",
    "not UTF-8": "\ud800",
}


@pytest.mark.parametrize("topic", TOPICS.values(), ids=TOPICS)
def test_a_topic_that_is_none_is_refused(topic):
    publisher = core()
    with pytest.raises(MessageError, match="topic"):
        publish(publisher, "a", topic=topic)
    assert publisher.published == 0
    assert publisher.heads() == {}


def test_a_topic_too_many_is_refused_and_the_others_go_on():
    publisher = core(streams_max=2)
    publish(publisher, 0, topic="a")
    publish(publisher, 0, topic="b")
    with pytest.raises(ConfigError, match="streams_max"):
        publish(publisher, 0, topic="c")

    assert publish(publisher, 1, topic="a", now_ns=MS) == 1
    assert publisher.published == 3


def test_a_frame_that_the_replay_buffer_cannot_keep_is_sent_all_the_same():
    publisher = core(replay_bytes=1000)
    publish(publisher, "a")
    publish(publisher, bytes(5000), now_ns=MS)
    publish(publisher, "b", now_ns=2 * MS)
    assert sent(publisher) == [("DATA", 0, 1), ("DATA", 1, 1), ("DATA", 2, 1)]
    assert publisher.head("t") == (0, 3)
    assert publisher.replay.messages_evicted == 1


@pytest.mark.parametrize(("pause_ns", "is_sampled"), [(MS, True), (30 * MS, False)])
def test_after_a_pause_a_stream_is_not_at_full_rate_any_more(pause_ns, is_sampled):
    publisher, now_ns = core(linger=1), MS
    for _ in range(100):
        now_ns += 1_000
        publish(publisher, {"price": 1}, now_ns=now_ns)
    publisher.flush(now_ns=now_ns)
    now_ns += pause_ns
    while "t" not in publisher.open_batches:
        publish(publisher, {"price": 2}, now_ns=now_ns)
    batch = publisher.open_batches["t"]
    assert (batch.encode_into == codec.encoder.encode_into) == is_sampled


class OfAttrs:
    __attrs_attrs__ = (SimpleNamespace(name="_side"),)
    _side = "buy"


def test_a_stream_that_looking_keeps_from_being_busy_is_at_full_rate_all_the_same():
    publisher, now_ns = core(linger=1), MS
    while "t" not in publisher.open_batches or publisher.open_batches["t"].count < 40:  # in 50 µs
        now_ns += 1_250
        publish(publisher, {"price": 1}, now_ns=now_ns)
    publisher.flush(now_ns=now_ns)

    assert publisher.streams["t"].rushed_ns is not None


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
        MulticastSender(publisher, publisher.replay, publisher.config, 1400, Random(1))
    )
    for topic in ("a", "ab", "a", "b"):
        publish(publisher, *[b"v" * 1000] * 2, topic=topic, now_ns=MS)
        publisher.flush(now_ns=MS)
    assert len(publisher.outbox) == 8
    all_sealed = {"a": (0, 4), "ab": (0, 2), "b": (0, 2)}

    def heads():
        return {topic: publisher.head(topic)[1] for topic in all_sealed}

    assert heads() == {"a": 0, "ab": 0, "b": 0}
    for left, expected in enumerate([(1, 0, 0), (2, 0, 0), (2, 1, 0), (2, 2, 0), (3, 2, 0)], 1):
        publisher.outbox.popleft()
        assert (left, *heads().values()) == (left, *expected)
    assert publisher.heads() == all_sealed
    publish(publisher, b"another", topic="b", now_ns=MS)
    assert heads() == {"a": 3, "ab": 2, "b": 0}
    publisher.begin_close(now_ns=MS)  # the rest may never leave
    assert heads() == {"a": 4, "ab": 2, "b": 3}


def test_over_tcp_all_is_announced():
    publisher = core()
    publish(publisher, *[b"v" * 1000] * 2, now_ns=MS)
    publisher.flush(now_ns=MS)
    assert publisher.head("t") == (0, 2)
