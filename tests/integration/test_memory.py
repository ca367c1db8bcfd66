"""Memory and idle cost, measured in processes of their own."""

import pytest

from p2pmsg import PublisherConfig
from tests.integration.inside import unheard_requests
from tests.integration.peers import LOOPBACK, TOPIC

MIB = 2**20
FRAME_BYTES = 64 * 1024


def test_memory_is_bounded_with_a_subscriber_that_never_reads(make_child):
    """The publisher keeps 4 MiB for replay and a queue of 4 MiB; the subscriber 1 MiB."""
    publisher = make_child("grow", LOOPBACK, 4 * MIB, 150 * 10**6, FRAME_BYTES)
    endpoint = publisher.line()
    subscriber = make_child("hold", endpoint, MIB)
    assert subscriber.line() == "joining"
    grown, replayed = map(int, publisher.line(60).split())
    subscriber.tell("end")
    held_rss, held_bytes = map(int, subscriber.line().split())
    publisher.tell("end")
    print(f"publisher +{grown / MIB:.1f} MiB, subscriber +{held_rss / MIB:.1f} MiB")
    assert replayed <= 4 * MIB
    assert held_bytes <= MIB + 64 * 1024 + 1024
    assert grown < 40 * MIB
    assert held_rss < 30 * MIB
    assert publisher.wait() == 0
    assert subscriber.wait() == 0


def test_memory_is_bounded_with_a_frozen_subscriber(make_child):
    import signal

    publisher = make_child("grow", LOOPBACK, 4 * MIB, 150 * 10**6)
    subscriber = make_child("hold", publisher.line(), MIB)
    subscriber.line()
    subscriber.signal(signal.SIGSTOP)
    # Whether it had joined is the publisher's luck; another one makes sure that it goes on.
    make_child("hold", endpoint_of(publisher, subscriber), MIB)
    grown, replayed = map(int, publisher.line(60).split())
    assert replayed <= 4 * MIB
    assert grown < 40 * MIB


def endpoint_of(publisher, subscriber):
    return subscriber.process.args[-2]


@pytest.mark.parametrize("receive_bytes", [2**16, 2**20])
def test_a_subscriber_that_waits_for_a_repair_holds_no_more_than_it_may(
    make_publisher, make_subscriber, make_proxy, receive_bytes
):
    publisher = make_publisher(stall_ms=20, config=PublisherConfig(frame_bytes=FRAME_BYTES))
    lost = []

    def drop(prefix):
        is_first = prefix.startswith(TOPIC.encode() + b"\0p2\1\1") and not lost
        lost.extend([prefix] * is_first)
        return is_first

    proxy = make_proxy(publisher, drop=drop)
    subscriber = make_subscriber(proxy.endpoint, joins=publisher, receive_bytes=receive_bytes)
    held = 0
    with unheard_requests(publisher):  # no repair comes, so that everything must wait
        for n in range(20_000):
            publisher.publish(TOPIC, bytes(500))
            if n % 100 == 0:
                stats = subscriber.stats()
                assert stats.balanced
                held = max(held, stats.bytes_held)
    assert lost
    assert held <= receive_bytes + 64 * 1024 + 1024
    for n in range(20_000):
        assert subscriber.receive(20).sequence == n
    assert subscriber.stats().lost == 0


def test_an_idle_pair_costs_next_to_nothing(make_child):
    child = make_child("idle", 2)
    shares = list(map(float, child.line(30).split()))
    print("percent of one core, nobody receives and receiving:", shares)
    assert max(shares) < 3.0
