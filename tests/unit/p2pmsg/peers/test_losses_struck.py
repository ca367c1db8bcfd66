"""Ctrl-C at each place of a call that reports a loss: it is reported once, before what follows."""

import asyncio
import contextlib
import inspect
from pathlib import Path

import pytest

import p2pmsg
from p2pmsg.peers.loop.subscriber import Subscriber as LoopSubscriber
from p2pmsg.peers.threads.subscriber import Subscriber
from p2pmsg.testing import VirtualNetwork
from recovery import Loss
from tests.unit.p2pmsg.interrupts import interrupt_at

OURS = str(Path(p2pmsg.__file__).parent)
CALLS = {
    "receive": lambda face, subscriber, _: face.receive(subscriber, 0.0),
    "nowait": lambda _, subscriber, __: subscriber.receive_nowait(),
    "iterate": lambda face, _, iterator: next(iterator) if face is Subscriber else anext(iterator),
    "many": lambda face, subscriber, _: face.receive_many(subscriber, timeout=0.0),
    "many nowait": lambda _, subscriber, __: subscriber.receive_many_nowait(),
}

CALLED = {"receive", "receive_many", "receive_nowait", "receive_many_nowait"}
"""The interpreter does not look between the step in which a message is taken and their end."""


def is_ours(code):
    return code.co_filename.startswith(OURS) and code.co_name not in CALLED


def run_alone(call):
    """Run a call that does not wait."""
    with contextlib.suppress(StopIteration):
        call.send(None)


def losing(face, **options):
    """Return a network, its subscriber, and what has that lose a message before others."""
    network = VirtualNetwork(1, delay=0.0001)
    config = p2pmsg.PublisherConfig(replay_bytes=1024, frame_bytes=1024)
    publisher = network.publisher(config=config)
    make = network.subscriber if face is Subscriber else network.aio_subscriber
    subscriber = make(publisher, **options)
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
@pytest.mark.parametrize("face", [Subscriber, LoopSubscriber])
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_loss_is_reported_once_wherever_its_report_is_interrupted(face, how, policy):
    came = []

    def on_loss(report):
        came.append((report.start, report.stop))

    network, subscriber, lose = losing(face, on_gap=on_loss if policy == "callable" else "raise")
    iterator = (face.__iter__ if face is Subscriber else face.__aiter__)(subscriber)
    step, where = 0, ""
    ready, reading = subscriber._peer.core.ready, subscriber._peer.reading

    async def call():
        try:
            one = CALLS[how](face, subscriber, iterator)
            if inspect.isawaitable(one):
                one = await one
        except p2pmsg.MessagesLostError as error:
            on_loss(error.report)
        except TimeoutError:
            pass  # there was a loss alone
        else:
            if one is not None:
                count = len(one.values) if "many" in how else 1
                came.append((one.sequence, one.sequence + count))

    loop = asyncio.new_event_loop()
    run = run_alone if face is Subscriber else loop.run_until_complete

    def read():
        run(call())

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
    loop.close()
