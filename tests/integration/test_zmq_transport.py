"""The ZeroMQ sockets over real connections on this machine."""

import os
import signal
import subprocess
import sys

import pytest

from tests.unit.transports.sockets import (
    LOOPBACK,
    eventually,
    fill,
    join,
    recovery_pair,
    sends,
    socket_opener,
    taken,
)
from transports import (
    AddressError,
    ZmqReceiver,
    ZmqRecoveryClient,
    ZmqSender,
    make_zmq_frame,
)
from transports.zmq_frame import SHARED_BYTES


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
    frames = [taken(receiver) for _ in range(4)]
    assert frames == [b"\x00hello", b"small", large, b"last"]
    assert receiver.receive() is None


def test_only_frames_with_a_subscribed_prefix_arrive(pair):
    sender, receiver = pair(prefix=b"prices\x00")
    receiver.subscribe(b"b")
    assert eventually(sender.receive_subscriptions) == [b"\x01b"]
    for frame in (b"other\x00", b"prices\x001", b"b2"):
        assert sender.send(frame)
    assert [taken(receiver) for _ in range(2)] == [b"prices\x001", b"b2"]
    receiver.unsubscribe(b"b")
    assert eventually(sender.receive_subscriptions) == [b"\x00b"]
    sender.send(b"b3")
    sender.send(b"prices\x004")
    assert taken(receiver) == b"prices\x004"


def test_a_slow_receiver_makes_send_refuse_and_shedding_skips_it_alone(pair, opened):
    sender, slow = pair(sender_options={"queue_frames": 10}, queue_frames=10)
    quick = join_second(opened, sender)
    frame = bytes(100_000)

    def fill_the_slow_one():
        sent = 0
        while sends(sender, frame):
            assert taken(quick) == frame
            sent += 1
            assert sent < 10_000
        return sent

    sent = fill_the_slow_one()
    shed = [b"shed %d" % number for number in range(30)]
    for small in shed:
        sender.send_shedding(small)
        assert taken(quick) == small
    for _ in range(sent):
        assert taken(slow) == frame
    reached = []

    def slow_is_reached_again():
        assert sender.send(b"mark")
        assert taken(quick) == b"mark"
        reached.append(taken(slow, 0.01))
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


def test_a_frame_above_the_limit_ends_the_connection_until_reconnect(pair):
    sender, receiver = pair(sender_options={"welcome": b"hello"}, frame_bytes_max=1000)
    assert taken(receiver) == b"hello"
    sender.send(bytes(1000))
    sender.send(bytes(1001))
    sender.send(b"after")
    assert taken(receiver) == bytes(1000)
    assert eventually(sender.receive_subscriptions) == [b"\x00"]
    assert receiver.receive() is None
    receiver.reconnect()
    assert eventually(sender.receive_subscriptions) == [b"\x01"]
    assert taken(receiver) == b"hello"


def test_a_frozen_receiver_is_given_up_and_no_longer_holds_the_sender_up(opened):
    sender = opened(ZmqSender, LOOPBACK, queue_frames=5, silence_ms=2000)
    script = (
        "import sys, transports as t\n"
        "r = t.ZmqReceiver(sys.argv[1], context=t.context()); r.subscribe(b''); r.connect()\n"
        "while True: r.wait(1000); r.receive()\n"
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
            assert all(sender.send(b"to nobody") for _ in range(100))
        finally:
            child.kill()


def test_a_request_above_the_limit_disconnects_its_sender_only(opened):
    server, client = recovery_pair(opened, server_options={"frame_bytes_max": 1000})
    other = opened(ZmqRecoveryClient, server.endpoint)
    other.connect()
    client.send(bytes(1001))
    other.send(b"fine")
    assert eventually(server.receive)[1] == b"fine"
    # The server's end broke, not the client's protocol: it connects again by itself.
    eventually(lambda: client.send(b"fine again") and server.receive())
