"""Lost frames, broken connections, killed and frozen processes, slow readers: all is balanced."""

import json
import signal
import time

import pytest

import p2pmsg
from p2pmsg import PublisherConfig
from tests.endpoints import lasting_endpoint
from tests.integration.inside import unheard_requests, without_nacks
from tests.integration.peers import (
    TOPIC,
    Collector,
    check_exact,
    check_ledger,
    eventually,
    ranges,
    small_frames,
    take,
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


@pytest.mark.rounds(15, 400)
def test_a_connection_cut_again_and_again(connect_by_proxy, rounds):
    publisher, proxy, subscriber = connect_by_proxy(on_gap="raise")
    collector = Collector(subscriber)
    n = 0
    while proxy.cuts < rounds:
        before = proxy.cuts
        proxy.cut()
        if proxy.cuts == before:  # not connected again yet
            publisher.publish(TOPIC, n)
            n += 1
            time.sleep(0.001)
        else:
            publish_paced(publisher, n, n + 500)
            n += 500
        check_ledger(subscriber)
    check_exact(collector.wait_for(n))
    check_ledger(subscriber, published=n, delivered=n, outstanding=0, lost=0)
    assert publisher.stats().subscribers == 1


def test_stall_and_resume(connect_by_proxy):
    publisher, proxy, subscriber = connect_by_proxy(
        publisher={"stall_timeout": 0.05}, on_gap="raise"
    )
    collector = Collector(subscriber)
    for turn in range(3):
        proxy.stall()
        publish_paced(publisher, turn * 10_000, turn * 10_000 + 10_000)
        check_ledger(subscriber)
        proxy.resume()
    check_exact(collector.wait_for(30_000))
    check_ledger(subscriber, delivered=30_000, outstanding=0, lost=0)


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


def test_a_killed_subscriber_harms_nobody(make_publisher, make_subscriber, make_child):
    publisher = make_publisher()
    other = Collector(make_subscriber(publisher.endpoint, start=0, joins=publisher))
    children = [make_child("subscribe", publisher.endpoint, 10**9) for _ in range(2)]
    publisher.wait_for_subscribers(3, timeout=60)
    n = 0
    while n < 40_000:
        publisher.publish(TOPIC, n)
        n += 1
        if n == 10_000:
            eventually(lambda: children[0].lines.qsize() > 2)
            children[0].signal(signal.SIGKILL)
        if n == 25_000:
            children[1].signal(signal.SIGKILL)
    check_exact(other.wait_for(n))
    check_ledger(other.subscriber, delivered=n, outstanding=0, lost=0)
    assert children[0].wait() == -signal.SIGKILL


def test_a_frozen_subscriber_process_holds_nobody_up_for_long(
    make_publisher, make_subscriber, make_child
):
    publisher = make_publisher(stall_timeout=0.2, replay_bytes=2**20)
    other = Collector(make_subscriber(publisher.endpoint, joins=publisher))
    child = make_child("subscribe", publisher.endpoint, 40_000)
    publisher.wait_for_subscribers(2, timeout=60)
    value, n = bytes(600), 0
    child.signal(signal.SIGSTOP)
    while n < 40_000:
        publisher.publish(TOPIC, value)
        n += 1
        if n % 500 == 0:
            other.wait_for(n - 500)  # it keeps up, also where the machine is busy
    publisher.flush()
    stats = publisher.stats()
    assert 1 <= stats.stalls <= 50  # probes included, and not once a message
    other.wait_for(n)
    check_ledger(other.subscriber, delivered=n, lost=0)
    child.signal(signal.SIGCONT)
    publisher.publish(TOPIC, value)
    line = eventually(lambda: next((x for x in iter(child.line, "") if x[0] == "{"), None))
    ledger = json.loads(line)
    child.order("end")
    assert ledger["balanced"]
    assert ledger["published"] == ledger["delivered"] + ledger["lost"] + ledger["outstanding"]
    assert ledger["delivered"] + ledger["lost"] == 40_001
    assert {reason for _, _, reason in ledger["losses"]} <= {"evicted"}
    assert child.wait() == 0


def test_a_publisher_killed_and_restarted_at_its_port(make_subscriber, make_child):
    child = make_child("publish", lasting_endpoint(), 10_000)
    endpoint, session = child.line().split()
    reports = []
    subscriber = make_subscriber(endpoint, on_gap=reports.append)
    assert child.line() == "published"
    check_exact(take(subscriber, 10_000))
    child.signal(signal.SIGKILL)
    child.wait()
    again = make_child("publish", endpoint, 5_000)
    assert again.line().split() != [endpoint, session]
    messages = take(subscriber, 5_000)
    check_exact(messages)
    assert messages[0].session != int(session)
    assert reports == []
    assert len(check_ledger(subscriber, delivered=15_000, outstanding=0, lost=0).streams) == 2


def test_what_a_killed_publisher_still_owed_is_reported(make_subscriber, make_child, make_proxy):
    child = make_child("publish", lasting_endpoint(), 20_000)
    endpoint, session = child.line().split()

    class Target:
        def __init__(self, endpoint):
            self.endpoint = endpoint

    # Nothing but heartbeats and handshakes gets through at the end, and no repair comes.
    proxy = make_proxy(Target(endpoint), frame_loss=0.5, drop=lambda prefix: b"\0p2\1\1" in prefix)
    reports = []
    proxy.stall()  # nothing is published before no NACK is sent
    subscriber = make_subscriber(proxy.endpoint, on_gap=reports.append)
    with without_nacks(subscriber):
        proxy.resume()
        assert child.line() == "published"
        eventually(lambda: [s.head for s in check_ledger(subscriber).streams] == [20_000])
        child.signal(signal.SIGKILL)
        child.wait()
        assert check_ledger(subscriber).outstanding > 0
    proxy.frame_loss = 0.0
    again = make_child("publish", endpoint, 5_000)
    _, its_session = again.line().split()
    collector = Collector(subscriber)
    eventually(lambda: is_at(collector, int(its_session), 4_999))
    old = [message for message in collector.messages if message.session == int(session)]
    new = collector.messages[len(old) :]
    check_exact(new)
    lost = {n for report in reports for n in range(report.start, report.stop)}
    assert lost
    assert {report.reason.value for report in reports} == {"publisher_gone"}
    assert {report.session for report in reports} == {int(session)}
    check_exact(old, sorted(set(range(20_000)) - lost))
    stats = check_ledger(subscriber, lost=len(lost), outstanding=0)
    assert ranges(stats.losses) == ranges(reports)


def is_at(collector, session, sequence):
    """Whether the last message is of that session, and that one or a later one."""
    return any(m.session == session and m.sequence >= sequence for m in collector.messages[-1:])


COUNT = 20_000
PADDING = {"padding": bytes(1600)}
"""So that all of them are far more than queues and the system's buffers hold."""


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
    # On a busy machine the quick one is waited for, too, and must not be shed.
    publisher, slow, quick = slow_and_quick(make_publisher, make_subscriber, stall_timeout=1.0)
    for start in range(0, COUNT, 200):
        publish(publisher, start, start + 200)
        quick.wait_for(start)  # it keeps up, also where the machine is busy
    stats = publisher.stats()
    assert stats.stalls >= 1
    assert stats.stalls <= COUNT // 100  # probes included, and not once a message
    check_exact(quick.wait_for(COUNT))
    check_ledger(quick.subscriber, delivered=COUNT, lost=0)
    check_slow(publisher, slow, COUNT)
    publish(publisher, COUNT, COUNT + 100)
    publisher.flush()
    check_exact(take_all(slow, COUNT + 100), range(COUNT, COUNT + 100))


def test_drop_never_waits(make_publisher, make_subscriber):
    publisher, slow, quick = slow_and_quick(make_publisher, make_subscriber, on_full="drop")
    publish(publisher, 0, COUNT)
    publisher.flush()
    stats = publisher.stats()
    assert (stats.stalls, stats.stalled) == (0, 0)
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
    # A reader that stops for longer than that sheds, and then nothing is refused.
    options = {"on_full": "raise", "stall_timeout": 60.0}
    publisher, slow, quick = slow_and_quick(make_publisher, make_subscriber, **options)
    refused, n = 0, 0
    while not refused:
        try:
            assert publisher.publish(TOPIC, n, headers=PADDING) == n
            n += 1
        except p2pmsg.SendQueueFullError as error:
            assert "slow" in str(error)
            refused += 1
        assert n < 10**6
    with pytest.raises(p2pmsg.SendQueueFullError) as many:
        while n < 10**6:  # what was on its way may have made space
            publisher.publish_many(TOPIC, range(n, n + 10))
            n += 10
    assert "0 of 10 values were accepted" in many.value.__notes__[0]
    assert publisher.stats().published == n
    collector = Collector(slow)
    while n < COUNT:
        try:
            assert publisher.publish(TOPIC, n, headers=PADDING) == n
            n += 1
        except p2pmsg.SendQueueFullError:
            refused += 1
            time.sleep(0.001)
    for reader in (collector, quick):
        check_exact(reader.wait_for(n))
        check_ledger(reader.subscriber, delivered=n, lost=0)
    assert publisher.stats().frames_shed == 0


def test_publish_many_against_a_full_queue_with_raise(make_publisher, make_subscriber):
    options = {"on_full": "raise", "stall_timeout": 60.0}
    publisher, slow, _ = slow_and_quick(make_publisher, make_subscriber, **options)
    values = [bytes(500)] * 100_000
    with pytest.raises(p2pmsg.SendQueueFullError) as full:
        while True:
            publisher.publish_many(TOPIC, values)
    accepted = int(full.value.__notes__[0].split()[0])
    head = publisher.stats().streams[TOPIC][1]
    assert head % len(values) == accepted
    messages = take_all(slow, head)
    assert [message.sequence for message in messages] == list(range(head))


FRAME_BYTES = 64 * 1024


@pytest.mark.parametrize("receive_bytes", [2**16, 2**20])
def test_a_subscriber_that_waits_for_a_repair_holds_no_more_than_it_may(
    make_publisher, make_subscriber, make_proxy, receive_bytes
):
    publisher = make_publisher(stall_timeout=0.02, config=PublisherConfig(frame_bytes=FRAME_BYTES))
    lost = []

    def drop(prefix):
        is_first = prefix.startswith(TOPIC.encode() + b"\0p2\1\1") and not lost
        lost.extend([prefix] * is_first)
        return is_first

    proxy = make_proxy(publisher, drop=drop)
    subscriber = make_subscriber(proxy.endpoint, joins=publisher, receive_bytes=receive_bytes)
    held = 0
    with unheard_requests(publisher):  # no repair comes, so that everything must wait
        for n in range(8_000):
            publisher.publish(TOPIC, bytes(500))
            if n % 100 == 0:
                stats = subscriber.stats()
                assert stats.balanced
                held = max(held, stats.bytes_held)
    assert lost
    assert held <= receive_bytes + 64 * 1024 + 1024
    for n in range(8_000):
        assert subscriber.receive(60).sequence == n
    assert subscriber.stats().lost == 0
