"""Opening, closing, leaving, forking, and ending in every way."""

import contextlib
import errno
import gc
import os
import re
import threading

import pytest

import p2pmsg
from tests.integration.peers import (
    LOOPBACK,
    TOPIC,
    check_exact,
    check_ledger,
    check_silence,
    eventually,
    small_frames,
    take,
)


def test_closing_twice_and_using_afterwards(connect):
    publisher, subscriber = connect()
    publisher.publish(TOPIC, 0)
    take(subscriber, 1)
    for _ in range(2):
        publisher.close()
        subscriber.close()
    for use in (
        lambda: publisher.publish(TOPIC, 0),
        lambda: publisher.publish("new", 0),
        lambda: publisher.publish_many(TOPIC, [0]),
        publisher.flush,
        lambda: publisher.wait_for_subscribers(5, timeout=5),
        subscriber.receive,
        lambda: subscriber.receive(0),
        subscriber.receive_many,
    ):
        with pytest.raises(p2pmsg.ClosedError):
            use()
    assert list(subscriber) == []
    assert publisher.stats().published == 1
    assert check_ledger(subscriber).delivered == 1
    assert "closed" in repr(publisher)


def test_close_waits_for_a_subscriber_that_still_has_gaps(
    make_publisher, make_subscriber, make_proxy
):
    for seed in range(5):
        publisher = make_publisher(config=small_frames())
        proxy = make_proxy(publisher, frame_loss=0.3, seed=seed, loss_after_frames=5)
        subscriber = make_subscriber(proxy.endpoint, joins=publisher, on_gap="raise")
        for n in range(5_000):
            publisher.publish(TOPIC, n)
        publisher.close(timeout=60)
        assert publisher.stats().undelivered == 0
        check_exact(take(subscriber, 5_000))
        check_silence(subscriber)
        check_ledger(subscriber, delivered=5_000, outstanding=0, lost=0)


def test_a_closed_subscriber_keeps_its_ledger(connect):
    publisher, subscriber = connect()
    publisher.publish_many(TOPIC, range(10_000))
    take(subscriber, 10)
    eventually(lambda: subscriber.stats().published == 10_000)
    subscriber.close()
    check_ledger(subscriber, published=10_000, delivered=10, outstanding=9_990, lost=0)


def test_a_port_in_use(make_publisher, tmp_path):
    for endpoint in (LOOPBACK, f"ipc://{tmp_path}/socket", "inproc://in-use"):
        publisher = make_publisher(endpoint)
        with pytest.raises(p2pmsg.BindError) as refused:
            p2pmsg.Publisher(publisher.endpoint)
        assert isinstance(refused.value, OSError)
        assert re.search("in use|listens there|has bound it", str(refused.value))
        assert refused.value.errno == errno.EADDRINUSE
    taken = make_publisher()
    with pytest.raises(p2pmsg.BindError):
        p2pmsg.Publisher(LOOPBACK, recovery_endpoint=taken.endpoint)
    with pytest.raises(p2pmsg.BindError):
        p2pmsg.Publisher("tcp://192.0.2.1:0")


def open_files():
    return len(os.listdir("/proc/self/fd"))


def test_twenty_peers_leave_no_file_and_no_thread(make_publisher):
    make_publisher()  # the context's own files
    gc.collect()
    files, threads = open_files(), threading.active_count()
    for n in range(20):
        with p2pmsg.Publisher(LOOPBACK) as publisher:
            with p2pmsg.Subscriber(publisher.endpoint) as subscriber:
                publisher.wait_for_subscribers(1, timeout=60)
                publisher.publish(TOPIC, n)
                assert subscriber.receive(60).value == n
        with contextlib.suppress(p2pmsg.BindError):
            p2pmsg.Publisher("tcp://192.0.2.1:0")
    # Fewer, where a former test's were still ending.
    eventually(lambda: open_files() <= files and threading.active_count() <= threads)
