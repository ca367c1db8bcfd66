"""Subscriptions that are decided on one by one, on real sockets with keys."""

import pytest

from tests.unit.transports.sockets import LOOPBACK, eventually, socket_opener
from transports import ZmqReceiver, ZmqSender
from transports.curve import CurveClient, CurveKeys, CurveServer, key_text

SERVER, ANN, BOB = CurveKeys.new(), CurveKeys.new(), CurveKeys.new()
NAMES = {key_text(ANN.public): "ann", key_text(BOB.public): "bob"}


class Feed:
    """A sender, who may have what of it, and its receivers."""

    def __init__(self, opened, endpoint=LOOPBACK, **options):
        self.rules = {("ann", b"a\0"), ("ann", b"b"), ("bob", b"b"), ("ann", b"\0"), ("bob", b"\0")}
        self.opened = opened
        self.notes = []
        self.sender = opened(
            ZmqSender, endpoint, curve=CurveServer(SERVER, key_text),
            allows=self.allows, **options,
        )  # fmt: skip

    def allows(self, user, prefix):
        return (NAMES.get(user, user), prefix) in self.rules

    def receiver(self, keys, *prefixes):
        curve = CurveClient(keys, SERVER.public)
        receiver = self.opened(ZmqReceiver, self.sender.endpoint, curve=curve)
        for prefix in (b"\0", *prefixes):
            receiver.subscribe(prefix)
        receiver.connect()
        return receiver

    def turn(self):
        self.notes += self.sender.receive_subscriptions()

    def has(self, receiver, frame):
        """Wait until a frame reaches a receiver; returns what came before it."""
        found = []

        def came():
            self.turn()
            self.sender.send(frame)
            self.sender.send(b"\0")
            while (data := receiver.receive()) is not None:
                found.append(data)
            return frame in found

        eventually(came)
        return set(found)


@pytest.fixture(params=["tcp", "ipc"])
def feed(request, tmp_path):
    with socket_opener() as opened:
        yield Feed(opened, LOOPBACK if request.param == "tcp" else f"ipc://{tmp_path}/feed")


def test_only_the_first_and_the_last_of_a_prefix_are_reported(feed):
    ann = feed.receiver(ANN, b"b")
    feed.has(ann, b"b")
    bob = feed.receiver(BOB, b"b")
    feed.has(bob, b"b")
    assert feed.notes.count(b"\1b") == 1

    ann.unsubscribe(b"b")
    eventually(lambda: feed.turn() or (len(feed.sender.allowed._holders) == 2 and
               feed.sender.allowed._holders[b"b"] == 1))  # fmt: skip
    assert b"\0b" not in feed.notes
    bob.close()
    eventually(lambda: feed.turn() or b"\0b" in feed.notes)
    assert dict(feed.sender.allowed._holders) == {b"\0": 1}
    ann.close()
    eventually(lambda: feed.turn() or not feed.sender.allowed._subscribers)
    assert feed.sender.allowed._byte_count == 0


def test_subscriptions_that_are_refused_count_for_the_bounds():
    with socket_opener() as opened:
        feed = Feed(opened)
        feed.sender.connections.subscriptions_max = 50
        feed.receiver(BOB, *(b"%d" % number for number in range(60)))
        eventually(lambda: feed.turn() or feed.sender.connections.oversubscribed)
        feed.turn()
        assert all(len(one.prefixes) <= 51 for one in feed.sender.allowed._subscribers.values())
