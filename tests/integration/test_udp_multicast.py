"""UDP multicast on real sockets: dropped datagrams, reordering, receivers that stop, logs."""

import logging
import random
import threading
import time

import pytest

import p2pmsg
from p2pmsg import LogConfig
from p2pmsg.testing.kernel_loss import lose_datagrams
from tests.endpoints import free_port
from tests.integration.inside import lose_on_line
from tests.integration.peers import TOPIC, check_exact, check_ledger, eventually, take, take_all
from tests.integration.udp_faults import FaultyWay

GROUP = "udp://239.255.8.{}:{}?interface=127.0.0.1"
_group = iter(range(1, 255))


@pytest.fixture
def endpoint():
    return GROUP.format(next(_group), free_port())


def values_of(messages):
    return [message.value for message in messages]


@pytest.mark.parametrize(
    "text", [GROUP, "udp://127.0.0.1:{1}", "udp://[::1]:{1}"], ids=["group", "address", "ipv6"]
)
def test_messages_arrive_once_and_in_order(connect, text):
    place = text.format(next(_group), free_port())
    publisher, subscriber = connect(place)
    for number in range(100):
        publisher.publish("t", number, key=f"k{number}", headers={"n": number})
    publisher.publish_many("t", list(range(100, 3000)))
    messages = take(subscriber, 3000)
    assert values_of(messages) == list(range(3000))
    assert messages[7].key == "k7"
    assert messages[7].headers == {"n": 7}
    check_ledger(subscriber)


@pytest.mark.parametrize("size", [1500, 1_000_000])
def test_large_messages_go_in_parts(connect, endpoint, size):
    publisher, subscriber = connect(endpoint)
    lose_datagrams(subscriber, 0.05)
    values = [random.Random(number).randbytes(size) for number in range(4)]
    for value in values:
        publisher.publish("t", value)
    assert values_of(take(subscriber, 4)) == values


def test_a_message_above_the_limit_is_refused(make_publisher, endpoint):
    publisher = make_publisher(endpoint)
    with pytest.raises(p2pmsg.errors.MessageTooLargeError):
        publisher.publish_many("t", [bytes(2_000_000)])
    with pytest.raises(p2pmsg.errors.MessageTooLargeError):
        publisher.publish("t", bytes(2_000_000))


@pytest.mark.parametrize(
    "part", [0.2, *(pytest.param(part, marks=pytest.mark.long) for part in (0.01, 0.05, 0.5))]
)
def test_nothing_is_lost_although_the_kernel_drops(make_publisher, make_subscriber, endpoint, part):
    publisher = make_publisher(endpoint)
    subscribers = [make_subscriber(endpoint, joins=publisher) for _ in range(2)]
    for subscriber in subscribers:
        lose_datagrams(subscriber, part)
    count = 20_000
    got = [[] for _ in subscribers]
    readers = [
        threading.Thread(target=lambda s=s, g=g: g.extend(take(s, count)))
        for s, g in zip(subscribers, got, strict=True)
    ]
    for reader in readers:
        reader.start()
    for start in range(0, count, 200):
        publisher.publish_many("t", list(range(start, start + 200)))
        if not start % 2000:
            for _ in range(5):
                time.sleep(0.0005)
    for reader in readers:
        reader.join(60)
    for subscriber, messages in zip(subscribers, got, strict=True):
        assert values_of(messages) == list(range(count))
        check_ledger(subscriber)
        stats = subscriber.stats()
        assert stats.lost == 0
        assert stats.lines[0].kernel_drops > 0 or part < 0.2  # of some hundred datagrams


def test_flow_control_spares_a_small_buffer(make_publisher, make_subscriber, endpoint):
    publisher = make_publisher(endpoint)
    small = p2pmsg.config.MulticastSubscriberConfig(buffer_bytes=512 * 1024)
    subscriber = make_subscriber(
        endpoint, joins=publisher, config=p2pmsg.SubscriberConfig(multicast=small)
    )
    values = [b"%0100d" % number for number in range(100_000)]
    for _ in range(10):  # a reader that is quick enough is not waited for
        sending = threading.Thread(target=publisher.publish_many, args=("t", values))
        sending.start()
        messages = take(subscriber, len(values))
        sending.join()
        assert messages[-1].value == values[-1]
        counted = publisher.stats().multicast
        if counted.window_waits:
            break
    assert counted.receivers_waited_for == 1
    assert counted.window_waits > 0


def test_history_comes_over_the_recovery_channel(make_publisher, make_subscriber, endpoint):
    publisher = make_publisher(endpoint)
    publisher.publish_many("t", list(range(5000)))
    subscriber = make_subscriber(endpoint, start="earliest", joins=publisher)
    assert values_of(take(subscriber, 5000)) == list(range(5000))
    assert publisher.stats().multicast.nacks == 0


def test_what_nobody_keeps_is_reported_lost(connect, endpoint):
    publisher, subscriber = connect(
        endpoint, publisher={"replay_bytes": 20_000, "stall_timeout": 0.01}
    )
    publisher.publish("t", b"")
    subscriber.receive(60)
    lose_datagrams(subscriber, 1.0)
    for _number in range(100):
        publisher.publish_many("t", [bytes(100)] * 20)
    lose_datagrams(subscriber, 0)
    publisher.publish("t", b"")
    take_all(subscriber, 2002)
    stats = subscriber.stats()
    assert stats.lost > 0
    assert {loss.reason for loss in stats.losses} == {"evicted"}
    assert stats.balanced


def test_a_publisher_that_comes_back_is_another_session(
    make_publisher, make_subscriber, make_child, endpoint
):
    subscriber = make_subscriber(endpoint)
    first = make_child("publish", endpoint, 1)
    assert subscriber.receive(60).value == 0
    name = subscriber.stats().publishers[0]
    first.finish()  # no closing
    second = make_publisher(endpoint, name=name)
    second.wait_for_subscribers(1, 60)
    second.publish("t", "second incarnation")
    assert subscriber.receive(60).value == "second incarnation"
    eventually(lambda: len(subscriber.stats().publishers) == 1)


def test_two_publishers_share_a_group(make_publisher, make_subscriber, endpoint):
    publishers = [make_publisher(endpoint, name=name) for name in ("a", "b")]
    subscriber = make_subscriber(endpoint, joins=publishers)
    for number in range(100):
        for publisher in publishers:
            publisher.publish("t", number)
    messages = take(subscriber, 200)
    for name in ("a", "b"):
        found = [message.value for message in messages if message.publisher == name]
        assert found == list(range(100))


def test_the_second_of_two_lines_fills_in_for_the_first(make_publisher, make_subscriber, endpoint):
    """A and B: one publisher, whose datagrams come by two ways that lose independently."""
    publisher = make_publisher(endpoint)
    slow = p2pmsg.SubscriberConfig(second_line_wait=0.2)
    subscriber = make_subscriber([endpoint, endpoint], joins=publisher, config=slow)
    lose_datagrams(subscriber, 0.1)
    for number in range(2000):
        publisher.publish("t", number)
        if not number % 50:
            time.sleep(0.001)
    assert values_of(take(subscriber, 2000)) == list(range(2000))
    lines = subscriber.stats().lines
    assert all(line.first > 0 and line.missing > 0 for line in lines), lines
    assert any(line.second > 0 for line in lines), lines  # one may be ahead all the time
    assert lines[0].first + lines[1].first <= 2000
    check_ledger(subscriber, lost=0)


def test_a_publisher_feeds_two_groups_and_one_of_them_may_go_dark(make_publisher, make_subscriber):
    lines = [GROUP.format(next(_group), free_port()) for _ in "ab"]
    publisher = make_publisher(lines)
    both = make_subscriber(lines, joins=publisher)
    only_b = make_subscriber(lines[1], joins=publisher)
    publisher.publish_many("t", list(range(500)))
    take(both, 500)
    lose_on_line(both, 0, 1.0)  # A is dead for one of them
    lose_datagrams(only_b, 0.2)
    for number in range(500, 2000):
        publisher.publish("t", number)
        if not number % 50:
            time.sleep(0.001)
    assert values_of(take(both, 1500)) == list(range(500, 2000))
    assert values_of(take(only_b, 2000)) == list(range(2000))
    assert both.stats().lines[1].first > 0
    check_ledger(both, delivered=2000, lost=0)
    # What it did not bring shows although nothing comes over it any more.
    eventually(lambda: both.stats().lines[0].missing >= 1500 - 12)
    assert both.stats().lines[1].missing == 0


@pytest.mark.long
def test_a_line_that_goes_dark_is_warned_of(make_publisher, make_subscriber, caplog):
    lines = [GROUP.format(next(_group), free_port()) for _ in "ab"]
    publisher = make_publisher(lines)
    both = make_subscriber(lines, joins=publisher)
    publisher.publish_many("t", list(range(500)))
    take(both, 500)
    lose_on_line(both, 0, 1.0)
    publisher.publish("t", 500)
    take(both, 1)
    with caplog.at_level(logging.WARNING, logger="p2pmsg"):
        eventually(lambda: any("over this line" in record.message for record in caplog.records))
    (said,) = [record.message for record in caplog.records if "over this line" in record.message]
    assert said.startswith(f"{lines[0]}: nothing has come over this line for ")
    assert both.stats().lines[0].found in said
    assert both.stats().lines[1].found == ""


def test_errors_name_what_is_wrong(endpoint):
    with pytest.raises(p2pmsg.ConfigError, match="interface 'none0'"):
        p2pmsg.Publisher("udp://239.1.1.1:5000?interface=none0")
    with pytest.raises(p2pmsg.ConfigError, match="needs an address"):
        p2pmsg.Publisher("udp://*:5000")
    with pytest.raises(p2pmsg.BindError):
        p2pmsg.Subscriber("udp://192.0.2.7:5000")
    with pytest.raises(p2pmsg.ConfigError, match="several of udp"):
        p2pmsg.Publisher(["udp://239.1.1.1:5000", "tcp://127.0.0.1:0"])
    with pytest.raises(p2pmsg.ConfigError, match="an endpoint"):
        p2pmsg.Publisher([])
    with pytest.raises(p2pmsg.ConfigError, match="unknown option"):
        p2pmsg.Subscriber("udp://239.1.1.1:5000?mtu=9000")


@pytest.mark.parametrize("extra", [1, pytest.param(3, marks=pytest.mark.long)])
def test_parity_spares_questions(make_publisher, make_subscriber, endpoint, extra):
    multicast = p2pmsg.config.MulticastPublisherConfig(fec_data=8, fec_parity=extra)
    publisher = make_publisher(endpoint, config=p2pmsg.PublisherConfig(multicast=multicast))
    subscriber = make_subscriber(endpoint, joins=publisher)
    publisher.publish_many("t", list(range(5000)))
    take(subscriber, 5000)
    lose_datagrams(subscriber, 0.03)
    values = [f"{number:01000}" for number in range(2000)]  # each in a datagram of its own
    for number, value in enumerate(values):
        publisher.publish("t", value)
        if not number % 20:
            time.sleep(0.0005)
    assert values_of(take(subscriber, 2000)) == values
    stats = check_ledger(subscriber, lost=0)
    assert stats.repaired["parity"] > 0


def test_exact_ranges_are_read_of_a_multicast_publisher_too(make_publisher, endpoint):
    """As Spark's tasks do: the group says who is there, TCP carries the ranges."""
    publisher = make_publisher(endpoint)
    publisher.publish_many("t", list(range(1000)))
    with p2pmsg.reader.RangeReader(endpoint) as reader:
        assert reader.heads(timeout=60).streams["t"].next == 1000
        batches = list(reader.fetch("t", 100, 900, timeout=60))
    assert [value for batch in batches for value in batch.values] == list(range(100, 900))


COUNT = 10_000


def publish(publisher):
    """Publish numbers, in frames of one and of many: some thousand datagrams at least."""
    for start in range(0, COUNT, 100):
        for number in range(start, start + 20):
            publisher.publish("trades", number)
            publisher.flush()
        publisher.publish_many("trades", list(range(start + 20, start + 100)))
        time.sleep(0.001)


def test_whatever_the_network_does_all_come_once_and_in_order(
    make_publisher, make_subscriber, opened, endpoint
):
    publisher = make_publisher(endpoint)
    target = GROUP.format(next(_group), free_port())
    way = FaultyWay(endpoint, target, burst=0.003, duplication=0.2, reordering=0.2)
    opened.callback(way.close)
    subscriber = make_subscriber(target, joins=publisher)
    publishing = threading.Thread(target=publish, args=(publisher,))
    publishing.start()
    check_exact(take(subscriber, COUNT))
    publishing.join()
    check_ledger(subscriber, lost=0, delivered=COUNT, outstanding=0)
    assert min(way.lost, way.overtaken, way.doubled) > 0


def test_where_no_datagram_reaches_the_publisher_that_is_said_with_its_place(
    make_publisher, make_subscriber, opened, endpoint, caplog
):
    """As with a firewall that lets the group's port and the recovery endpoint through."""
    publisher = make_publisher(endpoint)
    target = GROUP.format(next(_group), free_port())
    way = FaultyWay(endpoint, target, burst=0.3, burst_datagrams=1, carries_back=False)
    opened.callback(way.close)
    subscriber = make_subscriber(target, joins=publisher)
    count = 0

    def is_logged():
        nonlocal count
        publisher.publish("t", count)
        count += 1
        return any("comes by UDP" in text for text in caplog.messages)

    eventually(is_logged)
    assert values_of(take(subscriber, count)) == list(range(count))
    eventually(lambda: "comes by UDP" in subscriber.stats().lines[0].found)
    (text,) = [one for one in caplog.messages if "comes by UDP" in one]
    assert f"recovery endpoint {publisher.recovery_endpoint}" in text
    assert way.answers > 0
    assert publisher.stats().multicast.nacks == 0


def test_a_publisher_keeps_to_its_rate(make_publisher, make_subscriber, endpoint):
    rate, burst, total = 2_000_000, 2**20, 3_000_000
    multicast = p2pmsg.config.MulticastPublisherConfig(rate_limit_bytes_s=rate)
    publisher = make_publisher(endpoint, config=p2pmsg.PublisherConfig(multicast=multicast))
    subscriber = make_subscriber(endpoint, joins=publisher)
    began = time.monotonic()
    publisher.publish_many("t", [bytes(1000)] * (total // 1000))
    take(subscriber, total // 1000)
    # No sooner than that: a slow machine takes longer, and never less.
    assert time.monotonic() - began >= (total - burst) / rate - 0.2
    assert subscriber.stats().lost == 0


def publish_by_turns(publisher, numbers):
    """Publish numbers one by one and in one call, by turns."""
    numbers = list(numbers)
    for at in range(0, len(numbers), 500):
        part = numbers[at : at + 500]
        for number in part[:100]:
            publisher.publish(TOPIC, number)
        if part[100:]:
            publisher.publish_many(TOPIC, part[100:])


@pytest.mark.parametrize(
    ("fsync", "part"),
    [
        ("interval", 0),
        ("always", 0.2),
        pytest.param("never", 0.2, marks=pytest.mark.long),
        pytest.param("interval", 0.2, marks=pytest.mark.long),
        pytest.param("always", 0, marks=pytest.mark.long),
        pytest.param("never", 0, marks=pytest.mark.long),
    ],
)
def test_a_publisher_goes_on_in_its_session(
    tmp_path, make_publisher, make_subscriber, endpoint, fsync, part
):
    log = LogConfig(tmp_path, fsync=fsync)
    first = make_publisher(endpoint, log=log, name="feed")
    subscriber = make_subscriber(endpoint, joins=first)
    lose_datagrams(subscriber, part)
    session = first.session
    publish_by_turns(first, range(2000))
    check_exact(take(subscriber, 2000))
    first.close()

    second = make_publisher(endpoint, log=log, name="feed")
    assert second.session == session
    second.wait_for_subscribers(1, timeout=60)
    publish_by_turns(second, range(2000, 4000))
    check_exact(take(subscriber, 2000), range(2000, 4000))
    second.publish("opened since", 0)
    assert subscriber.receive(60).topic == "opened since"
    check_ledger(subscriber, delivered=4001, outstanding=0, lost=0)
    stats = second.stats()
    assert stats.log is not None
    assert stats.published == 4001
    assert sum(stats.repaired.values()) == stats.messages_repaired
    if not part:  # the receiver knows that the marks count from the start
        eventually(lambda: second.stats().multicast.receivers_waited_for == 1)
    else:
        assert stats.repaired["buffer"] >= stats.multicast.messages_repaired
