"""Binding, closing and the context of the ZeroMQ sockets."""

import gc
import socket
import subprocess
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
    make_zmq_frame,
    zmq_recovery,
)
from transports.zmq_frame import SHARED_BYTES


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
        sender.receive_subscriptions,
        receiver.receive,
        receiver.connect,
        lambda: receiver.subscribe(b""),
        server.receive,
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


def run_script(script, *arguments):
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


def test_a_forked_child_gets_a_new_context_that_works():
    script = """
import os, sys, warnings
import transports as t
warnings.simplefilter("ignore", DeprecationWarning)  # os.fork() with ZeroMQ's threads

parents = t.context()
assert t.context() is parents
held = t.ZmqSender("tcp://127.0.0.1:0", context=parents)
child = os.fork()
if child == 0:
    assert t.context() is not parents and t.context() is t.context()
    held.close()
    sender = t.ZmqSender("tcp://127.0.0.1:0", context=t.context(), welcome=b"hi")
    receiver = t.ZmqReceiver(sender.endpoint, context=t.context())
    receiver.subscribe(b"")
    receiver.connect()
    while not sender.receive_subscriptions():
        pass
    os._exit(0 if receiver.wait(20_000) and receiver.receive() == b"hi" else 1)
assert os.waitpid(child, 0)[1] == 0
held.close()
assert t.context() is parents
"""
    run_script(script)


def test_frames_leave_after_close_and_exit_within_their_linger_time(opened):
    # The server is this process, since it lives longer than the script that closes and ends.
    server = opened(ZmqRecoveryServer, LOOPBACK, queue_frames=2000)
    script = """
import sys, transports as t
client = t.ZmqRecoveryClient(sys.argv[1], context=t.context(), queue_frames=2000)
client.connect()
for number in range(1000):
    assert client.send(b"%d" % number)
client.close(60_000)
"""
    run_script(script, server.endpoint)
    frames = [eventually(server.receive)[1] for _ in range(1000)]
    assert frames == [b"%d" % number for number in range(1000)]


def test_a_server_goes_on_with_whole_messages_after_an_exception_at_any_line(opened):
    server, client = recovery_pair(opened)
    other = opened(ZmqRecoveryClient, server.endpoint)
    other.connect()

    def answer():
        requester, frame = eventually(server.receive)
        server.reply(requester, frame)
        return frame

    left = 1

    def trace(frame, event, _):
        nonlocal left
        if frame.f_code.co_filename != zmq_recovery.__file__:
            return None
        left -= event == "line"
        if left == 0 and event == "line":
            raise KeyboardInterrupt
        return trace

    for number in range(1, 40):
        client.send(b"struck")
        eventually(server.has_message)
        left = number
        gc.disable()  # else it may strike what other tests left to be finalized
        sys.settrace(trace)
        try:
            answer()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
            gc.enable()
        server.resync()
        other.send(b"%d" % number)
        while answer() != b"%d" % number:
            pass
        assert eventually(other.receive) == b"%d" % number
    assert left > 0
    assert server.malformed == 0
