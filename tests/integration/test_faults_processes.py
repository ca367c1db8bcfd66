"""Processes that are killed, frozen and restarted."""

import json
import signal

from tests.integration.inside import without_nacks
from tests.integration.peers import (
    TOPIC,
    Collector,
    check_exact,
    check_ledger,
    eventually,
    ranges,
    take,
)
from tests.places import lasting_place


def test_a_killed_subscriber_harms_nobody(make_publisher, make_subscriber, make_child):
    publisher = make_publisher()
    other = Collector(make_subscriber(publisher.endpoint, start=0, joins=publisher))
    children = [make_child("subscribe", publisher.endpoint, 10**9) for _ in range(2)]
    publisher.wait_for_subscribers(3, timeout=20)
    n = 0
    while n < 100_000:
        publisher.publish(TOPIC, n)
        n += 1
        if n == 20_000:
            eventually(lambda: children[0].lines.qsize() > 2)
            children[0].signal(signal.SIGKILL)
        if n == 50_000:
            children[1].signal(signal.SIGKILL)
    check_exact(other.wait_for(n))
    check_ledger(other.subscriber, delivered=n, outstanding=0, lost=0)
    assert children[0].wait() == -signal.SIGKILL


def test_a_frozen_subscriber_process_holds_nobody_up_for_long(
    make_publisher, make_subscriber, make_child
):
    publisher = make_publisher(stall_ms=200, replay_bytes=2**20)
    other = Collector(make_subscriber(publisher.endpoint, joins=publisher))
    child = make_child("subscribe", publisher.endpoint, 200_000)
    publisher.wait_for_subscribers(2, timeout=20)
    value, n = bytes(100), 0
    child.signal(signal.SIGSTOP)
    while n < 200_000:
        publisher.publish(TOPIC, value)
        n += 1
    publisher.flush()
    stats = publisher.stats()
    assert 1 <= stats.stalls <= 50  # probes included, and not once a message
    other.wait_for(n)
    check_ledger(other.subscriber, delivered=n, lost=0)
    child.signal(signal.SIGCONT)
    publisher.publish(TOPIC, value)
    line = eventually(lambda: next((x for x in iter(child.line, "") if x[0] == "{"), None))
    ledger = json.loads(line)
    child.tell("end")
    assert ledger["balanced"]
    assert ledger["published"] == ledger["delivered"] + ledger["lost"] + ledger["outstanding"]
    assert ledger["delivered"] + ledger["lost"] == 200_001
    assert {reason for _, _, reason in ledger["losses"]} <= {"evicted"}
    assert child.wait() == 0


def test_a_publisher_killed_and_restarted_at_its_port(make_subscriber, make_child):
    child = make_child("publish", lasting_place(), 10_000)
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
    child = make_child("publish", lasting_place(), 50_000)
    endpoint, session = child.line().split()

    class Target:
        def __init__(self, endpoint):
            self.endpoint = endpoint

    # Nothing but heartbeats and handshakes gets through at the end, and no repair comes.
    proxy = make_proxy(Target(endpoint), frame_loss=0.0, drop=lambda prefix: b"\0p2\1\1" in prefix)
    reports = []
    subscriber = make_subscriber(proxy.endpoint, on_gap=reports.append)
    with without_nacks(subscriber):
        proxy.frame_loss = 0.5
        assert child.line() == "published"
        eventually(lambda: [s.head for s in check_ledger(subscriber).streams] == [50_000])
        child.signal(signal.SIGKILL)
        child.wait()
        assert check_ledger(subscriber).outstanding > 0
    proxy.frame_loss = 0.0
    again = make_child("publish", endpoint, 5_000)
    again.line()
    collector = Collector(subscriber)
    eventually(lambda: sum(m.session != int(session) for m in list(collector.messages)) == 5_000)
    old = [message for message in collector.messages if message.session == int(session)]
    new = collector.messages[len(old) :]
    check_exact(new)
    lost = {n for report in reports for n in range(report.start, report.stop)}
    assert lost
    assert {report.reason.value for report in reports} == {"publisher_gone"}
    assert {report.session for report in reports} == {int(session)}
    check_exact(old, sorted(set(range(50_000)) - lost))
    stats = check_ledger(subscriber, lost=len(lost), outstanding=0)
    assert ranges(stats.losses) == ranges(reports)


def test_a_publisher_killed_at_full_speed_again_and_again(make_subscriber, make_child):
    endpoint = lasting_place()
    sessions = []
    subscriber = None
    for _ in range(4):
        child = make_child("publish_without_end", endpoint)
        endpoint, session = child.line().split()
        sessions.append(int(session))
        if subscriber is None:
            subscriber = make_subscriber(endpoint)
            collector = Collector(subscriber)
        eventually(lambda: sum(m.session == sessions[-1] for m in list(collector.messages)) > 2_000)  # noqa: B023
        check_ledger(subscriber)
        child.signal(signal.SIGKILL)
        child.wait()
    stats = check_ledger(subscriber)
    for ledger in stats.streams:
        own = [message for message in collector.messages if message.session == ledger.session]
        lost = {
            n
            for loss in stats.losses
            if loss.session == ledger.session
            for n in range(loss.start, loss.stop)
        }
        assert own[0].sequence == 0
        check_exact(own, [n for n in range(own[-1].sequence + 1) if n not in lost])
    assert [ledger.session for ledger in stats.streams] == sessions
