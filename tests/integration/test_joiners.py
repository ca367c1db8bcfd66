"""Many subscribers that join one publisher at once, and clients that connect and say nothing."""

import contextlib
import socket
import time

import pytest
import zmq

import p2pmsg
import transports
from tests.integration.peers import DEADLINE_S, LOOPBACK, eventually, take
from tests.unit.transports.sockets import taken
from transports import connections, reply_memory


@pytest.fixture
def publisher():
    with p2pmsg.Publisher(LOOPBACK, name="feed") as made:
        made.publish("t", b"first")
        yield made
        made.close(timeout=0)


@pytest.fixture
def make_sender(opened, monkeypatch):
    def make(**limits):
        made = transports.ZmqSender(LOOPBACK, context=transports.context())
        opened.callback(made.close)
        for name, limit in limits.items():
            monkeypatch.setattr(connections, name, limit)
        return made

    return make


FILES = 200


def address(endpoint):
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    return host, int(port)


@contextlib.contextmanager
def strangers(endpoint, count):
    """Open idle connections; the system takes up those that the process does not."""
    with contextlib.ExitStack() as opened:
        for _ in range(count):
            opened.enter_context(socket.create_connection(address(endpoint), timeout=DEADLINE_S))
        yield


@pytest.mark.long
def test_idle_connections_take_no_descriptor_that_the_log_needs(
    memory_path, make_child, make_subscriber
):
    """1,109 of them, where 1,024 files may be open, disabled a publisher permanently."""
    publisher = make_child("publish_with_few_files", memory_path, FILES)
    endpoint, recovery = publisher.line().split()
    with strangers(endpoint, FILES), strangers(recovery, FILES):
        for round_ in range(1, 6):
            publisher.order("200")  # 200 KB: three segments, and an fsync for each message
            following, failed, *counts = publisher.line().split()
            assert (following, failed) == (str(200 * round_), "None"), counts

        def refuses():  # on a quick disk it has published all before it has looked at all of them
            publisher.order("0")
            connections, refused = map(int, publisher.line().split()[2:])
            return refused > FILES > connections

        eventually(refuses)
    messages = take(make_subscriber(endpoint, start="earliest"), 1000)
    assert [message.sequence for message in messages] == list(range(1000))


@contextlib.contextmanager
def flood(endpoint, count, size):
    """A raw subscriber with as many prefixes as it likes."""
    with zmq.Context() as context, context.socket(zmq.XSUB) as one:
        one.set(zmq.SNDHWM, 0)
        one.set(zmq.LINGER, 0)
        one.set(zmq.RECONNECT_IVL, -1)
        one.connect(endpoint)
        for number in range(count):
            one.send(b"\1" + (b"%08d" % number)[::-1].ljust(size, b"."))
        yield one


@pytest.mark.parametrize(
    ("limits", "count", "size"),
    [
        ({"SUBSCRIPTIONS_MAX": 1000}, 5000, 8),
        ({"SUBSCRIPTION_BYTES_MAX": 10_000}, 5000, 100),
    ],
)
def test_a_connection_with_too_many_subscriptions_is_ended(make_sender, limits, count, size):
    sender = make_sender(**limits)
    other = transports.ZmqReceiver(sender.endpoint, context=transports.context())
    other.subscribe(b"t")
    other.connect()
    eventually(sender.take_subscriptions)
    with flood(sender.endpoint, count, size):
        notes = []

        def ended():
            notes.append(sender.take_subscriptions())
            return sender.connections.oversubscribed

        eventually(ended)
    eventually(lambda: sender.take_subscriptions() or len(sender.connections) == 1)
    assert sender.connections.oversubscribed == 1
    assert sum(notes) < count
    assert sender.send(b"to the other one")
    assert taken(other) == b"to the other one"
    other.close()


def test_connections_that_are_too_many_all_together_cost_the_one_with_most(make_sender):
    sender = make_sender(SUBSCRIPTIONS_MAX=100, SUBSCRIPTION_BYTES_MAX=10**6)
    with contextlib.ExitStack() as opened:
        for _ in range(12):  # each within its bound; eight times that is theirs together
            opened.enter_context(flood(sender.endpoint, 0, 8))
        raw = [opened.enter_context(flood(sender.endpoint, 0, 8)) for _ in range(12)]
        for at, one in enumerate(raw):
            for number in range(90):
                one.send(b"\1%d-%d" % (at, number))

        def ended():
            sender.take_subscriptions()
            return sender.connections.oversubscribed

        eventually(ended)


def test_giving_up_what_nobody_has_makes_no_space_for_more(make_sender):
    """300,000 prefixes passed the bound of 65,536 and took 850 MB, one "give up" after each."""
    sender = make_sender(SUBSCRIPTIONS_MAX=500)
    with socket.create_connection(address(sender.endpoint), timeout=DEADLINE_S) as one:
        one.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48))
        one.sendall(b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\3SUB")
        answer = b""
        while b"READY" not in answer:  # libzmq resets who sends messages before
            answer += one.recv(4096)
        with contextlib.suppress(ConnectionError):  # it is ended on the way
            for number in range(1000):
                for note in (b"\1%d" % number, b"\0nobody has %d" % number):
                    one.sendall(bytes((0, len(note))) + note)
        eventually(lambda: [sender.take_subscriptions(), sender.connections.oversubscribed][1])


def test_a_publisher_outlives_one_with_very_many_subscriptions():
    with p2pmsg.Publisher(LOOPBACK) as publisher:
        with p2pmsg.Subscriber(publisher.endpoint) as subscriber:
            publisher.wait_for_subscribers(1, DEADLINE_S)
            with flood(publisher.endpoint, 30_000, 40):
                published = 0
                deadline = time.monotonic() + DEADLINE_S
                while not publisher.stats().connections_oversubscribed:
                    publisher.publish("t", published)
                    published += 1
                    assert time.monotonic() < deadline, publisher.stats()
                    time.sleep(0.001)
            messages = take(subscriber, published)
            assert [message.value for message in messages] == list(range(published))


def test_a_real_subscriber_of_many_topics_is_within_the_bounds():
    """With nearly as many bytes of topics as one may name."""
    topics = [f"{number}" for number in range(8_000)]
    with p2pmsg.Publisher(LOOPBACK) as publisher:
        with p2pmsg.Subscriber(publisher.endpoint, topics=topics) as subscriber:
            publisher.wait_for_subscribers(1, DEADLINE_S)
            publisher.publish(topics[-1], 1)
            assert subscriber.receive(DEADLINE_S).topic == topics[-1]
            stats = publisher.stats()
            assert stats.connections_oversubscribed == stats.connections_refused == 0
            assert stats.connections == 2


def test_who_asks_and_never_reads_fills_no_memory():
    """A hundred of them kept 64 frames each: 3 GB, of frames of 500 KB."""
    context = zmq.Context()
    server = transports.ZmqRecoveryServer(LOOPBACK, context=transports.context(), queue_frames=64)
    peers = []
    try:
        for _ in range(3):
            peer = context.socket(zmq.DEALER)
            peer.set(zmq.RCVHWM, 1)
            peer.set(zmq.RCVBUF, 100_000)
            peer.set(zmq.LINGER, 0)
            peer.connect(server.endpoint)
            peer.send(b"a request")
            peers.append(peer)
        who = [eventually(lambda: server.receive_some(1))[0][0] for _ in peers]
        sent = dict.fromkeys(who, 0)
        for _ in range(100):
            for requester in who:
                size = 500_000
                sent[requester] += server.reply(requester, b"%d" % sent[requester] + bytes(size))
            time.sleep(0.001)
        limit = reply_memory.REQUESTER_BYTES_MAX
        assert server.memory.bytes_held <= len(peers) * limit
        assert max(sent.values()) < 60
        for peer in peers:
            peer.RCVTIMEO = int(DEADLINE_S * 1000)
            got = [peer.recv()]
            while len(got) not in sent.values():
                got.append(peer.recv())
            assert [int(data.rstrip(b"\0")) for data in got] == list(range(len(got)))
        eventually(lambda: all(server.memory.has_space(one, limit) for one in who))
        assert server.memory.bytes_held == 0
    finally:
        for peer in peers:
            peer.close()
        context.term()
        server.close()
