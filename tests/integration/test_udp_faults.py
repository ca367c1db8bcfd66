"""Bursts, duplication and reordering on the way, with real sockets at both ends."""

import contextlib
import itertools
import logging
import threading
import time

import pytest

import p2pmsg
from tests.integration.peers import check_exact, check_ledger, eventually, take
from tests.integration.test_udp_multicast import GROUP, free_port
from tests.integration.udp_faults import FaultyWay

COUNT = 10_000
_group = itertools.count(160)
FAULTS = {
    "bursts": {"burst": 0.005},
    "duplication": {"duplication": 0.3},
    "reordering": {"reordering": 0.2},
    "all of them": {"burst": 0.003, "duplication": 0.2, "reordering": 0.2},
}


@pytest.fixture
def place():
    return GROUP.format(next(_group), free_port())


def publish(publisher):
    """Publish numbers, in frames of one and of many."""
    for start in range(0, COUNT, 100):
        for number in range(start, start + 20):
            publisher.publish("trades", number)
        publisher.publish_many("trades", list(range(start + 20, start + 100)))
        time.sleep(0.001)


@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS)
def test_whatever_the_network_does_all_come_once_and_in_order(
    make_publisher, make_subscriber, opened, place, faults
):
    publisher = make_publisher(place)
    target = GROUP.format(next(_group), free_port())
    way = FaultyWay(place, target, **faults)
    opened.callback(way.close)
    subscriber = make_subscriber(target, joins=publisher)
    publishing = threading.Thread(target=publish, args=(publisher,))
    publishing.start()
    check_exact(take(subscriber, COUNT))
    publishing.join()
    stats = check_ledger(subscriber, lost=0, delivered=COUNT, outstanding=0)
    assert way.lost > 0 or "burst" not in faults
    assert way.overtaken > 0 or "reordering" not in faults
    if "burst" in faults:
        assert sum(stats.repaired.values()) > 0
    if "duplication" in faults:
        assert way.doubled > 0
        assert stats.duplicates > 0


def test_a_wait_for_late_datagrams_spares_questions(
    make_publisher, make_subscriber, opened, place
):
    publisher = make_publisher(place)
    target = GROUP.format(next(_group), free_port())
    way = FaultyWay(place, target, reordering=0.2)
    opened.callback(way.close)
    patient = p2pmsg.MulticastSubscriberConfig(reorder_ms=200)
    config = p2pmsg.SubscriberConfig(multicast=patient)
    subscriber = make_subscriber(target, joins=publisher, config=config)
    publishing = threading.Thread(target=publish, args=(publisher,))
    publishing.start()
    check_exact(take(subscriber, COUNT))
    publishing.join()
    assert way.overtaken > 0
    assert publisher.stats().multicast.nacks < way.overtaken / 20


def test_a_publisher_keeps_to_its_rate(make_publisher, make_subscriber, place):
    rate, burst, total = 1_000_000, 50_000, 500_000
    multicast = p2pmsg.MulticastPublisherConfig(rate_limit_bytes_s=rate, burst_bytes=burst)
    publisher = make_publisher(place, config=p2pmsg.PublisherConfig(multicast=multicast))
    subscriber = make_subscriber(place, joins=publisher)
    began = time.monotonic()
    publisher.publish_many("t", [bytes(1000)] * (total // 1000))
    take(subscriber, total // 1000)
    # No sooner than that: a slow machine takes longer, and never less.
    assert time.monotonic() - began >= (total - 2 * burst) / rate
    assert subscriber.stats().lost == 0


def test_a_buffer_that_the_kernel_does_not_grant_is_warned_of(make_subscriber, place, caplog):
    with caplog.at_level(logging.WARNING, logger="p2pmsg"):
        huge = p2pmsg.MulticastSubscriberConfig(buffer_bytes=2**31 - 1)
        subscriber = make_subscriber(place, config=p2pmsg.SubscriberConfig(multicast=huge))
    (record,) = caplog.records
    granted = subscriber.stats().lines[0].buffer_bytes
    assert 0 < granted < 2**31 - 1
    assert f"a receive buffer of {granted} bytes where {2**31 - 1} were asked" in record.message
    assert "net.core.rmem_max" in record.message


def test_two_lines_may_be_any_two_endpoints(make_publisher, make_subscriber, make_proxy):
    """One of them straight, the other one 20 ms longer: the first wins, and the lag shows it."""
    publisher = make_publisher()
    way = make_proxy(publisher, delay_ms=20)
    subscriber = make_subscriber([publisher.endpoint, way.endpoint], joins=publisher)
    sequence = -1
    while not subscriber.stats().lines[1].second:  # its connection may be the later one
        sequence = publisher.publish("trades", sequence + 1)
        assert subscriber.receive(5).value == sequence
        time.sleep(0.03)
    before = subscriber.stats().lines
    for number in range(100):
        publisher.publish("trades", number)
        time.sleep(0.001)
    take(subscriber, 100)

    def both_have_all():
        with contextlib.suppress(TimeoutError):
            subscriber.receive(0.01)
        return subscriber.stats().lines[1].second >= before[1].second + 90

    eventually(both_have_all)
    straight, longer = subscriber.stats().lines
    assert straight.first >= before[0].first + 90
    assert straight.first + longer.first == sequence + 101
    assert longer.lag_ms > straight.lag_ms
    check_ledger(subscriber, lost=0)
