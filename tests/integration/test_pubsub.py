"""Messages from publishers to subscribers over real sockets."""

import time

import pytest

import p2pmsg
from tests.integration.peers import (
    LOOPBACK,
    TOPIC,
    check_exact,
    check_ledger,
    check_silence,
    eventually,
    take,
    take_to,
)
from tests.places import lasting_place

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


def test_nan_arrives_as_nan(pair):
    publisher, subscriber = pair
    publisher.publish(TOPIC, float("nan"))
    value = subscriber.receive(10).value
    assert value != value


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
            assert abs(message.timestamp_ns - now_ns) < 10e9
        assert (message.topic, message.publisher) == (TOPIC, "source")
        assert message.session == publisher.session


@pytest.mark.parametrize("timestamp_ns", [0, -1, 1, -(2**61), 2**62 - 1, 1_700_000_000_123_456_789])
def test_a_timestamp_is_exact(pair, timestamp_ns):
    publisher, subscriber = pair
    begun_ns = time.time_ns()
    for _ in range(3):
        publisher.publish(TOPIC, 0, timestamp_ns=timestamp_ns)
        publisher.publish(TOPIC, 0)
    publisher.publish_many(TOPIC, [0, 0], timestamps_ns=[timestamp_ns, -timestamp_ns])
    times = [message.timestamp_ns for message in take(subscriber, 8)]
    assert times[0:6:2] == [timestamp_ns] * 3
    assert times[6:] == [timestamp_ns, -timestamp_ns]
    assert all(begun_ns <= time_ns <= time.time_ns() for time_ns in times[1:6:2])


def test_publish_returns_the_sequence_and_publish_many_the_range(pair):
    publisher, subscriber = pair
    assert [publisher.publish(TOPIC, n) for n in range(5)] == [0, 1, 2, 3, 4]
    assert publisher.publish_many(TOPIC, range(5, 100_005)) == (5, 100_004)
    assert publisher.publish(TOPIC, 100_005) == 100_005
    assert publisher.publish_many(TOPIC, [100_006]) == (100_006, 100_006)
    assert publisher.publish("other", 0) == 0
    messages = take(subscriber, 100_008)
    check_exact([message for message in messages if message.topic == TOPIC])


def test_publish_many_takes_keys_and_timestamps(pair):
    publisher, subscriber = pair
    count = 5_000
    keys = [f"k{n}" if n % 7 else None for n in range(count)]
    times = [10**18 + n * 1000 for n in range(count)]
    publisher.publish_many(TOPIC, range(count), keys=keys, timestamps_ns=times)
    messages = take(subscriber, count)
    check_exact(messages)
    assert [message.key for message in messages] == keys
    assert [message.timestamp_ns for message in messages] == times


def test_iterating_receiving_and_receiving_many_share_one_order(pair):
    publisher, subscriber = pair
    publisher.publish_many(TOPIC, range(10_000))
    messages = []
    iterator = iter(subscriber)
    while len(messages) < 10_000:
        messages.append(next(iterator))
        messages.append(subscriber.receive(10))
        messages += subscriber.receive_many(3, timeout=10)
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
def test_topics_and_prefixes(make_publisher, make_subscriber, topics, taken):
    publisher = make_publisher()
    subscriber = make_subscriber(publisher.endpoint, topics=topics, joins=publisher)
    for n in range(50):
        for topic in ("trades", "trades.a", "trades.b", "tradesx", "quotes", "ü.1"):
            publisher.publish(topic, n)
    messages = take(subscriber, 50 * len(taken))
    check_silence(subscriber)
    assert {message.topic for message in messages} == taken
    for topic in taken:
        check_exact([message for message in messages if message.topic == topic])
    check_ledger(subscriber, published=50 * len(taken), outstanding=0, lost=0)


def test_topics_are_filtered_at_the_publisher(make_publisher, make_subscriber, make_proxy):
    publisher = make_publisher()
    proxy = make_proxy(publisher)
    subscriber = make_subscriber(proxy.endpoint, topics=["small"], joins=publisher)
    publisher.publish_many("large", [bytes(1000)] * 5000)
    publisher.publish("small", 0)
    assert subscriber.receive(10).value == 0
    assert proxy.bytes_down < 1_000_000


def test_a_topic_that_begins_later_is_received_from_its_first_message(
    make_publisher, make_subscriber
):
    publisher = make_publisher()
    subscriber = make_subscriber(publisher.endpoint, joins=publisher)
    for topic in range(200):
        publisher.publish_many(f"topic {topic}", range(3))
    messages = take(subscriber, 600)
    for topic in range(200):
        check_exact([message for message in messages if message.topic == f"topic {topic}"])


@pytest.mark.parametrize("run", [1, 7, 500])
def test_topics_that_take_turns(run, make_publisher, make_subscriber):
    publisher = make_publisher(config=p2pmsg.PublisherConfig(frame_bytes=1024))
    subscriber = make_subscriber(publisher.endpoint, joins=publisher)
    topics, following = ("a", "b", "c"), {"a": 0, "b": 0, "c": 0}
    for turn in range(6000 // run):
        topic = topics[turn % 3]
        for n in range(following[topic], following[topic] + run):
            assert publisher.publish(topic, n) == n
        following[topic] += run
    publisher.flush()
    messages = take(subscriber, sum(following.values()))
    for topic in topics:
        own = [message for message in messages if message.topic == topic]
        check_exact(own)
        assert len(own) == following[topic]


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
    eventually(lambda: next(warm_up) >= 0 and proxy.bytes_down > 10_000)
    for n in range(20_000):
        publisher.publish(TOPIC, n)
        if n == 10_000:
            proxy.cut()
    messages = [message for message in take_to(subscriber, 19_999) if message.topic == TOPIC]
    check_exact(messages)
    check_silence(subscriber)
    stats = check_ledger(subscriber, outstanding=0, lost=0)
    assert stats.duplicates > 0


def test_one_publisher_and_many_subscribers(make_publisher, make_subscriber):
    publisher = make_publisher()
    subscribers = [make_subscriber(publisher.endpoint, joins=publisher) for _ in range(8)]
    publisher.publish_many(TOPIC, range(10_000))
    for subscriber in subscribers:
        check_exact(take(subscriber, 10_000))
    assert publisher.stats().subscribers == 8


def test_a_subscriber_waits_for_a_publisher_that_comes_later(make_publisher, make_subscriber):
    endpoint = lasting_place()
    subscriber = make_subscriber(endpoint)
    with p2pmsg.Publisher(endpoint) as publisher:
        publisher.wait_for_subscribers(1, timeout=10)
        publisher.publish(TOPIC, 0)
        check_exact(take(subscriber, 1))
