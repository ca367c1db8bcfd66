"""The ZeroMQ sockets over real connections on this machine."""

import os

import pytest

from tests.integration.peers import LOOPBACK
from tests.unit.transports.sockets import join, socket_opener, taken
from transports import AddressError, ZmqSender, make_zmq_frame
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
