"""Frames that take longer than a peer may be silent: large ones over a slow connection.

They were never there: the connection was made again before all of a frame had come, and the next
one began with its first byte. Messages were lost as `timeout`, jobs became dead letters.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest

import p2pmsg
import p2pmsg.aio
from p2pmsg.peers import puller as puller_peer
from p2pmsg.queue import Puller, Pusher
from p2pmsg.reader import RangeReader
from p2pmsg.testing.proxy import TcpProxy
from tests.integration.peers import LOOPBACK, eventually

pytestmark = pytest.mark.long
SIZE, RATE = 600_000, 300_000
"""A frame of so many bytes, at so many a second: 2 s."""
LARGE = 900_000


@pytest.fixture
def slow(opened):
    return lambda endpoint, rate=RATE: opened.enter_context(TcpProxy(endpoint, bytes_per_s=rate))


def comes(client):
    return client.last_byte_ns(time.monotonic_ns())


@pytest.fixture
def connect_slowly(connect_by_proxy):
    """Make a publisher, a slow proxy to it, and a subscriber for which it is silent after 0.4 s."""
    config = p2pmsg.SubscriberConfig(publisher_timeout=0.4)
    return lambda: connect_by_proxy(proxy={"bytes_per_s": RATE}, config=config)


def test_a_message_comes_that_takes_longer_than_its_publisher_may_be_silent(
    connect_slowly,
):
    publisher, proxy, subscriber = connect_slowly()
    for number in range(2):
        publisher.publish("t", bytes([number]) * SIZE)
        assert subscriber.receive(timeout=60).value[0] == number
    assert (proxy.connections, subscriber.stats().duplicates) == (1, 0)


def test_a_publisher_that_is_silent_is_still_connected_to_again(
    connect_slowly,
):
    """Also where a frame has begun to come."""
    publisher, proxy, subscriber = connect_slowly()
    publisher.publish("t", bytes(SIZE))
    time.sleep(0.5)
    proxy.stall()
    eventually(lambda: proxy.connections > 1)
    proxy.resume()
    assert len(subscriber.receive(timeout=60).value) == SIZE


def test_a_range_comes_whose_messages_take_longer_than_the_timeout(make_publisher, slow):
    publisher = make_publisher(name="feed")
    values = [bytes([number]) * LARGE for number in range(2)]
    for value in values:
        publisher.publish("t", value)
    proxy = slow(publisher.recovery_endpoint)
    nobody = "tcp://127.0.0.1:9"  # its welcome would lead past the proxy
    with RangeReader(
        nobody, recovery_endpoint=proxy.endpoint, session=publisher.session, timeout=2.5
    ) as reader:
        got = [message.value for part in reader.fetch("t", 0, 2) for message in part]
    assert got == values
    assert proxy.connections <= 2  # it is followed once it was made again


@pytest.mark.internal
def test_a_job_comes_that_takes_longer_than_its_pusher_may_be_silent(
    opened, slow, monkeypatch
):  # fmt: skip
    monkeypatch.setattr(puller_peer, "_PUSHER_TIMEOUT_NS", 400_000_000)
    pusher = opened.enter_context(Pusher(LOOPBACK))
    proxy = slow(pusher.endpoint)
    with Puller(proxy.endpoint) as puller:
        for number in range(2):
            pusher.push(bytes([number]) * SIZE)
        for number in range(2):
            with puller.receive(timeout=60) as job:
                assert job.value[0] == number
        pusher.join(timeout=60)
    stats = pusher.stats()
    assert (stats.delivered, stats.done, stats.taken_back, proxy.connections) == (2, 2, 0, 1)


@pytest.mark.parametrize("keys", [(None, None), ("a", "b")])
def test_jobs_come_that_take_longer_than_the_lease(opened, slow, keys):
    """What confirms the first one's lease comes after the second one."""
    pusher = opened.enter_context(Pusher(LOOPBACK, ack_timeout=1.0))
    with Puller(slow(pusher.endpoint).endpoint) as puller:
        eventually(lambda: pusher.stats().workers)
        time.sleep(0.3)
        for key in keys:
            pusher.push(bytes(SIZE), key=key)
        for key in keys:
            with puller.receive(timeout=60) as job:
                assert (len(job.value), job.key, job.delivery_count) == (SIZE, key, 1)
        pusher.join(timeout=60)
    assert pusher.stats().delivered == 2


@pytest.fixture
def responding(opened, slow):
    """A slow connection to a responder."""
    handlers = {"big": bytes, "size": len}
    responder = opened.enter_context(p2pmsg.Responder(LOOPBACK, handlers))
    responder.start()
    return slow(responder.endpoint)


def test_an_answer_on_its_way_is_not_sent_again(opened, responding):
    """It was asked for after a third of the time, and each one more delayed the next answers."""
    requester = opened.enter_context(p2pmsg.Requester(responding.endpoint))
    for _ in range(2):
        assert len(requester.request("big", SIZE, timeout=4.5)) == SIZE
    assert requester.stats().retries
    assert responding.bytes_down < 2.2 * SIZE


def test_a_request_on_its_way_is_not_sent_again(opened, responding):
    """It took longer than a third of the time, and came three times; then nothing got through."""
    requester = opened.enter_context(p2pmsg.Requester(responding.endpoint))
    for _ in range(2):
        assert requester.request("size", bytes(LARGE), timeout=5.0) == LARGE
    assert requester.stats().retries
    assert responding.bytes_up < 2.2 * LARGE


FROZEN = """
import time, p2pmsg
publisher = p2pmsg.Publisher("tcp://127.0.0.1:0")
print(publisher.endpoint, flush=True)
for number in range(10**6):
    publisher.publish("t", number)
    time.sleep(0.02)
"""


@pytest.mark.long
def test_what_a_frozen_publisher_does_not_answer_is_lost_in_time(opened, make_subscriber):
    """It can still be connected to, which is no sign of it: that was 100 s, instead of 10."""
    command = [sys.executable, "-c", FROZEN]
    child = opened.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    opened.callback(child.kill)
    place = child.stdout.readline().strip()
    proxy = opened.enter_context(TcpProxy(place, drop=lambda start: start[:2] == b"t\0"))
    proxy.frame_loss = 0.0
    config = p2pmsg.SubscriberConfig(publisher_timeout=1.0)
    losses = []
    subscriber = make_subscriber(proxy.endpoint, config=config, on_gap=losses.append)
    subscriber.receive(timeout=60)
    proxy.delay, proxy.frame_loss = 0.6, 0.5
    time.sleep(0.5)
    os.kill(child.pid, signal.SIGSTOP)  # what comes now has gaps

    def has_lost():
        with contextlib.suppress(TimeoutError):
            subscriber.receive(timeout=0.1)
        return bool(losses)

    eventually(has_lost)
    assert losses[0].reason == "publisher_gone"
