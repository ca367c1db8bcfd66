"""Ctrl-C behind each call that a peer makes for its caller, one by one."""

import signal
import sys
import threading
import time
from pathlib import Path

import pytest

import p2pmsg
import p2pmsg.queue.rules
from p2pmsg.queue import driver, job, puller, puller_core
from p2pmsg.subscriber import ready
from p2pmsg.sync import lock, receiving, subscriber
from tests.integration.peers import TOPIC, work_until
from transports import busy_wait, zmq_pubsub

SUBSCRIBER = (busy_wait, ready, receiving, subscriber, zmq_pubsub)
PULLER = (driver, lock, job, puller, puller_core)
PUSHER = [
    str(path)
    for package in (p2pmsg.queue, p2pmsg.queue.rules)
    for path in Path(package.__path__[0]).glob("*.py")
]


class Strike:
    """Presses Ctrl-C behind the n-th call of a C function in some modules.

    There, and at the start of Python's own functions, is where CPython looks for signals.
    """

    def __init__(self, modules, number):
        self.files = {getattr(module, "__file__", module) for module in modules}
        self.left = number
        self.struck = False

    def __enter__(self):
        sys.setprofile(self._profile)

    def __exit__(self, kind, *_):
        sys.setprofile(None)
        self.struck = kind is KeyboardInterrupt
        return self.struck

    def _profile(self, frame, event, _):
        if event == "c_return" and frame.f_code.co_filename in self.files:
            self.left -= 1
            if self.left == 0:
                signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("how", ["iterate", "receive", "receive_many", "in turns"])
@pytest.mark.parametrize("count", [1, 300, 9000])
def test_ctrl_c_behind_any_call_neither_loses_nor_doubles(
    make_publisher, make_subscriber, how, count
):
    publisher = make_publisher()
    receiver = make_subscriber(publisher.endpoint, joins=publisher)
    iterator = iter(receiver)
    received, published, strikes = [], 0, 0

    def receive():
        while len(received) < published:
            if how == "iterate":
                received.append(next(iterator).sequence)
            elif how == "receive" or (how == "in turns" and len(received) % 3 == 0):
                received.append(receiver.receive(20).sequence)
            elif how == "in turns":
                received.extend(m.sequence for m in receiver.receive_many(1000, timeout=20))
            else:
                received.extend(m.sequence for m in receiver.receive_many(timeout=20))

    for number in range(1, 40):
        publisher.publish_many(TOPIC, [None] * count)
        publisher.flush()
        published += count
        strike = Strike(SUBSCRIBER, number)
        with strike:
            receive()
        receive()
        strikes += strike.struck
    assert received == list(range(published))
    assert strikes > 3


@pytest.mark.parametrize("how", ["iterate", "receive"])
@pytest.mark.parametrize("key", [None, "k"])
def test_ctrl_c_behind_any_call_of_a_puller_forgets_no_job(make_pusher, make_puller, how, key):
    pusher = make_pusher()
    worker = make_puller(pusher.endpoint)
    iterator = iter(worker)
    done, strikes = set(), 0

    def work(goal):
        while not goal <= done:
            taken = next(iterator) if how == "iterate" else worker.receive(timeout=20)
            with taken:
                done.add(taken.value)

    for number in range(1, 100):
        goal = {4 * number + part for part in range(4)}
        for value in goal:
            pusher.push(value, key=key)
        strike = Strike(PULLER, number)
        with strike:
            work(goal)
        work(goal)
        strikes += strike.struck
    pusher.drain(timeout=20)

    assert strikes > 30


@pytest.mark.parametrize("key", [None, "k"])
def test_ctrl_c_behind_any_call_of_a_pusher_forgets_no_job(make_pusher, make_puller, key):
    done, stop = [], threading.Event()

    pusher = make_pusher()
    puller = make_puller(pusher.endpoint)
    thread = threading.Thread(
        target=work_until, args=(stop, puller, lambda taken: done.append(taken.sequence))
    )
    thread.start()
    accepted, strikes = set(), 0
    try:
        for number in range(1, 100):
            strike = Strike(PUSHER, number)
            time.sleep(0.02)  # so that the first one is handed out at once
            with strike:
                for value in range(3):
                    accepted.add(pusher.push(value, key=key))
            strikes += strike.struck
            accepted.add(pusher.push("behind it", key=key))
        pusher.drain(timeout=20)
    finally:
        stop.set()
        thread.join()

    # One that was interrupted may have been accepted all the same.
    assert accepted <= set(done)
    assert len(done) == len(set(done)) <= len(accepted) + strikes
    assert pusher.stats().balanced
    assert strikes > 30
