"""Messages from publishers to subscribers over real sockets, and where a subscriber starts."""

import threading
import time
from datetime import UTC, datetime

import pytest

import p2pmsg
from p2pmsg import control
from tests.integration.peers import (
    LOOPBACK,
    TOPIC,
    Collector,
    check_exact,
    check_ledger,
    check_silence,
    eventually,
    ranges,
    small_frames,
    take,
    take_all,
    take_to,
)

VALUES = [
    b"",
    b"bytes \x00 and more",
    bytes(100_000),
    "",
    "text with umlauts: äöü, and 漢字",
    "t" * 70_000,
    0,
    -1,
    2**63,
    2**64 - 1,
    -(2**63),
    0.0,
    -1.5,
    1e308,
    float("inf"),
    True,
    False,
    None,
    [],
    [1, "two", b"three", None, [4.0, {"five": 6}]],
    {},
    {"symbol": "BTCUSDT", "price": 65_000.5, "deep": {"list": [1, {"a": b"b"}]}},
    {7: "int keys", -7: "too", 2.5: "float", None: "none", True: "true", "s": "text", b"b": "b"},
]


def same(left, right):
    """Whether two values are equal and of the same types, all the way down."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        pairs = zip(left.items(), right.items(), strict=True)
        return len(left) == len(right) and all(same(list(a), list(b)) for a, b in pairs)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


@pytest.fixture(params=["tcp", "ipc", "inproc"])
def pair(request, tmp_path, make_publisher, make_subscriber):
    endpoint = {
        "tcp": LOOPBACK,
        "ipc": f"ipc://{tmp_path}/socket",
        "inproc": f"inproc://{request.node.name}",
    }[request.param]
    publisher = make_publisher(endpoint, name="source")
    return publisher, make_subscriber(publisher.endpoint, joins=publisher)


def test_every_value_arrives_as_it_was(pair):
    publisher, subscriber = pair
    for value in VALUES:
        publisher.publish(TOPIC, value)
    publisher.publish_many(TOPIC, VALUES)

    for sent, message in zip(VALUES * 2, take(subscriber, 2 * len(VALUES)), strict=True):
        assert same(message.value, sent), (message.value, sent)
    check_ledger(subscriber, delivered=2 * len(VALUES), outstanding=0, lost=0)


def test_a_change_after_publish_changes_nothing(pair):
    publisher, subscriber = pair
    value, headers = {"price": [1]}, {"trace": [1]}
    for price in range(300):
        value["price"][0] = headers["trace"][0] = price
        publisher.publish(TOPIC, value, headers=headers)
    value.clear()
    headers.clear()
    messages = take(subscriber, 300)
    assert [message.value for message in messages] == [{"price": [n]} for n in range(300)]
    assert [message.headers for message in messages] == [{"trace": [n]} for n in range(300)]


def test_what_accompanies_a_value_arrives_with_its_own_message(pair):
    publisher, subscriber = pair
    for n in range(600):  # in one frame, some with and some without
        publisher.publish(
            TOPIC,
            n,
            key=f"key {n}" if n % 2 else None,
            timestamp_ns=10**18 + n if n % 3 else None,
            headers={"n": n} if n % 5 == 0 else None,
        )
    now_ns = time.time_ns()
    messages = take(subscriber, 600)
    check_exact(messages)
    for n, message in enumerate(messages):
        assert message.key == (f"key {n}" if n % 2 else None)
        assert message.headers == ({"n": n} if n % 5 == 0 else None)
        if n % 3:
            assert message.timestamp_ns == 10**18 + n
        else:
            assert abs(message.timestamp_ns - now_ns) < 60e9
        assert (message.topic, message.publisher) == (TOPIC, "source")
        assert message.session == publisher.session


def test_publish_returns_the_sequence_and_publish_many_the_range(pair):
    publisher, subscriber = pair
    assert [publisher.publish(TOPIC, n) for n in range(5)] == [0, 1, 2, 3, 4]
    assert publisher.publish_many(TOPIC, range(5, 100_005)) == (5, 100_004)
    assert publisher.publish(TOPIC, 100_005) == 100_005
    assert publisher.publish_many(TOPIC, [100_006]) == (100_006, 100_006)
    assert publisher.publish("other", 0) == 0
    messages = take(subscriber, 100_008)
    check_exact([message for message in messages if message.topic == TOPIC])


def test_iterating_receiving_and_receiving_many_share_one_order(pair):
    publisher, subscriber = pair
    publisher.publish_many(TOPIC, range(10_000))
    messages = []
    iterator = iter(subscriber)
    while len(messages) < 10_000:
        messages.append(next(iterator))
        messages.append(subscriber.receive(60))
        messages += subscriber.receive_many(3, timeout=60)
        for message in subscriber:
            messages.append(message)
            if len(messages) % 100 == 0 or len(messages) == 10_000:
                break
    check_exact(messages)
    check_silence(subscriber)


@pytest.mark.parametrize(
    ("topics", "taken"),
    [
        (None, {"trades", "trades.a", "trades.b", "tradesx", "quotes", "ü.1"}),
        ("*", {"trades", "trades.a", "trades.b", "tradesx", "quotes", "ü.1"}),
        (["trades"], {"trades"}),
        (["trades.*"], {"trades.a", "trades.b"}),
        (["trades*"], {"trades", "trades.a", "trades.b", "tradesx"}),
        (["trades.a", "quotes"], {"trades.a", "quotes"}),
        (["trades.*", "trades.a"], {"trades.a", "trades.b"}),
        ("ü.*", {"ü.1"}),
        (["nothing"], set()),
    ],
)
def test_topics_and_prefixes(connect, topics, taken):
    publisher, subscriber = connect(topics=topics)
    for n in range(50):
        for topic in ("trades", "trades.a", "trades.b", "tradesx", "quotes", "ü.1"):
            publisher.publish(topic, n)
    messages = take(subscriber, 50 * len(taken))
    check_silence(subscriber)
    assert {message.topic for message in messages} == taken
    for topic in taken:
        check_exact([message for message in messages if message.topic == topic])
    check_ledger(subscriber, published=50 * len(taken), outstanding=0, lost=0)


def test_topics_are_filtered_at_the_publisher(connect_by_proxy):
    publisher, proxy, subscriber = connect_by_proxy(topics=["small"])
    publisher.publish_many("large", [bytes(1000)] * 5000)
    publisher.publish("small", 0)
    assert subscriber.receive(60).value == 0
    assert proxy.bytes_down < 1_000_000


def test_one_subscriber_of_two_publishers(make_publisher, make_subscriber):
    publishers = [make_publisher(name=f"source {n}") for n in range(2)]
    endpoints = [publisher.endpoint for publisher in publishers]
    subscriber = make_subscriber(endpoints, joins=publishers)
    for n in range(1000):
        for publisher in publishers:
            publisher.publish(TOPIC, n)
    messages = take(subscriber, 2000)
    for publisher in publishers:
        own = [message for message in messages if message.session == publisher.session]
        check_exact(own)
        assert {message.publisher for message in own} == {publisher.name}
    assert sorted(subscriber.stats().publishers) == ["source 0", "source 1"]


def test_two_lines_to_one_publisher_deliver_once(make_publisher, make_subscriber, make_proxy):
    publisher = make_publisher()
    proxy = make_proxy(publisher)
    subscriber = make_subscriber([publisher.endpoint, proxy.endpoint], joins=publisher)
    warm_up = (publisher.publish("warm-up", bytes(10_000)) for _ in iter(int, 1))
    eventually(lambda: next(warm_up) >= 0 and subscriber.stats().duplicates)
    for n in range(20_000):
        publisher.publish(TOPIC, n)
        if n == 10_000:
            proxy.cut()
    messages = [message for message in take_to(subscriber, 19_999) if message.topic == TOPIC]
    check_exact(messages)
    check_silence(subscriber)
    check_ledger(subscriber, outstanding=0, lost=0)


SECOND_NS = 10**9
BASE_NS = 1_700_000_000 * SECOND_NS


class Pump:
    """Publishes at speed in a thread, until it is stopped."""

    def __init__(self, publisher, **columns):
        self.publisher = publisher
        self.columns = columns
        self.published = 0
        self._ends = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        while not self._ends.is_set():
            for _ in range(20):
                assert self.publisher.publish(TOPIC, self.published) == self.published
                self.published += 1
            time.sleep(0.0002)

    def stop(self):
        self._ends.set()
        self.thread.join()
        return self.published


@pytest.fixture
def pumping(make_publisher, opened):
    def start(**options):
        publisher = make_publisher(**options)
        pump = Pump(publisher)
        opened.callback(pump.stop)
        eventually(lambda: pump.published > 2000)
        return publisher, pump

    return start


def test_latest_after_wait_for_subscribers_misses_nothing(pumping, make_subscriber):
    publisher, pump = pumping()
    subscriber = make_subscriber(publisher.endpoint, joins=publisher)
    joined_at = pump.published
    eventually(lambda: pump.published > joined_at)  # or there is nothing to receive
    messages = take_to(subscriber, pump.stop() - 1)
    assert messages[0].sequence <= joined_at
    check_exact(messages, range(messages[0].sequence, pump.published))


def test_below_what_is_kept_the_evicted_range_is_reported_exactly(pumping, make_subscriber):
    publisher, pump = pumping(replay_bytes=20_000, config=small_frames())
    eventually(lambda: publisher.stats().streams[TOPIC][0] > 1000)
    count = pump.stop()
    publisher.flush()
    earliest = publisher.stats().streams[TOPIC][0]
    reports = []
    subscriber = make_subscriber(publisher.endpoint, start=100, on_gap=reports.append)
    messages = take_all(subscriber, count)
    check_exact(messages, range(earliest, count))
    assert ranges(reports) == [(100, earliest, "evicted")]
    stats = check_ledger(subscriber, published=count - 100, lost=earliest - 100)
    assert ranges(stats.losses) == ranges(reports)
    assert (reports[0].topic, reports[0].session) == (TOPIC, publisher.session)


def test_earliest_begins_with_what_is_kept_and_calls_nothing_lost(pumping, make_subscriber):
    publisher, pump = pumping(replay_bytes=20_000, config=small_frames())
    eventually(lambda: publisher.stats().streams[TOPIC][0] > 1000)
    count = pump.stop()
    publisher.flush()
    earliest = publisher.stats().streams[TOPIC][0]
    subscriber = make_subscriber(publisher.endpoint, start="earliest", on_gap="raise")
    check_exact(take(subscriber, count - earliest), range(earliest, count))
    check_ledger(subscriber, lost=0, outstanding=0)


def test_a_time(make_publisher, make_subscriber):
    cases = [(-5, 0), (-0.1, 0), (-0.099999, 1), (-0.05, 50_000), (0, 100_000), (0.099999, 199_999)]
    publisher = make_publisher(replay_bytes=2**28)
    count = 200_000
    first_ns = BASE_NS - SECOND_NS // 10
    times = range(first_ns, first_ns + count * 1000, 1000)  # one a microsecond
    publisher.publish_many(TOPIC, [0] * count, timestamps_ns=times)
    for second, first in cases:
        start = datetime.fromtimestamp(BASE_NS // SECOND_NS + second, UTC)
        with p2pmsg.Subscriber(publisher.endpoint, start=start) as subscriber:
            assert subscriber.receive(60).sequence == first, second


SIZES = [4_000, 5_000, 40_000, 65_536, 300_000]


@pytest.mark.parametrize("size", SIZES)
def test_they_are_repaired_as_they_were(make_publisher, make_subscriber, make_proxy, size):
    publisher = make_publisher()
    proxy = make_proxy(publisher, frame_loss=0.2, seed=size, loss_after_frames=5)
    collector = Collector(make_subscriber(proxy.endpoint, joins=publisher))
    values = [bytes([number]) * size for number in range(200)]
    for number, value in enumerate(values):
        publisher.publish(TOPIC, value, key=str(number), headers={"n": number})
    messages = collector.wait_for(200)
    assert [message.value for message in messages] == values
    assert [(m.key, m.headers) for m in messages] == [(str(n), {"n": n}) for n in range(200)]
    check_ledger(collector.subscriber, delivered=200, outstanding=0, lost=0)


COUNT = 500


@pytest.mark.parametrize("scheme", ["tcp", "ipc", "inproc"])
def test_a_subscriber_gets_each_topic_that_it_asked_for(
    make_publisher, make_subscriber, tmp_path, scheme
):
    where = {"tcp": "tcp://127.0.0.1:0", "ipc": f"ipc://{tmp_path}/p", "inproc": "inproc://many"}
    publisher = make_publisher(where[scheme])
    topics = [f"topic {n}" for n in range(COUNT)]
    subscriber = make_subscriber(publisher.endpoint, topics=topics, joins=publisher)
    for topic in topics:
        publisher.publish(topic, topic)
    publisher.publish("another", None)
    assert {subscriber.receive(60).value for _ in topics} == set(topics)
    check_silence(subscriber)
    check_ledger(subscriber, delivered=COUNT, outstanding=0, lost=0)
    # Some may be asked for on a busy machine; all would, where nothing was subscribed to.
    assert subscriber.stats().repaired["buffer"] < COUNT


@pytest.mark.parametrize(
    "streams", [control.RANGES_MAX + 76, pytest.param(5000, marks=pytest.mark.long)]
)
def test_a_late_joiner_of_many_streams_gets_all_of_each(make_publisher, make_subscriber, streams):
    """Of more than a publisher keeps ranges of, for one who asks."""
    publisher = make_publisher()
    topics = [f"topic {n}" for n in range(streams)]
    for topic in topics:
        for value in range(3):
            publisher.publish(topic, value)
    publisher.flush()
    subscriber = make_subscriber(publisher.endpoint, start="earliest", joins=publisher)
    taken = {topic: [] for topic in topics}
    for _ in range(3 * len(topics)):
        message = subscriber.receive(60)
        taken[message.topic].append(message.value)
    assert all(values == [0, 1, 2] for values in taken.values())
    check_ledger(subscriber, delivered=3 * len(topics), outstanding=0, lost=0)
