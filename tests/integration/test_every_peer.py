"""What holds of every peer: it is collected after it was closed, and says when it cannot open."""

import gc
import os
import weakref

import pytest

import p2pmsg
from p2pmsg import metrics
from p2pmsg.moldudp64 import MoldPublisher
from p2pmsg.reader import HeadsWatch, RangeReader
from tests.descriptors import no_descriptor_left
from tests.integration.peers import eventually

LOOPBACK = "tcp://127.0.0.9:0"
"""An address of its own: peers of other tests connect to ports of 127.0.0.1 again and again; one
that finds its port taken by one of these peers would be one descriptor more."""
ELSEWHERE = "tcp://127.0.0.1:9"
MOLD = "mold://127.0.0.1:5998?interface=127.0.0.1"
ROUNDS = 5


def publish():
    with p2pmsg.Publisher(LOOPBACK) as publisher:
        with p2pmsg.Subscriber(publisher.endpoint, topics=["t"]) as subscriber:
            publisher.wait_for_subscribers(1)
            publisher.publish("t", [1])
            subscriber.receive(60)
            return publisher, subscriber


def relay():
    with p2pmsg.Publisher(LOOPBACK) as publisher:
        publisher.publish("t", 1)
        with p2pmsg.Relay([publisher.endpoint], LOOPBACK) as relay:
            with p2pmsg.Subscriber(relay.endpoint, start="earliest") as subscriber:
                subscriber.receive(60)
                return relay, subscriber


def push():
    with p2pmsg.Pusher(LOOPBACK) as pusher:
        with p2pmsg.Puller(pusher.endpoint) as puller:
            pusher.push(1)
            puller.receive(60).ack()
            pusher.join(60)
            return pusher, puller


def push_by_the_batch():
    with p2pmsg.Pusher(LOOPBACK, acknowledge="batch") as pusher:
        with p2pmsg.Puller(pusher.endpoint, acknowledge="batch") as puller:
            pusher.push(1)
            puller.receive(60)
            pusher.close(0.0)
            return pusher, puller


def request():
    with p2pmsg.Responder(LOOPBACK, {"t": lambda value: value}) as responder:
        responder.start()
        with p2pmsg.Requester(responder.endpoint) as requester:
            requester.request("t", 1)
            return responder, requester


def publish_mold():
    with MoldPublisher(MOLD, session="S") as publisher:
        publisher.publish(b"1")
        return (publisher,)


@pytest.mark.parametrize(
    "once",
    [publish, relay, push, push_by_the_batch, request, publish_mold],
)
def test_a_closed_peer_is_collected(once):
    left = [weakref.ref(peer) for _ in range(ROUNDS) for peer in once()]

    def are_gone():
        gc.collect()
        return not any(one() for one in left)

    eventually(are_gone)


OPENED = {
    "publisher": lambda: p2pmsg.Publisher(LOOPBACK),
    "multicast": lambda: p2pmsg.Publisher("udp://239.1.1.9:5997?interface=127.0.0.1"),
    "subscriber": lambda: p2pmsg.Subscriber(ELSEWHERE),
    "group": lambda: p2pmsg.Subscriber("udp://239.1.1.9:5997?interface=127.0.0.1"),
    "relay": lambda: p2pmsg.Relay([ELSEWHERE], LOOPBACK),
    "pusher": lambda: p2pmsg.Pusher(LOOPBACK),
    "puller": lambda: p2pmsg.Puller(ELSEWHERE),
    "pipeline pusher": lambda: p2pmsg.Pusher(LOOPBACK, acknowledge="batch"),
    "pipeline puller": lambda: p2pmsg.Puller(ELSEWHERE, acknowledge="batch"),
    "responder": lambda: p2pmsg.Responder(LOOPBACK, {}),
    "requester": lambda: p2pmsg.Requester(ELSEWHERE).request("t", 1, timeout=1.0),
    "reader": lambda: RangeReader(ELSEWHERE).heads(),
    "heads": lambda: HeadsWatch([ELSEWHERE]),
    "metrics": lambda: metrics.Client(LOOPBACK),
    "mold": lambda: MoldPublisher(MOLD, session="S"),
}
TAKEN = {"publisher": 9, "subscriber": 4, "pusher": 5, "puller": 4, "responder": 5}
"""Without those of connections."""
NONE_FREE = r"needs 16 free descriptors, and \d+ are free: Too many open files \(ulimit -n is \d+\)"


@pytest.mark.parametrize("make", OPENED.values(), ids=OPENED)
def test_a_peer_that_has_no_descriptor_says_so(make):
    assert all(hasattr(p2pmsg, name) for name in p2pmsg.__all__)  # imports take descriptors
    with no_descriptor_left(), pytest.raises(p2pmsg.P2PError, match=NONE_FREE):
        make()


@pytest.mark.parametrize(("name", "most"), TAKEN.items())
def test_a_peer_takes_few_descriptors(name, most):
    with OPENED[name]():  # what all peers share
        pass
    before = len(os.listdir("/proc/self/fd"))
    with OPENED[name]():
        eventually(lambda: len(os.listdir("/proc/self/fd")) - before <= most)
