"""Large messages, which a publisher keeps as the caller's own bytes and not as frames."""

import sys

import pytest

from tests.integration.peers import TOPIC, Collector, check_ledger, take

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
    assert publisher.stats().repaired["buffer"] > 0
    check_ledger(collector.subscriber, delivered=200, outstanding=0, lost=0)


def test_they_are_kept_without_a_copy_and_let_go(make_publisher, make_subscriber):
    publisher = make_publisher(replay_bytes=1_000_000)
    subscriber = make_subscriber(publisher.endpoint, joins=publisher)
    value = bytes(100_000)
    before = sys.getrefcount(value)
    publisher.publish(TOPIC, value)
    assert sys.getrefcount(value) == before + 1
    late = make_subscriber(publisher.endpoint, start="earliest")
    for each in (subscriber, late):
        assert take(each, 1)[0].value == value
    for _ in range(11):
        publisher.publish(TOPIC, bytes(100_000))
    assert sys.getrefcount(value) == before
    assert [message.sequence for message in take(subscriber, 11)] == list(range(1, 12))


def test_what_is_large_when_it_is_packed_is_kept_as_it_was_packed(make_publisher, make_subscriber):
    publisher = make_publisher()
    value = {"rows": list(range(20_000))}
    publisher.publish(TOPIC, value)
    value["rows"].clear()  # the caller's to change
    (message,) = take(make_subscriber(publisher.endpoint, start="earliest"), 1)
    assert message.value == {"rows": list(range(20_000))}
