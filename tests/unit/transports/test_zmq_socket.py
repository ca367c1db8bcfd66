"""ZeroMQ's sockets: binding, closing, the context, keys, subscriptions one by one, frames."""

import logging
import socket
import sys
import threading

import pytest
import zmq

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
    ClosedError,
    EndpointError,
    TransportError,
    ZmqReceiver,
    ZmqRecoveryClient,
    ZmqRecoveryServer,
    ZmqSender,
    connections,
    free_zmq_frames,
    make_zmq_frame,
    parse_endpoint,
)
from transports.curve import CurveClient, CurveKeys, CurveServer, fingerprint, key_text, parse_key
from transports.zmq_frame import SHARED_BYTES, sendable


@pytest.fixture
def opened():
    with socket_opener() as open_socket:
        yield open_socket


def test_an_address_in_use_is_an_error_of_its_own(opened):
    sender = opened(ZmqSender, LOOPBACK)
    with pytest.raises(AddressError, match="has bound it") as caught:
        opened(ZmqSender, sender.endpoint)
    assert caught.value.endpoint == sender.endpoint
    assert isinstance(caught.value.__cause__, zmq.ZMQError)
    opened(ZmqSender, "inproc://taken")
    with pytest.raises(AddressError, match="has bound it"):
        opened(ZmqSender, "inproc://taken")


def test_a_host_that_cannot_be_bound_is_named(opened):
    with pytest.raises(AddressError, match=r"'nowhere\.invalid' is unknown"):
        opened(ZmqSender, "tcp://nowhere.invalid:0")
    with pytest.raises(AddressError, match="192"):
        opened(ZmqSender, "tcp://192.0.2.1:0")
    with pytest.raises(EndpointError, match="is not one of ZeroMQ's"):
        opened(ZmqSender, "memory://feed")
    with pytest.raises(EndpointError, match="cannot connect to"):
        opened(ZmqReceiver, "tcp://*:5555")


def test_an_ipc_file_is_taken_over_from_the_dead_but_not_from_the_living(opened, tmp_path):
    path = tmp_path / "feed"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    sender = opened(ZmqSender, f"ipc://{path}")
    with pytest.raises(AddressError, match="has bound it"):
        opened(ZmqSender, f"ipc://{path}")
    assert join(opened, sender)
    sender.close()
    assert not path.exists()


def test_an_ipc_path_that_is_no_socket_is_left_alone(opened, tmp_path):
    path = tmp_path / "notes"
    path.write_text("precious")
    with pytest.raises(AddressError, match="not a socket"):
        opened(ZmqSender, f"ipc://{path}")
    with pytest.raises(AddressError, match="No such file"):
        opened(ZmqSender, f"ipc://{tmp_path}/missing/feed")
    assert path.read_text() == "precious"


def test_closing_leaves_the_ipc_file_of_a_successor(opened, tmp_path):
    path = tmp_path / "feed"
    first = opened(ZmqSender, f"ipc://{path}")
    path.unlink()
    second = opened(ZmqSender, f"ipc://{path}")
    first.close()
    assert path.exists()
    assert join(opened, second)


def test_close_is_idempotent_and_possible_from_another_thread(opened):
    sender = opened(ZmqSender, LOOPBACK, queue_frames=5)
    receiver = join(opened, sender, queue_frames=5)
    fill(sender, bytes(200_000))
    server, client = recovery_pair(opened)

    def close_all():
        for used in (sender, receiver, server, client):
            used.close(1)
            used.close()

    closer = threading.Thread(target=close_all)
    closer.start()
    closer.join(60)
    assert not closer.is_alive()
    close_all()
    uses = [
        lambda: sender.send(b""),
        lambda: sender.send(make_zmq_frame(bytes(SHARED_BYTES))),
        lambda: sender.send_shedding(b""),
        sender.take_subscriptions,
        receiver.receive,
        receiver.connect,
        lambda: receiver.subscribe(b""),
        lambda: server.receive_some(1),
        lambda: server.reply(b"x", b""),
        lambda: client.send(b""),
        client.receive,
    ]
    for use in uses:
        if use == receiver.connect:
            use()  # It was connected; once is enough.
            continue
        with pytest.raises(ClosedError):
            use()
    with pytest.raises(TransportError):
        ZmqReceiver("tcp://127.0.0.1:9", context=ended_context())


def ended_context():
    ended = zmq.Context()
    ended.term()
    return ended


SERVER, CLIENT, STRANGER = CurveKeys.new(), CurveKeys.new(), CurveKeys.new()


class Admitted:
    """A set of keys, by which a server admits."""

    def __init__(self, *keys):
        self.publics = {one.public for one in keys}

    def __call__(self, public):
        return key_text(public) if public in self.publics else None


def server_of(*keys):
    return CurveServer(SERVER, Admitted(*keys))


def client_of(keys=CLIENT, server=SERVER):
    return CurveClient(keys, server.public)


def request(client, server, frame=b"request"):
    """Send until it is answered, as libzmq drops what is sent without a connection."""

    def received():
        client.check()
        client.send(frame)
        server.connections.update()
        return next(iter(server.receive_some(1)), None)

    return eventually(received)


def test_a_socket_with_keys_says_once_that_its_connection_has_returned(opened):
    server = opened(ZmqRecoveryServer, LOOPBACK, curve=server_of(CLIENT))
    client = opened(ZmqRecoveryClient, server.endpoint, curve=client_of())
    client.connect()
    assert request(client, server)
    assert not client.has_returned()
    client.reconnect()
    eventually(lambda: (client.check(), client.has_returned())[1])
    assert not client.has_returned()


def test_keys_show_their_fingerprint_only():
    secret = key_text(SERVER.secret)
    shown = f"{SERVER!r} {SERVER} {server_of()!r} {client_of()!r}"
    assert fingerprint(SERVER.public) in shown
    assert secret not in shown
    assert repr(SERVER.secret) not in shown
    assert len(fingerprint(SERVER.public)) == 16
    assert CurveKeys.of_secret(SERVER.secret) == SERVER
    assert parse_key(key_text(SERVER.public)) == SERVER.public


@pytest.mark.parametrize("text", ["", "a" * 42, "a" * 44, "a" * 42 + "B", "a" * 42 + "=", "ä" * 43])
def test_what_is_no_key_is_refused_and_not_shown(text):
    with pytest.raises(ValueError, match="43 characters") as caught:
        parse_key(text)
    assert not text or text not in str(caught.value)


@pytest.mark.parametrize(
    "option", ["key=abc", "key=", "kex=" + "a" * 43, "key=" + "a" * 43 + "&key=" + "a" * 43]
)
def test_a_pinned_key_that_is_none_is_refused(option):
    for place in ("tcp://prices:5556", "ipc:///run/feed"):
        if place.startswith("ipc") and not option.startswith("key"):
            continue  # there, it is part of the path
        with pytest.raises(EndpointError, match=r"option|key") as caught:
            parse_endpoint(f"{place}?{option}")
        assert caught.value.part == "option"


def test_keys_are_for_one_side_each(opened):
    with pytest.raises(ValueError, match="binds is a CurveServer"):
        opened(ZmqSender, LOOPBACK, curve=client_of())
    with pytest.raises(ValueError, match="connects is a CurveClient"):
        opened(ZmqReceiver, "tcp://127.0.0.1:9", curve=server_of())
    with pytest.raises(EndpointError, match="inproc:// stays within the process"):
        opened(ZmqSender, "inproc://keys", curve=server_of())
    with pytest.raises(EndpointError, match="a key is pinned where one connects"):
        opened(ZmqSender, f"tcp://127.0.0.1:0?key={key_text(SERVER.public)}")


def test_an_admission_that_raises_refuses_one_connection_and_no_other(opened, caplog):
    def admits(public):
        if public == STRANGER.public:
            raise OSError("the file is away")
        return "x" * 256 if public == SERVER.public else "known"

    server = opened(ZmqRecoveryServer, LOOPBACK, curve=CurveServer(SERVER, admits))
    with caplog.at_level(logging.WARNING, "p2pmsg"):
        for keys in (STRANGER, SERVER):
            bad = opened(ZmqRecoveryClient, server.endpoint, curve=client_of(keys))
            bad.connect()
            eventually(bad.check)
            bad.close()
    assert "could not be checked: OSError('the file is away')" in caplog.text
    assert server.domain.refused >= 2
    good = opened(ZmqRecoveryClient, server.endpoint, curve=client_of())
    good.connect()
    request(good, server)
    assert server.user == "known"


def test_subscriptions_that_are_refused_count_for_the_bounds(opened, monkeypatch):
    monkeypatch.setattr(connections, "SUBSCRIPTIONS_MAX", 50)
    sender = opened(
        ZmqSender,
        LOOPBACK,
        curve=CurveServer(SERVER, key_text),
        allows=lambda _, prefix: not prefix,
    )
    receiver = opened(ZmqReceiver, sender.endpoint, curve=client_of())
    for number in range(60):
        receiver.subscribe(b"%d" % number)
    receiver.connect()
    eventually(lambda: (sender.take_subscriptions(), sender.connections.oversubscribed)[1])
    sender.take_subscriptions()
    assert all(len(one.prefixes) <= 51 for one in sender.connections._open.values())


@pytest.mark.parametrize("kind", [bytes, bytearray])
@pytest.mark.parametrize("size", [0, 1, SHARED_BYTES - 1, SHARED_BYTES, 5 * SHARED_BYTES])
def test_a_frame_is_a_copy_in_bytes_or_in_zeromqs_memory(kind, size):
    data = kind(range(256)) * (size // 256 + 1)
    data = data[:size]
    frame = make_zmq_frame(data)
    assert frame == data
    assert len(frame) == size
    assert type(frame) is (bytes if size < SHARED_BYTES else memoryview)
    assert type(bytes(frame)) is bytes


def test_only_a_whole_frame_is_sent_out_of_its_memory():
    frame = make_zmq_frame(bytes(SHARED_BYTES))
    assert sendable(frame) is frame.obj
    for other in (frame[1:], frame[:-1], memoryview(b"abc"), b"abc"):
        assert sendable(other) is other


def test_what_a_handler_raises_where_pyzmq_frees_a_frame_is_raised():
    class Freed:
        def __del__(self):
            raise KeyboardInterrupt

    before = sys.unraisablehook
    with pytest.raises(KeyboardInterrupt):
        free_zmq_frames([Freed()])
    assert sys.unraisablehook is before
