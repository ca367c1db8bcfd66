"""Ctrl-C behind each call that a subscriber or a puller makes for its caller, one by one."""

import sys

import pytest

from p2pmsg.queue import driver, job, puller, puller_line
from p2pmsg.sync import exclusive, lone, subscriber
from tests.integration.peers import TOPIC

SUBSCRIBER = (lone, subscriber)
PULLER = (driver, exclusive, job, puller, puller_line)


class Strike:
    """Raises KeyboardInterrupt behind the n-th call of a C function in some modules.

    There, and at the start of Python's own functions, is where CPython looks for signals.
    """

    def __init__(self, modules, number):
        self.files = {module.__file__ for module in modules}
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
                raise KeyboardInterrupt


@pytest.mark.parametrize("how", ["iterate", "receive", "receive_many"])
@pytest.mark.parametrize("count", [1, 300])
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
            elif how == "receive":
                received.append(receiver.receive(20).sequence)
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
