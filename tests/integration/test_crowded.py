"""Strangers who connect and say nothing, or subscribe without end: bounded and counted."""

import contextlib
import socket
import time

import pytest
import zmq

import p2pmsg
import transports
from p2pmsg import wire
from tests.integration.peers import DEADLINE_S, LOOPBACK, eventually, start_child, take

FILES = 200


def address(endpoint):
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    return host, int(port)


@contextlib.contextmanager
def strangers(endpoint, count):
    """Open idle connections; the system takes up those that the process does not."""
    opened = []
    try:
        for _ in range(count):
            one = socket.create_connection(address(endpoint), timeout=5)
            opened.append(one)
        yield opened
    finally:
        for one in opened:
            one.close()


@contextlib.contextmanager
def child(tmp_path):
    made = start_child(tmp_path, FILES, module="crowded_publisher")
    try:
        yield made, *made.line().split()
    finally:
        made.finish()


def test_idle_connections_take_no_descriptor_that_the_log_needs(tmp_path):
    """1,109 of them, where 1,024 files may be open, disabled a publisher for good."""
    with child(tmp_path) as (publisher, endpoint, recovery):
        with strangers(endpoint, FILES), strangers(recovery, FILES):
            for round_ in range(1, 6):
                publisher.tell("200")  # 200 KB: three segments, and an fsync for each message
                following, failed, *counts = publisher.line().split()
                assert (following, failed) == (str(200 * round_), "None"), counts
            connections, refused = map(int, counts)
            assert refused > FILES
            assert connections < FILES
        with p2pmsg.Subscriber(endpoint, start="earliest") as subscriber:
            messages = take(subscriber, 1000)
        assert [message.sequence for message in messages] == list(range(1000))


class Flood:
    """A raw subscriber with as many prefixes as it likes."""

    def __init__(self, endpoint, count, size):
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.XSUB)
        self.socket.set(zmq.SNDHWM, 0)
        self.socket.set(zmq.LINGER, 0)
        self.socket.set(zmq.RECONNECT_IVL, -1)
        self.socket.connect(endpoint)
        for number in range(count):
            self.socket.send(b"\1" + (b"%08d" % number)[::-1].ljust(size, b"."))

    def close(self):
        self.socket.close()
        self.context.term()


@contextlib.contextmanager
def flood(endpoint, count, size):
    one = Flood(endpoint, count, size)
    try:
        yield one
    finally:
        one.close()


@pytest.mark.parametrize(
    ("limits", "count", "size"),
    [
        ({"subscriptions_max": 1000}, 5000, 8),
        ({"subscription_bytes_max": 10_000}, 5000, 100),
    ],
)
def test_a_connection_with_too_many_subscriptions_is_ended(limits, count, size):
    sender = transports.ZmqSender(LOOPBACK, context=transports.context(), **limits)
    try:
        other = transports.ZmqReceiver(sender.endpoint, context=transports.context())
        other.subscribe(b"t")
        other.connect()
        with flood(sender.endpoint, count, size):
            notes = []

            def ended():
                notes.extend(sender.receive_subscriptions())
                return sender.connections.oversubscribed

            eventually(ended)
        eventually(lambda: sender.receive_subscriptions() or len(sender.connections) == 1)
        assert sender.connections.oversubscribed == 1
        assert len(notes) < count
        assert sender.send(b"to the other one")
        assert other.receive_wait(5000) == b"to the other one"
        other.close()
    finally:
        sender.close()


def test_connections_that_are_too_many_all_together_cost_the_one_with_most():
    sender = transports.ZmqSender(
        LOOPBACK, context=transports.context(), subscriptions_max=100, subscription_bytes_max=10**6
    )
    try:
        with contextlib.ExitStack() as opened:
            for _ in range(12):  # each within its bound; eight times that is theirs together
                opened.enter_context(flood(sender.endpoint, 0, 8))
            raw = [opened.enter_context(flood(sender.endpoint, 0, 8)) for _ in range(12)]
            for at, one in enumerate(raw):
                for number in range(90):
                    one.socket.send(b"\1%d-%d" % (at, number))

            def ended():
                sender.receive_subscriptions()
                return sender.connections.oversubscribed

            eventually(ended)
    finally:
        sender.close()


def test_a_publisher_outlives_one_with_very_many_subscriptions():
    with p2pmsg.Publisher(LOOPBACK) as publisher:
        with p2pmsg.Subscriber(publisher.endpoint) as subscriber:
            publisher.wait_for_subscribers(1, DEADLINE_S)
            with flood(publisher.endpoint, 100_000, 40):
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


def test_connections_are_counted_as_they_come_and_go():
    with p2pmsg.Publisher(LOOPBACK) as publisher:
        with strangers(publisher.endpoint, 20):
            eventually(lambda: publisher.stats().connections == 20)
        eventually(lambda: publisher.stats().connections == 0)
        assert publisher.stats().connections_refused == 0


def test_a_relay_counts_too():
    with p2pmsg.Publisher(LOOPBACK) as publisher:
        with p2pmsg.Relay(publisher.endpoint, LOOPBACK) as relay:
            with strangers(relay.endpoint, 5):
                eventually(lambda: relay.stats().connections == 5)


def test_a_probe_prefix_is_given_up_again():
    """So that the prefixes of a connection do not add up over its life."""
    prefix = wire.control_prefix(wire.Kind.ECHO, 7)
    sender = transports.ZmqSender(LOOPBACK, context=transports.context(), subscriptions_max=3)
    try:
        receiver = transports.ZmqReceiver(sender.endpoint, context=transports.context())
        receiver.connect()
        for _ in range(20):
            receiver.subscribe(prefix)
            eventually(sender.receive_subscriptions)
            receiver.unsubscribe(prefix)
            eventually(sender.receive_subscriptions)
        assert sender.connections.oversubscribed == 0
        receiver.close()
    finally:
        sender.close()
