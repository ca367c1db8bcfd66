"""Opening, closing, leaving, forking, and ending in every way."""

import contextlib
import errno
import gc
import os
import re
import signal
import threading
import time
import warnings
import weakref

import pytest

import p2pmsg
from tests.integration.inside import unheard_requests
from tests.integration.peers import (
    LOOPBACK,
    TOPIC,
    check_exact,
    check_ledger,
    check_silence,
    eventually,
    small_frames,
    take,
    take_all,
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


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_a_with_block_left_by_an_exception(make_subscriber, error):
    with contextlib.suppress(error), p2pmsg.Publisher(LOOPBACK) as publisher:
        subscriber = make_subscriber(publisher.endpoint, joins=publisher)
        for n in range(1_000):
            publisher.publish(TOPIC, n)
        with contextlib.suppress(error), p2pmsg.Subscriber(publisher.endpoint) as other:
            raise error
        raise error
    assert publisher.stats().undelivered == 0
    check_exact(take(subscriber, 1_000))
    with pytest.raises(p2pmsg.ClosedError):
        other.receive(0)


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


def test_close_waits_no_longer_than_it_is_reported(make_publisher, make_subscriber, make_proxy):
    publisher = make_publisher()
    proxy = make_proxy(publisher)
    make_subscriber(proxy.endpoint, joins=publisher)
    proxy.stall()
    publisher.publish(TOPIC, 0)
    with unheard_requests(publisher):
        publisher.close(timeout=0.2)  # the stall has no end
    assert publisher.stats().undelivered == 1


def test_close_without_subscribers_does_not_wait(make_publisher):
    publisher = make_publisher()
    publisher.publish_many(TOPIC, range(1000))
    publisher.close(timeout=1000.0)  # longer than a test may take
    assert publisher.stats().undelivered == 0


def test_a_subscriber_that_leaves_is_not_waited_for(connect):
    publisher, subscriber = connect()
    subscriber.close()
    eventually(lambda: publisher.stats().subscribers == 0)
    publisher.publish(TOPIC, 0)
    publisher.close()
    assert publisher.stats().undelivered == 0


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


def test_a_port_is_free_again_after_close(make_subscriber, tmp_path):
    for endpoint in (LOOPBACK, f"ipc://{tmp_path}/socket", "inproc://again"):
        recovery = LOOPBACK if endpoint == LOOPBACK else None
        for n in range(7):
            with p2pmsg.Publisher(endpoint, recovery_endpoint=recovery) as publisher:
                endpoint = publisher.endpoint
                recovery = publisher.recovery_endpoint
                subscriber = make_subscriber(endpoint, joins=publisher)
                publisher.publish(TOPIC, n)
                assert subscriber.receive(60).value == n
            subscriber.close()


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


def test_a_subscriber_of_nobody_closes():
    for _ in range(5):
        with p2pmsg.Subscriber("tcp://127.0.0.1:9") as subscriber:
            with pytest.raises(TimeoutError):
                subscriber.receive(0.01)


def test_a_closed_peer_can_be_collected(make_publisher):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        publisher = p2pmsg.Publisher(LOOPBACK)
        subscriber = p2pmsg.Subscriber(publisher.endpoint)
        publisher.wait_for_subscribers(1, timeout=60)
        watched = [weakref.ref(publisher), weakref.ref(subscriber)]
        subscriber.close()
        publisher.close()
        del publisher, subscriber
        gc.collect()
    eventually(lambda: gc.collect() >= 0 and not any(peer() for peer in watched))


@pytest.mark.long
@pytest.mark.parametrize(
    "how", ["with", pytest.param("close", marks=pytest.mark.long), "raise", "interrupt"]
)
def test_a_process_that_publishes_and_ends_at_once(make_subscriber, make_child, how):
    child = make_child("publish_and_exit", LOOPBACK, 10_000, how)
    subscriber = make_subscriber(child.line(), on_gap="raise")
    check_exact(take_all(subscriber, 10_000))
    assert child.wait() == {"raise": 3, "interrupt": -2}.get(how, 0)


@pytest.mark.long
@pytest.mark.parametrize(
    "how", ["held", pytest.param("dropped", marks=pytest.mark.long), "cycle", "blocked"]
)
def test_a_process_that_ends_with_open_peers_ends(make_child, how):
    child = make_child("leave_open", LOOPBACK, how)
    assert child.line() == "done"
    assert child.wait(60) == 0


@pytest.mark.long
def test_a_forked_child_cannot_use_the_peers_and_the_parent_goes_on(make_child):
    child = make_child("fork", LOOPBACK)
    assert child.line(40) == "0"
    assert child.line() == "True"
    assert child.wait() == 0


@pytest.mark.long
def test_forked_children_have_ids_of_their_own(make_publisher):
    """Two subscribers with one id would count as one."""
    publisher = make_publisher()
    children = []
    for _ in range(2):
        child = os.fork()
        if child == 0:
            with p2pmsg.Subscriber(publisher.endpoint):
                time.sleep(20)
            os._exit(0)
        children.append(child)
    try:
        publisher.wait_for_subscribers(2, timeout=60)
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
