"""Frames that take longer than a peer may be silent: large ones over a slow connection.

They were never there: the connection was made again before all of a frame had come, and the next
one began with its first byte. Messages were lost as `timeout`, jobs became dead letters.
"""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

import p2pmsg
import p2pmsg.aio
from p2pmsg.queue import Puller, PullerConfig, Pusher
from p2pmsg.reader import RangeReader
from p2pmsg.testing.proxy import TcpProxy
from tests.integration import aio
from tests.integration.peers import eventually
from tests.unit.transports.sockets import LOOPBACK
from transports import ZmqReceiver, ZmqRecoveryClient, ZmqRecoveryServer, ZmqSender, context
from transports.endpoint import as_endpoint
from transports.platform import connection_of, tcp_state, unsent_bytes
from transports.zmq_plain import ZmqPlainSocket

pytestmark = pytest.mark.long

shell = aio.shell

SIZE, RATE = 600_000, 300_000
"""A frame of so many bytes, at so many a second: 2 s."""
LARGE = 900_000


@pytest.fixture
def slow(opened):
    return lambda endpoint, rate=RATE: opened.enter_context(TcpProxy(endpoint, bytes_per_s=rate))


def comes(client):
    return client.last_byte_ns(time.monotonic_ns())


def test_it_is_seen_that_a_frame_is_on_its_way(opened, slow):
    sender = ZmqSender(LOOPBACK, context=context(), welcome=b"hello")
    receiver = ZmqReceiver(slow(sender.endpoint).endpoint, context=context())
    opened.callback(sender.close)
    opened.callback(receiver.close)
    assert comes(receiver) is None
    receiver.watch_end()
    receiver.subscribe(b"")
    receiver.connect()
    eventually(sender.receive_subscriptions)
    assert receiver.receive_wait(60_000) == b"hello"
    assert comes(receiver) is None
    before_ns = time.monotonic_ns()
    sender.send(bytes(SIZE))
    assert eventually(lambda: comes(receiver)) > before_ns
    assert receiver.receive() is None  # it is not all there for 2 s
    assert receiver.receive_wait(60_000) == bytes(SIZE)
    comes(receiver)
    last_ns = comes(receiver)
    time.sleep(0.3)
    assert comes(receiver) == last_ns
    receiver.disconnect()
    assert comes(receiver) is None


def test_the_same_is_seen_of_a_pull_socket(opened, slow):
    sizes = {"queue_messages": 10, "message_bytes_max": 2 * SIZE}
    sender = ZmqPlainSocket("push", as_endpoint(LOOPBACK), binds=True, context=context(), **sizes)
    at = as_endpoint(slow(sender.endpoint).endpoint)
    receiver = ZmqPlainSocket("pull", at, binds=False, context=context(), **sizes)
    opened.callback(sender.close)
    opened.callback(receiver.close)
    assert comes(receiver) is comes(sender) is None
    receiver.open()
    eventually(lambda: [comes(receiver), receiver.connections == 1][1])
    assert comes(receiver) is None
    assert eventually(lambda: sender.send([bytes(SIZE)]))
    assert eventually(lambda: comes(receiver))
    assert eventually(lambda: receiver.receive_singles(1)[0]) == [bytes(SIZE)]


def test_a_peer_that_is_frozen_shows_no_byte_however_often_it_is_connected_to(opened):
    """The kernel accepts, and counts the time from then on."""
    listening = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=50))
    client = ZmqRecoveryClient(f"tcp://127.0.0.1:{listening.getsockname()[1]}", context=context())
    opened.callback(client.close)
    client.watch_end()
    client.connect()
    for _ in range(5):
        client.reconnect()
        time.sleep(0.1)
        assert comes(client) is None


@pytest.fixture
def served(opened):
    """A server, a proxy to it, and a client that is connected through the proxy."""
    server = ZmqRecoveryServer(LOOPBACK, context=context())
    proxy = opened.enter_context(TcpProxy(server.endpoint))
    client = ZmqRecoveryClient(proxy.endpoint, context=context())
    opened.callback(server.close)
    opened.callback(client.close)
    client.connect()
    client.send(b"here")
    eventually(server.receive)  # all descriptors are there
    return server, proxy, client


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def answer(server, client):
    """Have a large answer come; return whether it was seen on its way."""
    client.send(b"more")
    where, _ = eventually(server.receive)
    comes(client)
    server.reply(where, bytes(10**7))
    return eventually(lambda: comes(client) or client.receive()) is not None and comes(client)


def test_a_connection_that_was_learned_is_known_without_following_it(served):
    server, proxy, client = served
    assert not client.connection_fd()
    client.reconnect(learn=True)
    eventually(client.connection_fd)
    client.end_learning()  # it is not followed any more
    assert client.connection_fd()
    eventually(lambda: not client.is_sending())  # the handshake
    proxy.bytes_per_s = 10**7
    assert answer(server, client)
    client.learn_connection()  # there is nothing to learn
    assert client.connection_fd()


def test_a_connection_that_zeromq_makes_again_is_another_one(served):
    _, proxy, client = served
    client.learn_connection()
    eventually(client.connection_fd)
    before = proxy.connections
    proxy.cut()
    eventually(lambda: proxy.connections > before)
    eventually(lambda: not client.connection_fd())


def test_a_descriptor_that_is_a_files_by_now_is_left_alone(served, tmp_path):
    _, proxy, client = served
    client.learn_connection()
    eventually(client.connection_fd)
    fd = client.connection_fd()
    proxy.close()
    eventually(lambda: not client.connection_fd())
    with (tmp_path / "file").open("w") as file:
        before = descriptors()
        assert connection_of(file.fileno()) is tcp_state(file.fileno()) is None
        assert unsent_bytes(file.fileno()) is unsent_bytes(10**6) is connection_of(10**6) is None
        assert descriptors() <= before  # others may have closed some
    assert fd >= 0


def test_learning_ends_where_nobody_is_there(opened):
    client = ZmqRecoveryClient("tcp://127.0.0.1:9", context=context())
    opened.callback(client.close)
    client.connect()
    client.reconnect(learn=True)
    client.end_learning()
    assert not client.connection_fd()


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


def test_a_job_comes_that_takes_longer_than_its_pusher_may_be_silent(opened, slow):
    pusher = opened.enter_context(Pusher(LOOPBACK))
    proxy = slow(pusher.endpoint)
    config = PullerConfig(pusher_timeout=0.4)
    with Puller(proxy.endpoint, config=config) as puller:
        for number in range(2):
            pusher.push(bytes([number]) * SIZE)
        for number in range(2):
            with puller.receive(timeout=60) as job:
                assert job.value[0] == number
        pusher.drain(timeout=60)
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
        pusher.drain(timeout=60)
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
    assert requester.retries
    assert responding.bytes_down < 2.2 * SIZE


def test_a_request_on_its_way_is_not_sent_again(opened, responding):
    """It took longer than a third of the time, and came three times; then nothing got through."""
    requester = opened.enter_context(p2pmsg.Requester(responding.endpoint))
    for _ in range(2):
        assert requester.request("size", bytes(LARGE), timeout=5.0) == LARGE
    assert requester.retries
    assert responding.bytes_up < 2.2 * LARGE


def test_a_request_on_its_way_is_not_sent_again_in_an_event_loop(responding):
    async def ask():
        async with p2pmsg.aio.Requester(responding.endpoint) as requester:
            for _ in range(2):
                assert await requester.request("size", bytes(LARGE), timeout=5.0) == LARGE
            assert requester.retries

    asyncio.run(ask())
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
