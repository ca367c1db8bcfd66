"""The ZeroMQ sockets over real connections on this machine."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from tests.descriptors import no_descriptor_left
from tests.unit.transports.sockets import (
    LOOPBACK,
    eventually,
    fill,
    join,
    recovery_pair,
    socket_opener,
)
from transports import (
    AddressError,
    TransportError,
    ZmqReceiver,
    ZmqRecoveryClient,
    ZmqRecoveryServer,
    ZmqSender,
    make_zmq_frame,
)
from transports.zmq_frame import SHARED_BYTES
from transports.zmq_recovery import REQUESTS_MAX


@pytest.fixture
def opened():
    with socket_opener() as open_socket:
        yield open_socket


@pytest.fixture
def pair(opened):
    """Make a sender and a receiver that are connected and subscribed."""

    def connect(endpoint=LOOPBACK, *, sender_options=None, prefix=b"", **receiver_options):
        sender = opened(ZmqSender, endpoint, **(sender_options or {}))
        receiver = join(opened, sender, prefix, **receiver_options)
        return sender, receiver

    return connect


ENDPOINTS = {
    "ipv4": LOOPBACK,
    "name": "tcp://localhost:0",
    "every interface": "tcp://*:0",
    "ipv6": "tcp://[::1]:0",
    "ipc": "ipc://{directory}/feed",
    "abstract ipc": "ipc://@p2pmsg-test-{pid}",
    "inproc": "inproc://feed",
}


@pytest.mark.parametrize("endpoint", ENDPOINTS.values(), ids=ENDPOINTS)
def test_welcome_and_frames_arrive_over_every_kind_of_endpoint(pair, tmp_path, endpoint):
    endpoint = endpoint.format(directory=tmp_path, pid=os.getpid())
    try:
        sender, receiver = pair(endpoint, sender_options={"welcome": b"\x00hello"})
    except AddressError:
        if "::1" not in endpoint:
            raise
        pytest.skip("no IPv6 here")
    assert not sender.endpoint.endswith(":0")
    large = os.urandom(SHARED_BYTES)
    assert sender.send(b"small")
    assert sender.send(make_zmq_frame(large))
    sender.send_shedding(b"last")
    frames = [receiver.receive_wait(60_000) for _ in range(4)]
    assert frames == [b"\x00hello", b"small", large, b"last"]
    assert receiver.receive() is None


def test_a_frame_in_zeromqs_memory_goes_to_everybody_as_often_as_it_is_sent(pair, opened):
    sender, receiver = pair()
    second = join_second(opened, sender)
    data = bytearray(os.urandom(SHARED_BYTES))
    kept = bytes(data)
    frame = make_zmq_frame(data)
    data[:] = bytes(len(data))  # the buffer is used for the next frame
    for send in (sender.send, sender.send_now, sender.send_shedding):
        send(frame)
    server = opened(ZmqRecoveryServer, "tcp://127.0.0.1:0")
    client = opened(ZmqRecoveryClient, server.endpoint)
    client.connect()
    client.send(b"again")
    requester, _ = eventually(server.receive)
    assert server.reply(requester, frame)
    del frame  # those on their way need nobody who keeps it
    assert [receiver.receive_wait(60_000) for _ in range(3)] == [kept] * 3
    assert [second.receive_wait(60_000) for _ in range(3)] == [kept] * 3
    assert eventually(client.receive) == kept


def test_a_part_of_a_frame_in_zeromqs_memory_is_sent_as_the_part(pair):
    sender, receiver = pair()
    data = os.urandom(SHARED_BYTES)
    part = memoryview(make_zmq_frame(data))[100:1100]
    assert sender.send(part)
    assert sender.send(memoryview(data)[7:])
    assert receiver.receive_wait(60_000) == data[100:1100]
    assert receiver.receive_wait(60_000) == data[7:]


def test_only_frames_with_a_subscribed_prefix_arrive(pair):
    sender, receiver = pair(prefix=b"prices\x00")
    receiver.subscribe(b"b")
    assert eventually(sender.receive_subscriptions) == [b"\x01b"]
    for frame in (b"other\x00", b"prices\x001", b"b2"):
        assert sender.send(frame)
    assert [receiver.receive_wait(60_000) for _ in range(2)] == [b"prices\x001", b"b2"]
    receiver.unsubscribe(b"b")
    assert eventually(sender.receive_subscriptions) == [b"\x00b"]
    sender.send(b"b3")
    sender.send(b"prices\x004")
    assert receiver.receive_wait(60_000) == b"prices\x004"


def test_receive_wait_waits_no_longer_than_it_may(pair):
    _, receiver = pair()
    for timeout_ms in (30, 30, 10, 0):
        start = time.monotonic()
        assert receiver.receive_wait(timeout_ms) is None
        assert time.monotonic() - start >= timeout_ms / 1000 - 0.005


def test_a_slow_receiver_makes_send_refuse_and_shedding_skips_it_alone(pair, opened):
    sender, slow = pair(sender_options={"queue_frames": 10}, queue_frames=10)
    quick = join_second(opened, sender)
    frame = bytes(100_000)

    def fill_the_slow_one():
        sent = 0
        while sender.send(frame, wait_ms=20):
            assert quick.receive_wait(60_000) == frame
            sent += 1
            assert sent < 10_000
        return sent

    sent = fill_the_slow_one()
    shed = [b"shed %d" % number for number in range(30)]
    for small in shed:
        sender.send_shedding(small)
        assert quick.receive_wait(60_000) == small
    for _ in range(sent):
        assert slow.receive_wait(60_000) == frame
    reached = []

    def slow_is_reached_again():
        assert sender.send(b"mark")
        assert quick.receive_wait(60_000) == b"mark"
        reached.append(slow.receive_wait(10))
        return reached[-1] == b"mark"

    eventually(slow_is_reached_again)
    assert len([small for small in reached if small in shed]) < len(shed)
    # It refuses again, too: shedding was for those frames only.
    fill_the_slow_one()


def join_second(opened, sender):
    """Connect a second receiver, whose subscription the sender does not hear of."""
    receiver = opened(ZmqReceiver, sender.endpoint)
    receiver.subscribe(b"")
    receiver.subscribe(b"second")
    receiver.connect()
    assert eventually(sender.receive_subscriptions) == [b"\x01second"]
    return receiver


def repeat(function):
    # For ever, since the system's buffers may still grow and take some frames.
    while True:
        function()


def test_a_waiting_send_goes_on_once_there_is_space(pair):
    sender, receiver = pair(sender_options={"queue_frames": 5}, queue_frames=5)
    frame, sent = bytes(200_000), 0
    while more := fill(sender, frame):
        sent += more
        time.sleep(0.05)  # so that nothing but a read makes space
    reader = threading.Timer(0.05, lambda: [receiver.receive_wait(60_000) for _ in range(sent)])
    reader.start()
    try:
        assert sender.send(frame, wait_ms=60_000)
    finally:
        reader.join()


def test_ctrl_c_comes_through_a_waiting_send_and_receive(pair):
    sender, receiver = pair(sender_options={"queue_frames": 5}, queue_frames=5)
    frame = bytes(200_000)
    fill(sender, frame)
    long_ms = 10**6  # longer than a test may take
    for blocked in (
        lambda: sender.send(frame, wait_ms=long_ms),
        lambda: receiver.receive_wait(long_ms),
    ):
        interrupt = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
        interrupt.start()
        with pytest.raises(KeyboardInterrupt):
            repeat(blocked)
        interrupt.join()


def test_a_frame_above_the_limit_ends_the_connection_until_reconnect(pair):
    sender, receiver = pair(sender_options={"welcome": b"hello"}, frame_bytes_max=1000)
    assert receiver.receive_wait(60_000) == b"hello"
    sender.send(bytes(1000))
    sender.send(bytes(1001))
    sender.send(b"after")
    assert receiver.receive_wait(60_000) == bytes(1000)
    assert eventually(sender.receive_subscriptions) == [b"\x00"]
    assert receiver.receive() is None
    receiver.reconnect()
    assert eventually(sender.receive_subscriptions) == [b"\x01"]
    assert receiver.receive_wait(60_000) == b"hello"


def test_a_connection_that_ended_here_is_distinguished_from_one_that_broke(opened):
    sender = opened(ZmqSender, LOOPBACK, welcome=b"hello")
    receiver = opened(ZmqReceiver, sender.endpoint, frame_bytes_max=1000)
    receiver.watch_end()
    receiver.subscribe(b"")
    receiver.connect()
    eventually(sender.receive_subscriptions)
    assert receiver.receive_wait(60_000) == b"hello"
    sender.send(bytes(1001))
    eventually(receiver.was_ended_here)
    assert not receiver.was_ended_here()
    assert eventually(sender.receive_subscriptions) == [b"\x00"]
    receiver.reconnect()
    assert eventually(sender.receive_subscriptions) == [b"\x01"]
    assert receiver.receive_wait(60_000) == b"hello"
    sender.close()
    again = opened(ZmqSender, sender.endpoint, welcome=b"again")
    ended = []

    def is_back():
        again.receive_subscriptions()
        ended.append(receiver.was_ended_here())
        return receiver.receive() == b"again"

    eventually(is_back)
    assert not any(ended)


@pytest.mark.parametrize("linger_ms", [0, 1000])
def test_a_sender_that_was_closed_welcomes_nobody_any_more(opened, linger_ms):
    sender = opened(ZmqSender, LOOPBACK, welcome=b"hello")
    receiver = opened(ZmqReceiver, sender.endpoint)
    receiver.subscribe(b"")
    receiver.connect()
    time.sleep(0.2)  # it is connected, which the sender's thread has not taken up yet
    sender.close(linger_ms)
    assert receiver.receive_wait(200) is None


def test_where_no_descriptor_is_left_to_follow_a_connection_the_socket_is_closed(opened):
    receiver = opened(ZmqReceiver, "tcp://127.0.0.1:9")
    with no_descriptor_left(), pytest.raises(TransportError):
        receiver.watch_end()
    assert receiver.closed


def test_reconnect_also_replaces_a_connection_that_works(pair):
    sender, receiver = pair(sender_options={"welcome": b"hello"})
    receiver.reconnect()
    received = []

    def comes_back():
        sender.send(b"frame")
        received.append(receiver.receive_wait(10))
        return received[-1] == b"frame"

    eventually(comes_back)
    assert b"hello" in received


def test_a_frozen_receiver_is_given_up_and_no_longer_holds_the_sender_up(opened):
    sender = opened(ZmqSender, LOOPBACK, queue_frames=5, silence_ms=2000)
    script = (
        "import sys, transports as t\n"
        "r = t.ZmqReceiver(sys.argv[1], context=t.context()); r.subscribe(b''); r.connect()\n"
        "while True: r.receive_wait(1000)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, sender.endpoint]) as child:
        try:
            assert eventually(sender.receive_subscriptions) == [b"\x01"]
            child.send_signal(signal.SIGSTOP)
            fill(sender, bytes(200_000))

            def goes():
                # On a busy machine `fill` may end before the system's own buffers are full.
                sender.send(bytes(200_000))
                return sender.receive_subscriptions()

            assert eventually(goes) == [b"\x00"]
            assert all(sender.send_now(b"to nobody") for _ in range(100))
        finally:
            child.kill()


def test_requests_and_replies(opened):
    server, client = recovery_pair(opened)
    other = opened(ZmqRecoveryClient, server.endpoint)
    other.connect()
    assert client.send(b"from client")
    assert other.send(b"from other")
    for _ in range(2):
        requester, frame = eventually(server.receive)
        assert server.reply(requester, b"re: " + frame)
    assert eventually(client.receive) == b"re: from client"
    assert eventually(other.receive) == b"re: from other"
    assert (server.receive(), client.receive()) == (None, None)


def test_requests_are_taken_a_few_at_a_time(opened):
    server, client = recovery_pair(opened)
    for number in range(5):
        assert client.send(b"%d" % number)
    client.socket.send_multipart([b"two", b"parts"])
    assert client.send(b"5")
    found = []
    while len(found) < 6:
        some = eventually(lambda: server.receive_some(4))
        assert 1 <= len(some) <= 4
        found += some
    assert [frame for _, frame in found] == [b"%d" % number for number in range(6)]
    assert len({requester for requester, _ in found}) == 1
    assert (server.receive_some(4), server.malformed) == ([], 1)


def test_a_request_waits_for_a_server_that_is_away(opened, tmp_path):
    endpoint = f"ipc://{tmp_path}/feed"
    client = opened(ZmqRecoveryClient, endpoint)
    client.connect()
    assert client.send(b"early")
    server = opened(ZmqRecoveryServer, endpoint)
    assert eventually(server.receive)[1] == b"early"


def test_a_request_queue_has_its_bound(opened):
    client = opened(ZmqRecoveryClient, "tcp://127.0.0.1:9")
    client.connect()
    sent = [client.send(b"?") for _ in range(REQUESTS_MAX + 2)]
    assert sent == REQUESTS_MAX * [True] + [False, False]


def test_a_reply_to_a_full_queue_is_refused_and_to_a_vanished_peer_impossible(opened):
    server, client = recovery_pair(opened, server_options={"queue_frames": 5}, queue_frames=5)
    client.send(b"?")
    requester, _ = eventually(server.receive)
    eventually(lambda: not server.reply(requester, bytes(200_000)))
    client.close()
    # It hears of the end once it has received what came before.
    eventually(lambda: not server.receive() and server.reply(requester, b"late") is None)
    assert server.reply(b"never seen", b"") is None


def test_messages_of_other_than_one_part_are_counted_and_skipped(opened):
    server, client = recovery_pair(opened)
    client.socket.send_multipart([b"a", b"b", b"c"])
    client.socket.send_multipart([b"", b"b"])
    client.send(b"good")
    requester, frame = eventually(server.receive)
    assert (frame, server.malformed) == (b"good", 2)
    server.socket.send_multipart([requester, b"a", b"b"])
    server.reply(requester, b"good")
    assert (eventually(client.receive), client.malformed) == (b"good", 1)


def test_a_request_above_the_limit_disconnects_its_sender_only(opened):
    server, client = recovery_pair(opened, server_options={"frame_bytes_max": 1000})
    other = opened(ZmqRecoveryClient, server.endpoint)
    other.connect()
    client.send(bytes(1001))
    other.send(b"fine")
    assert eventually(server.receive)[1] == b"fine"
    # The server's end broke, not the client's protocol: it connects again by itself.
    eventually(lambda: client.send(b"fine again") and server.receive())
