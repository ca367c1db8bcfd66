"""Lost frames and broken connections, on real sockets: nothing is lost, and the ledger balances."""

import threading

import pytest

from tests.integration.inside import cut_recovery
from tests.integration.peers import (
    TOPIC,
    Collector,
    check_exact,
    check_ledger,
    check_silence,
    eventually,
    small_frames,
    take_all,
)


def publish_paced(publisher, start, stop, pause=lambda n: None):
    for n in range(start, stop):
        publisher.publish(TOPIC, n)
        pause(n)


@pytest.mark.parametrize(("loss", "count"), [(0.1, 50_000), (0.5, 20_000)])
def test_lost_frames_are_repaired(make_publisher, make_subscriber, make_proxy, loss, count):
    publisher = make_publisher(config=small_frames())
    proxy = make_proxy(publisher, frame_loss=loss, seed=7, loss_after_frames=10)
    subscriber = make_subscriber(proxy.endpoint, joins=publisher, on_gap="raise")
    collector = Collector(subscriber)
    publish_paced(publisher, 0, count)
    check_exact(collector.wait_for(count))
    check_ledger(subscriber, published=count, delivered=count, outstanding=0, lost=0)
    assert proxy.frames_dropped > 3
    assert subscriber.stats().repaired["buffer"] > 0
    repaired = subscriber.stats().repaired["buffer"]
    # The publisher counts an answer once it is sent.
    eventually(lambda: publisher.stats().messages_repaired >= repaired)


@pytest.mark.parametrize("seed", range(5))
def test_a_lost_tail_is_repaired_through_heartbeats(
    make_publisher, make_subscriber, make_proxy, seed
):
    publisher = make_publisher(config=small_frames())
    proxy = make_proxy(publisher, frame_loss=0.0, seed=seed)
    subscriber = make_subscriber(proxy.endpoint, joins=publisher, on_gap="raise")
    collector = Collector(subscriber)
    for burst in range(10):
        proxy.frame_loss = 0.9
        publisher.publish_many(TOPIC, range(burst * 100, burst * 100 + 100))
        eventually(lambda: publisher.stats().unsent_frames == 0)
        proxy.frame_loss = 0.3  # heartbeats are lost, too
        collector.wait_for(burst * 100 + 100)
    check_exact(collector.messages)
    check_ledger(subscriber, delivered=1000, lost=0)


def test_several_subscribers_each_lose_something_else(make_publisher, make_subscriber, make_proxy):
    publisher = make_publisher(config=small_frames())
    collectors = []
    for seed in range(4):
        proxy = make_proxy(publisher, frame_loss=0.2, seed=seed, loss_after_frames=10)
        subscriber = make_subscriber(proxy.endpoint, joins=publisher, name=f"reader {seed}")
        collectors.append(Collector(subscriber))
    publish_paced(publisher, 0, 20_000)
    for collector in collectors:
        check_exact(collector.wait_for(20_000))
        check_ledger(collector.subscriber, delivered=20_000, outstanding=0, lost=0)
    names = {requester.name for requester in publisher.stats().requesters}
    assert names == {f"reader {seed}" for seed in range(4)}


@pytest.mark.rounds(15, 400)
def test_a_connection_cut_again_and_again(make_publisher, make_subscriber, make_proxy, rounds):
    publisher = make_publisher()
    proxy = make_proxy(publisher)
    subscriber = make_subscriber(proxy.endpoint, joins=publisher, on_gap="raise")
    collector = Collector(subscriber)
    n = 0
    while proxy.cuts < rounds:
        before = proxy.cuts
        proxy.cut()
        if proxy.cuts == before:  # not connected again yet
            publisher.publish(TOPIC, n)
            n += 1
        else:
            publish_paced(publisher, n, n + 500)
            n += 500
        check_ledger(subscriber)
    check_exact(collector.wait_for(n))
    check_ledger(subscriber, published=n, delivered=n, outstanding=0, lost=0)
    assert publisher.stats().subscribers == 1


def test_both_channels_cut_while_frames_are_lost(make_publisher, make_subscriber, make_proxy):
    publisher = make_publisher(config=small_frames())
    data = make_proxy(publisher, frame_loss=0.2, seed=3, loss_after_frames=10)
    subscriber = make_subscriber(data.endpoint, joins=publisher, on_gap="raise")
    collector = Collector(subscriber)
    for n in range(20_000):
        publisher.publish(TOPIC, n)
        if n % 2000 == 1999:
            data.cut()
        if n % 3000 == 2999:
            cut_recovery(subscriber, publisher.session)
    check_exact(collector.wait_for(20_000))
    check_ledger(subscriber, delivered=20_000, outstanding=0, lost=0)


def test_stall_and_resume(make_publisher, make_subscriber, make_proxy):
    publisher = make_publisher(stall_ms=50)
    proxy = make_proxy(publisher)
    subscriber = make_subscriber(proxy.endpoint, joins=publisher, on_gap="raise")
    collector = Collector(subscriber)
    for turn in range(5):
        proxy.stall()
        publish_paced(publisher, turn * 20_000, turn * 20_000 + 20_000)
        check_ledger(subscriber)
        proxy.resume()
    check_exact(collector.wait_for(100_000))
    check_ledger(subscriber, delivered=100_000, outstanding=0, lost=0)


def test_a_partition_that_ends(make_publisher, make_subscriber, make_proxy):
    publisher = make_publisher(stall_ms=50)
    proxy = make_proxy(publisher)
    subscriber = make_subscriber(proxy.endpoint, joins=publisher, on_gap="raise")
    collector = Collector(subscriber)
    publish_paced(publisher, 0, 1_000)
    collector.wait_for(1_000)
    proxy.refuse()
    proxy.cut()
    publish_paced(publisher, 1_000, 50_000)
    check_ledger(subscriber)
    proxy.refuse(False)
    check_exact(collector.wait_for(50_000))
    check_ledger(subscriber, delivered=50_000, outstanding=0, lost=0)


def test_a_partition_longer_than_the_buffer_reaches(make_publisher, make_subscriber, make_proxy):
    publisher = make_publisher(replay_bytes=20_000, config=small_frames())
    proxy = make_proxy(publisher)
    reports = []
    subscriber = make_subscriber(proxy.endpoint, joins=publisher, on_gap=reports.append)
    publish_paced(publisher, 0, 1_000)
    publisher.flush()
    messages = take_all(subscriber, 1_000)
    proxy.refuse()
    proxy.cut()
    publish_paced(publisher, 1_000, 50_000)
    publisher.flush()
    earliest = publisher.stats().streams[TOPIC][0]
    proxy.refuse(False)
    messages += take_all(subscriber, 50_000)
    (report,) = reports
    assert (report.start, report.stop, report.reason.value) == (1_000, earliest, "evicted")
    check_exact(messages, [*range(1_000), *range(earliest, 50_000)])
    check_ledger(subscriber, published=50_000, lost=earliest - 1_000, outstanding=0)


def test_a_topic_that_began_during_a_partition(make_publisher, make_subscriber, make_proxy):
    publisher = make_publisher()
    proxy = make_proxy(publisher)
    subscriber = make_subscriber(proxy.endpoint, joins=publisher, on_gap="raise")
    proxy.refuse()
    proxy.cut()
    for n in range(1_000):
        publisher.publish(f"topic {n % 10}", n // 10)
    proxy.refuse(False)
    collector = Collector(subscriber)
    collector.wait_for(1_000)
    for topic in range(10):
        own = [message for message in collector.messages if message.topic == f"topic {topic}"]
        check_exact(own)
    check_ledger(subscriber, delivered=1_000, outstanding=0, lost=0)


def test_latency_changes_nothing(make_publisher, make_subscriber, make_proxy):
    publisher = make_publisher(config=small_frames())
    proxy = make_proxy(publisher, delay_ms=30, frame_loss=0.05, seed=1, loss_after_frames=10)
    subscriber = make_subscriber(proxy.endpoint, joins=publisher, on_gap="raise")
    collector = Collector(subscriber)
    publish_paced(publisher, 0, 20_000)
    check_exact(collector.wait_for(20_000))
    check_ledger(subscriber, delivered=20_000, lost=0)


def test_stats_balance_at_every_moment(make_publisher, make_subscriber, make_proxy):
    publisher = make_publisher(config=small_frames(), replay_bytes=50_000)
    proxy = make_proxy(publisher, frame_loss=0.3, seed=5, loss_after_frames=10)
    subscriber = make_subscriber(proxy.endpoint, joins=publisher)
    collector = Collector(subscriber)
    ends, checks = threading.Event(), []

    def check():
        while not ends.is_set():
            stats = check_ledger(subscriber)
            assert stats.delivered <= stats.published <= publisher.stats().published
            checks.append(stats.delivered)

    checkers = [threading.Thread(target=check) for _ in range(2)]
    for checker in checkers:
        checker.start()
    publish_paced(publisher, 0, 50_000)
    publisher.flush()

    def settled():
        stats = check_ledger(subscriber)
        return stats.published == 50_000 and not stats.outstanding

    eventually(settled)
    ends.set()
    for checker in checkers:
        checker.join()
    stats = check_ledger(subscriber)
    assert stats.delivered == len(collector.messages)
    lost = {n for loss in stats.losses for n in range(loss.start, loss.stop)}
    check_exact(collector.messages, sorted(set(range(50_000)) - lost))
    assert len(checks) > 10
    subscriber.close()
    check_ledger(subscriber)


def test_nothing_comes_twice_behind_repairs(make_publisher, make_subscriber, make_proxy):
    publisher = make_publisher(config=small_frames())
    proxy = make_proxy(publisher, frame_loss=0.3, seed=2, loss_after_frames=10)
    subscriber = make_subscriber(proxy.endpoint, joins=publisher)
    publish_paced(publisher, 0, 5_000)
    publisher.flush()
    check_exact(take_all(subscriber, 5_000))
    check_silence(subscriber, 0.2)
