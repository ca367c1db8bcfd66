"""Ctrl-C at each place of a call that reports a loss: it is reported once, before what follows."""

from pathlib import Path

import pytest

import p2pmsg
from p2pmsg.peers.threads.subscriber import Subscriber
from p2pmsg.testing import VirtualNetwork
from recovery import Loss
from tests.unit.p2pmsg.interrupts import interrupt_at

OURS = str(Path(p2pmsg.__file__).parent)
CALLS = {
    "receive": lambda subscriber, _: Subscriber.receive(subscriber, 0.0),
    "nowait": lambda subscriber, _: subscriber.receive_nowait(),
    "iterate": lambda _, iterator: next(iterator),
    "many": lambda subscriber, _: Subscriber.receive_many(subscriber, timeout=0.0),
    "many nowait": lambda subscriber, _: subscriber.receive_many_nowait(),
}

CALLED = {"receive", "receive_many", "receive_nowait", "receive_many_nowait"}
"""The interpreter does not look between the step in which a message is taken and their end."""


def is_ours(code):
    return code.co_filename.startswith(OURS) and code.co_name not in CALLED


def losing(**options):
    """Return a network, its subscriber, and what has that lose a message before others."""
    network = VirtualNetwork(1, delay=0.0001)
    config = p2pmsg.PublisherConfig(replay_bytes=1024, frame_bytes=1024)
    publisher = network.publisher(config=config)
    subscriber = network.subscriber(publisher, **options)
    publisher.wait_for_subscribers(1)

    def lose():
        network.partition(publisher, subscriber, 0.001)
        for _ in range(2):
            publisher.publish("t", bytes(900))
        network.advance(0.002)
        publisher.publish("t", bytes(900))
        network.advance(0.002)

    return network, subscriber, lose


@pytest.mark.parametrize("how", CALLS)
@pytest.mark.parametrize("policy", ["callable", "raise"])
def test_a_loss_is_reported_once_wherever_its_report_is_interrupted(how, policy):
    came = []

    def on_loss(report):
        came.append((report.start, report.stop))

    network, subscriber, lose = losing(on_gap=on_loss if policy == "callable" else "raise")
    iterator, step, where = Subscriber.__iter__(subscriber), 0, ""
    ready, reading = subscriber._peer.core.ready, subscriber._peer.reading

    def read():
        try:
            one = CALLS[how](subscriber, iterator)
        except p2pmsg.MessagesLostError as error:
            on_loss(error.report)
        except TimeoutError:
            pass  # there was a loss alone
        else:
            if one is not None:
                count = len(one.values) if "many" in how else 1
                came.append((one.sequence, one.sequence + count))

    def has_more():
        subscriber.stats()  # what an interrupt left is put right
        return reading.left or reading.is_reporting or ready.entries

    while where is not None:
        lose()
        while has_more():
            is_next = not reading.left and ready.entries and isinstance(ready.entries[0][1], Loss)
            if is_next and where is not None:
                where = interrupt_at(step, read, is_ours, "signal")
                step += 1
            else:
                read()
    assert step > 30
    network.drain()
    while has_more():
        read()
    stats = subscriber.stats()
    assert (stats.outstanding, stats.published) == (0, came[-1][1])
    assert [start for start, _ in came] == [0, *(stop for _, stop in came[:-1])]
