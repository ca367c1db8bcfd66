"""Frames that take longer than a peer may be silent: large ones over a slow connection.

They were never there: the connection was made again before all of a frame had come, and the next
one began with its first byte. Messages were lost as `timeout`, jobs became dead letters.
"""

import asyncio
import os
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
from transports.zmq_plain import ZmqPlainSocket

shell = aio.shell

SIZE, RATE = 600_000, 300_000
"""A frame of so many bytes, at so many a second: 2 s."""
LARGE = 900_000


@pytest.fixture
def slow(opened):
    return lambda endpoint, rate=RATE: opened.enter_context(TcpProxy(endpoint, bytes_per_s=rate))


def test_it_is_seen_that_a_frame_is_on_its_way(opened, slow):
    sender = ZmqSender(LOOPBACK, context=context(), welcome=b"hello")
    receiver = ZmqReceiver(slow(sender.endpoint).endpoint, context=context())
    opened.callback(sender.close)
    opened.callback(receiver.close)
    assert receiver.quiet_ms() is None
    receiver.watch_end()
    receiver.subscribe(b"")
    receiver.connect()
    eventually(sender.receive_subscriptions)
    assert receiver.receive_wait(60_000) == b"hello"
    eventually(lambda: receiver.quiet_ms() > 300)
    sender.send(bytes(SIZE))
    eventually(lambda: receiver.quiet_ms() < 200)
    assert receiver.receive() is None  # it is not all there for 2 s
    assert receiver.receive_wait(60_000) == bytes(SIZE)
    receiver.disconnect()
    assert receiver.quiet_ms() is None


def test_the_same_is_seen_of_a_pull_socket(opened, slow):
    sizes = {"queue_messages": 10, "message_bytes_max": 2 * SIZE}
    sender = ZmqPlainSocket("push", as_endpoint(LOOPBACK), binds=True, context=context(), **sizes)
    at = as_endpoint(slow(sender.endpoint).endpoint)
    receiver = ZmqPlainSocket("pull", at, binds=False, context=context(), **sizes)
    opened.callback(sender.close)
    opened.callback(receiver.close)
    assert receiver.quiet_ms() is sender.quiet_ms() is None
    receiver.open()
    eventually(lambda: (receiver.quiet_ms() or 0) > 300)
    assert receiver.connections == 1
    assert sender.send([bytes(SIZE)])
    eventually(lambda: receiver.quiet_ms() < 200)
    assert eventually(lambda: receiver.receive_singles(1)[0]) == [bytes(SIZE)]


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def test_a_connection_that_was_learned_is_known_without_following_it(opened):
    server = ZmqRecoveryServer(LOOPBACK, context=context())
    client = ZmqRecoveryClient(server.endpoint, context=context())
    opened.callback(server.close)
    opened.callback(client.close)
    client.connect()
    client.send(b"first")
    eventually(server.receive)
    before = descriptors()
    assert client.quiet_ms() is None
    client.reconnect(learn=True)
    client.send(b"again")
    assert eventually(server.receive)[1] == b"again"
    assert eventually(lambda: client.quiet_ms() is not None)
    eventually(lambda: descriptors() <= before)  # it is not followed any more
    assert client.quiet_ms() is not None
    assert not client.is_sending()
    client.learn_connection()  # there is nothing to learn
    assert client.quiet_ms() is not None


def test_a_connection_that_zeromq_makes_again_is_another_one(opened):
    server = ZmqRecoveryServer(LOOPBACK, context=context())
    proxy = opened.enter_context(TcpProxy(server.endpoint))
    client = ZmqRecoveryClient(proxy.endpoint, context=context())
    opened.callback(server.close)
    opened.callback(client.close)
    client.learn_connection()
    assert eventually(lambda: client.quiet_ms() is not None)
    proxy.cut()
    eventually(lambda: proxy.connections == 2)
    eventually(lambda: client.quiet_ms() is None)


def test_learning_ends_where_nobody_is_there(opened):
    client = ZmqRecoveryClient("tcp://127.0.0.1:9", context=context())
    opened.callback(client.close)
    client.connect()
    before = descriptors()
    client.reconnect(learn=True)
    assert descriptors() > before
    client.end_learning()
    eventually(lambda: descriptors() <= before)
    assert client.quiet_ms() is None


def test_a_message_comes_that_takes_longer_than_its_publisher_may_be_silent(
    make_publisher, make_subscriber, slow
):
    publisher = make_publisher()
    proxy = slow(publisher.endpoint)
    config = p2pmsg.SubscriberConfig(publisher_timeout=0.4)
    subscriber = make_subscriber(proxy.endpoint, joins=publisher, config=config)
    for number in range(2):
        publisher.publish("t", bytes([number]) * SIZE)
        assert subscriber.receive(timeout=60).value[0] == number
    assert (proxy.connections, subscriber.stats().duplicates) == (1, 0)


def test_a_publisher_that_is_silent_is_still_connected_to_again(
    make_publisher, make_subscriber, slow
):
    """Also where a frame has begun to come."""
    publisher = make_publisher()
    proxy = slow(publisher.endpoint)
    config = p2pmsg.SubscriberConfig(publisher_timeout=0.4)
    subscriber = make_subscriber(proxy.endpoint, joins=publisher, config=config)
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
    assert (stats.delivered, stats.done, stats.lost, proxy.connections) == (2, 2, 0, 1)


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


def test_an_answer_on_its_way_is_not_sent_again(opened, slow):
    """It was asked for after a third of the time, and each one more delayed the next answers."""
    responder = opened.enter_context(p2pmsg.Responder(LOOPBACK, {"big": bytes}))
    responder.start()
    proxy = slow(responder.endpoint)
    requester = opened.enter_context(p2pmsg.Requester(proxy.endpoint))
    for _ in range(2):
        assert len(requester.request("big", SIZE, timeout=4.5)) == SIZE
    assert requester.retries
    assert proxy.bytes_down < 2.2 * SIZE


def test_a_request_on_its_way_is_not_sent_again(opened, slow):
    """It took longer than a third of the time, and came three times; then nothing got through."""
    responder = opened.enter_context(p2pmsg.Responder(LOOPBACK, {"size": len}))
    responder.start()
    proxy = slow(responder.endpoint)
    requester = opened.enter_context(p2pmsg.Requester(proxy.endpoint))
    for _ in range(2):
        assert requester.request("size", bytes(LARGE), timeout=5.0) == LARGE
    assert requester.retries
    assert proxy.bytes_up < 2.2 * LARGE


def test_a_request_on_its_way_is_not_sent_again_in_an_event_loop(opened, slow):
    responder = opened.enter_context(p2pmsg.Responder(LOOPBACK, {"size": len}))
    responder.start()
    proxy = slow(responder.endpoint)

    async def ask():
        async with p2pmsg.aio.Requester(proxy.endpoint) as requester:
            for _ in range(2):
                assert await requester.request("size", bytes(LARGE), timeout=5.0) == LARGE
            assert requester.retries

    asyncio.run(ask())
    assert proxy.bytes_up < 2.2 * LARGE
