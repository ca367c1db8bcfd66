"""p2pmsg.testing over real sockets: the TCP proxy, and two cores over a socket pair."""

import contextlib
import select
import socket
import threading
import time

import pytest

from p2pmsg.testing.proxy import TcpProxy
from tests.integration.peers import DEADLINE_S, LOOPBACK, eventually
from tests.unit.transports.sockets import sends, taken
from transports import ZmqReceiver, ZmqSender, context


@pytest.fixture
def stack():
    with contextlib.ExitStack() as opened:
        yield opened


class Server:
    """A plain listening socket whose connections are taken by hand."""

    def __init__(self, stack):
        self.stack = stack
        self.listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.listener.settimeout(DEADLINE_S)
        self.address = self.listener.getsockname()

    def accept(self):
        taken, _ = self.listener.accept()
        taken.settimeout(DEADLINE_S)
        return self.stack.enter_context(taken)


@pytest.fixture
def server(stack):
    return Server(stack)


@pytest.fixture
def proxied(stack, server):
    """Make a proxy to `server`."""
    return lambda **options: stack.enter_context(TcpProxy(server.address, **options))


def client_of(stack, proxy):
    port = int(proxy.endpoint.rpartition(":")[2])
    return stack.enter_context(socket.create_connection(("127.0.0.1", port), DEADLINE_S))


@pytest.fixture
def wired(stack, server, proxied):
    """Make a proxy, a client that is connected through it, and what the server has taken."""

    def make(**options):
        proxy = proxied(**options)
        return proxy, client_of(stack, proxy), server.accept()

    return make


def receive_exactly(used, count):
    data = b""
    while len(data) < count:
        chunk = used.recv(min(65536, count - len(data)))
        assert chunk, "the connection ended early"
        data += chunk
    return data


def zmq_pair(stack, *, welcome=b"", queue_frames=20_000, **options):
    """Return a sender, a proxy to it, and a receiver that is connected through the proxy."""
    sender = ZmqSender(LOOPBACK, context=context(), queue_frames=queue_frames, welcome=welcome)
    stack.callback(sender.close)
    proxy = stack.enter_context(TcpProxy(sender.endpoint, **options))
    receiver = ZmqReceiver(proxy.endpoint, context=context(), queue_frames=queue_frames)
    stack.callback(receiver.close)
    receiver.subscribe(b"")
    receiver.connect()
    eventually(sender.take_subscriptions)
    return sender, proxy, receiver


def test_bytes_pass_both_ways_and_are_counted(wired):
    proxy, client, taken = wired()
    client.sendall(b"up")
    assert receive_exactly(taken, 2) == b"up"
    taken.sendall(b"down")
    assert receive_exactly(client, 4) == b"down"
    eventually(lambda: (proxy.bytes_up, proxy.bytes_down) == (2, 4))
    assert (proxy.connections, proxy.cuts, proxy.frames_passed) == (1, 0, 0)


def test_cut_resets_both_ends_and_lets_new_connections_in(stack, server, wired):
    proxy, client, taken = wired()
    proxy.cut()
    for end in (client, taken):
        with pytest.raises(ConnectionResetError):
            end.recv(1)
    assert proxy.cuts == 1
    again = client_of(stack, proxy)
    again.sendall(b"x")
    assert server.accept().recv(1) == b"x"
    assert proxy.connections == 2


def test_delay_delays_each_way_and_keeps_order(wired):
    proxy, client, taken = wired(delay=0.1)
    start = time.monotonic()
    client.sendall(b"1")
    assert taken.recv(1) == b"1"
    taken.sendall(b"2")
    assert client.recv(1) == b"2"
    assert time.monotonic() - start >= 0.2
    client.sendall(b"slow")
    eventually(lambda: select.select([taken], [], [], 0)[0] or time.monotonic() > start + 0.25)
    proxy.delay = 0
    client.sendall(b" quick")
    assert receive_exactly(taken, 10) == b"slow quick"


def test_stall_and_resume_lose_nothing(wired):
    proxy, client, taken = wired()
    data = bytes(range(256)) * 40_000
    sending = threading.Thread(target=client.sendall, args=(data,))
    sending.start()
    start = receive_exactly(taken, 100_000)
    proxy.stall()
    passed = proxy.bytes_up
    start += receive_exactly(taken, passed - len(start))
    assert (select.select([taken], [], [], 0.1)[0], proxy.bytes_up) == ([], passed)
    proxy.resume()
    assert start + receive_exactly(taken, len(data) - len(start)) == data
    sending.join()


def numbered(count):
    return [b"%06d" % number for number in range(count)]


def send_all(sender, frames):
    for frame in frames:
        assert sends(sender, frame, 60)


def receive_until(receiver, last):
    frames = []
    while not frames or frames[-1] != last:
        frames.append(taken(receiver))
        assert frames[-1] is not None
    return frames


def lossy_run(count, seed, **options):
    """Return what arrives of `count` frames through a lossy proxy, and the proxy."""
    with contextlib.ExitStack() as stack:
        sender, proxy, receiver = zmq_pair(stack, seed=seed, **options)
        send_all(sender, numbered(count))
        # Only a switched-off loss makes the end certain to arrive.
        eventually(lambda: proxy.frames_passed + proxy.frames_dropped >= count)
        proxy.frame_loss = 0.0
        send_all(sender, [b"end"])
        return receive_until(receiver, b"end")[:-1], proxy


def test_frames_are_lost_at_the_rate_given_and_every_one_is_accounted_for():
    frames, proxy = lossy_run(5000, seed=1, frame_loss=0.1)
    assert frames == sorted(set(frames))
    assert proxy.frames_passed == len(frames) + 1
    assert proxy.frames_dropped == 5000 - len(frames)
    # Five standard deviations of a binomial distribution.
    assert abs(proxy.frames_dropped - 500) < 5 * (5000 * 0.1 * 0.9) ** 0.5


def test_a_predicate_says_what_may_be_lost():
    frames, proxy = lossy_run(100, seed=1, drop=lambda prefix: prefix.endswith(b"3"))
    assert frames == [frame for frame in numbered(100) if not frame.endswith(b"3")]
    assert proxy.frames_dropped == 10


def test_frames_of_every_size_survive_next_to_lost_ones(stack):
    seen = []
    sizes = [0, 1, 253, 254, 255, 256, 257, 511, 512, 513, 8191, 8192, 70_000, 1_000_000]
    kept = [b"k" * size for size in sizes]

    def is_lost(prefix):
        seen.append(len(prefix))
        return prefix.startswith(b"x")

    sender, proxy, receiver = zmq_pair(stack, drop=is_lost)
    for frame in kept:
        send_all(sender, [frame, b"x" * len(frame) + b"x"])
    send_all(sender, [b"end"])
    assert receive_until(receiver, b"end") == [*kept, b"end"]
    assert proxy.frames_dropped == len(kept)
    assert max(seen) == 512


def test_what_the_predicate_raises_comes_out_of_close(stack):
    def broken(prefix):
        raise LookupError("a test's own mistake")

    sender = ZmqSender(LOOPBACK, context=context())
    stack.callback(sender.close)
    proxy = TcpProxy(sender.endpoint, drop=broken)
    receiver = ZmqReceiver(proxy.endpoint, context=context())
    stack.callback(receiver.close)
    receiver.subscribe(b"")
    receiver.connect()
    eventually(sender.take_subscriptions)
    sender.send(b"frame")
    assert eventually(sender.take_subscriptions) == 1  # it is given up
    with pytest.raises(LookupError, match="own mistake"):
        proxy.close()
    proxy.close()
