"""Ctrl-C behind each call that a subscriber makes while it takes what is ready, one by one."""

import sys

import pytest

from p2pmsg.sync import lone, subscriber
from tests.integration.peers import TOPIC

FILES = {lone.__file__, subscriber.__file__}


class Strike:
    """Raises KeyboardInterrupt behind the n-th call of a C function in the subscriber's shell.

    There, and at the start of Python's own functions, is where CPython looks for signals.
    """

    def __init__(self, number):
        self.left = number
        self.struck = False

    def __enter__(self):
        sys.setprofile(self._profile)

    def __exit__(self, kind, *_):
        sys.setprofile(None)
        self.struck = kind is KeyboardInterrupt
        return self.struck

    def _profile(self, frame, event, _):
        if event == "c_return" and frame.f_code.co_filename in FILES:
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
        strike = Strike(number)
        with strike:
            receive()
        receive()
        strikes += strike.struck
    assert received == list(range(published))
    assert strikes > 3
