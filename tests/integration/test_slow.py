"""Subscribers that do not keep up, and what `on_full` makes of them."""

import time

import pytest

import p2pmsg
from tests.integration.peers import (
    TOPIC,
    Collector,
    check_exact,
    check_ledger,
    eventually,
    ranges,
    take_all,
)

COUNT = 60_000
PADDING = {"padding": bytes(500)}


def publish(publisher, start, stop):
    for n in range(start, stop):
        publisher.publish(TOPIC, n, headers=PADDING)


def slow_and_quick(make_publisher, make_subscriber, **options):
    publisher = make_publisher(replay_bytes=2**20, **options)
    slow = make_subscriber(
        publisher.endpoint, joins=publisher, receive_bytes=2**17, on_gap=lambda report: None
    )
    quick = Collector(make_subscriber(publisher.endpoint, joins=publisher))
    return publisher, slow, quick


def check_slow(publisher, slow, count):
    """Let the slow one read: what the buffer does not hold any more is lost, the rest comes."""
    publisher.flush()
    earliest = publisher.stats().streams[TOPIC][0]
    # What waits in its socket yet would be taken, and not shed, as soon as somebody reads.
    eventually(lambda: check_ledger(slow, delivered=0).published == count)
    messages = take_all(slow, count)
    stats = check_ledger(slow, published=count, outstanding=0)
    assert {loss.reason.value for loss in stats.losses} == {"evicted"}
    lost = {n for loss in stats.losses for n in range(loss.start, loss.stop)}
    assert max(lost) == earliest - 1
    check_exact(messages, sorted(set(range(count)) - lost))
    return stats


def test_block_waits_stall_ms_once_and_then_goes_on(make_publisher, make_subscriber):
    publisher, slow, quick = slow_and_quick(make_publisher, make_subscriber, stall_ms=300)
    publish(publisher, 0, COUNT)
    stats = publisher.stats()
    assert stats.stalls >= 1
    assert stats.stalls <= 50  # probes included, and not once a message
    check_exact(quick.wait_for(COUNT))
    check_ledger(quick.subscriber, delivered=COUNT, lost=0)
    check_slow(publisher, slow, COUNT)
    publish(publisher, COUNT, COUNT + 100)
    publisher.flush()
    check_exact(take_all(slow, COUNT + 100), range(COUNT, COUNT + 100))


def test_a_slow_reader_within_the_buffer_loses_nothing(make_publisher, make_subscriber):
    publisher = make_publisher(replay_bytes=2**26, stall_ms=50)
    slow = make_subscriber(publisher.endpoint, joins=publisher, receive_bytes=2**16, on_gap="raise")
    publish(publisher, 0, COUNT)
    publisher.flush()
    check_exact(take_all(slow, COUNT))
    stats = check_ledger(slow, delivered=COUNT, outstanding=0, lost=0)
    assert stats.repaired["buffer"] > 0


def test_a_reader_slower_than_the_publisher_sets_the_pace(make_publisher, make_subscriber):
    publisher = make_publisher(stall_ms=20_000, replay_bytes=2**17)
    slow = make_subscriber(publisher.endpoint, joins=publisher, receive_bytes=2**16, on_gap="raise")
    collector = Collector(slow)
    publish(publisher, 0, COUNT)
    check_exact(collector.wait_for(COUNT))
    assert check_ledger(slow, lost=0).nacks_sent == 0


def test_drop_never_waits(make_publisher, make_subscriber):
    publisher, slow, quick = slow_and_quick(make_publisher, make_subscriber, on_full="drop")
    publish(publisher, 0, COUNT)
    publisher.flush()
    stats = publisher.stats()
    assert (stats.stalls, stats.stalled_ms) == (0, 0)
    quick.wait_for(1)
    earliest = stats.streams[TOPIC][0]
    eventually(
        lambda: (
            check_ledger(quick.subscriber).published == COUNT
            and not quick.subscriber.stats().outstanding
        )
    )
    messages = take_all(slow, COUNT)
    for subscriber, received in ((slow, messages), (quick.subscriber, quick.messages)):
        ledger = check_ledger(subscriber, published=COUNT, outstanding=0)
        lost = {n for loss in ledger.losses for n in range(loss.start, loss.stop)}
        assert not lost or max(lost) < earliest
        check_exact(received, sorted(set(range(COUNT)) - lost))


def test_raise_refuses_and_the_refused_may_be_tried_again(make_publisher, make_subscriber):
    publisher, slow, quick = slow_and_quick(make_publisher, make_subscriber, on_full="raise")
    refused, n = 0, 0
    while not refused:
        try:
            assert publisher.publish(TOPIC, n, headers=PADDING) == n
            n += 1
        except p2pmsg.QueueFullError as error:
            assert "slow" in str(error)
            refused += 1
        assert n < 10**6
    with pytest.raises(p2pmsg.QueueFullError) as many:
        publisher.publish_many(TOPIC, [n] * 10)
    assert "0 of 10 values were accepted" in many.value.__notes__[0]
    assert publisher.stats().published == n
    collector = Collector(slow)
    while n < COUNT:
        try:
            assert publisher.publish(TOPIC, n, headers=PADDING) == n
            n += 1
        except p2pmsg.QueueFullError:
            refused += 1
            time.sleep(0.001)
    for reader in (collector, quick):
        check_exact(reader.wait_for(n))
        check_ledger(reader.subscriber, delivered=n, lost=0)
    assert publisher.stats().frames_shed == 0


def test_publish_many_against_a_full_queue_with_raise(make_publisher, make_subscriber):
    publisher, slow, _ = slow_and_quick(make_publisher, make_subscriber, on_full="raise")
    values = [bytes(500)] * 100_000
    with pytest.raises(p2pmsg.QueueFullError) as full:
        while True:
            publisher.publish_many(TOPIC, values)
    accepted = int(full.value.__notes__[0].split()[0])
    head = publisher.stats().streams[TOPIC][1]
    assert head % len(values) == accepted
    messages = take_all(slow, head)
    assert [message.sequence for message in messages] == list(range(head))


def test_a_slow_callback_of_one_topic_keeps_the_others_in_order(make_publisher, make_subscriber):
    publisher = make_publisher(stall_ms=50)
    subscriber = make_subscriber(publisher.endpoint, joins=publisher, receive_bytes=2**17)
    for n in range(30_000):
        publisher.publish(f"topic {n % 3}", n // 3)
    publisher.flush()
    messages = []
    while len(messages) < 30_000:
        messages += subscriber.receive_many(500, timeout=10)
        if len(messages) < 3_000:
            time.sleep(0.02)
    for topic in range(3):
        check_exact([message for message in messages if message.topic == f"topic {topic}"])
    assert ranges(check_ledger(subscriber, delivered=30_000).losses) == []
