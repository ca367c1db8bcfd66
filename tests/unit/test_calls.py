"""Through how many of our functions a message goes: what a newcomer has to read, and its cost."""

import gc
import sys

import p2pmsg
from p2pmsg.testing import VirtualNetwork
from tests.faces import ROOT

OURS = tuple(str(ROOT / name) + "/" for name in ("p2pmsg", "recovery", "transports"))
TRIES = 40
"""Sometimes a turn or a heartbeat comes in between: the fewest calls of many tries count."""


class Calls:
    """Notes which of our functions a thread calls."""

    def __init__(self):
        self.seen = []

    def __enter__(self):
        gc.disable()  # what other tests left to be finalized calls ours, too
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)
        gc.enable()

    def _profile(self, frame, event, argument):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(OURS):
            self.seen.append((code.co_filename, code.co_name))

    def until(self, name):
        """Return what is called up to the function of this name, with it."""
        names = [each for _, each in self.seen]
        return self.seen[: names.index(name) + 1] if name in names else self.seen

    def since(self, name):
        """Return what is called from the last function of this name on."""
        names = [each for _, each in self.seen]
        return self.seen[len(names) - 1 - names[::-1].index(name) :]


def test_a_message_takes_few_calls_to_the_socket_and_from_its_frame_to_the_reader():
    sent, taken = [], []
    with (
        p2pmsg.Publisher("inproc://calls") as publisher,
        p2pmsg.Subscriber(publisher.endpoint) as subscriber,
    ):
        publisher.wait_for_subscribers(1, timeout=30)
        publisher.publish("a", 0)
        subscriber.receive(timeout=30)
        for number in range(TRIES):
            with Calls() as calls:
                publisher.publish("a", number)
            sent.append(calls.until("send_to_all"))
            with Calls() as calls:
                assert subscriber.receive(timeout=30).value == number
            taken.append(calls.since("receive"))
    sent, taken = min(sent, key=len), min(taken, key=len)
    assert len(sent) <= 12, sent
    assert len({file for file, _ in sent}) <= 8, sent
    assert 2 < len(taken) <= 14, taken
    assert len({file for file, _ in taken}) <= 8, taken


def test_a_repair_takes_few_calls_from_its_nack():
    """All of it in this thread, on a network in memory that loses frames, whose clock is a call."""
    network = VirtualNetwork(lossy=0.2, seed=1)
    publisher = network.publisher()
    subscriber = network.subscriber(publisher, topics=["a"])
    publisher.wait_for_subscribers(1)
    with Calls() as calls:
        for number in range(TRIES):
            publisher.publish("a", number)
            network.advance(0.05)
            assert subscriber.receive(timeout=30).value == number
    seen = [call for call in calls.seen if "/testing/" not in call[0]]
    ways, names = [], [name for _, name in seen]
    for at, name in enumerate(names):
        if name == "_receive_nack":
            begin = at - names[at::-1].index("receive")
            way = seen[begin : names.index("_send_reply", at) + 1]
            if "_repair_of" in [each for _, each in way]:
                ways.append(way)
    shortest = min(ways, key=len)
    assert len(shortest) <= 25, shortest
    assert len({file for file, _ in shortest}) <= 10, shortest
