"""Ctrl-C may strike at each function's start: whatever it cuts short, all messages come, once."""

import sys
from functools import partial

import pytest

from p2pmsg.subscriber_heal import heal
from tests.unit.p2pmsg import frames
from tests.unit.p2pmsg.subscriber import Talk, data, head


class Strike:
    """Raises KeyboardInterrupt where the `at`-th function of the library begins.

    Attributes:
        where: which one that was; None where there are not so many.

    """

    def __init__(self, at):
        self._left = at
        self.where = None

    def __enter__(self):
        sys.settrace(self._trace)

    def __exit__(self, *_):
        sys.settrace(None)

    def _trace(self, frame, event, argument):
        code = frame.f_code
        if "/tests/" in code.co_filename or code.co_name == "<genexpr>":
            return  # a generator that is let go has nobody to raise it to
        self._left -= 1
        if self._left == 0:
            self.where = code.co_qualname
            sys.settrace(None)
            raise KeyboardInterrupt


def struck(at, call):
    strike = Strike(at)
    try:
        with strike:
            call()
    except KeyboardInterrupt:
        pass
    return strike.where


def play_on(talk, following):
    """Let the publisher go on, and answer what is asked for; return what was handed on."""
    found = talk.read()
    for _ in range(15):
        talk.hear(frames.heartbeat(following))
        talk.pass_ms(100)
        if "reconnect" in [what for what, _, _ in talk.commanded()]:
            talk.hear(frames.welcome(frames.SESSION))
        for kind, body, _ in talk.asked():
            if kind == "PROBE":
                talk.hear(frames.echo(body.probe, head(following, start=0)))
            elif kind == "NACK":
                for start, stop in body.ranges:
                    for sequence in range(start, stop):
                        talk.reply(data(sequence))
        found += talk.read()
    return found


def with_a_gap():
    talk = Talk(start="latest").join()
    talk.hear(data(0))
    talk.hear(data(2))
    return talk


def asked_for_its_gap():
    talk = with_a_gap()
    talk.pass_ms(5)
    return talk


def welcomed():
    talk = Talk(start="earliest")
    talk.hear(frames.welcome(frames.SESSION, name="feed"))
    return talk


def joined():
    return Talk(start="latest").join()


def echo(talk):
    return frames.echo(talk.probe().probe, head(1, start=0))


CASES = {
    "welcome": (Talk, "hear", lambda talk: frames.welcome(frames.SESSION), "Peer.__init__"),
    "echo": (welcomed, "hear", echo, "SubscriberCore.begin"),
    "first frame": (joined, "hear", lambda talk: data(0), "SubscriberCore.begin"),
    "first heartbeat": (
        joined, "hear", lambda talk: frames.heartbeat(1), "SubscriberCore.begin",
    ),
    "frame behind a gap": (with_a_gap, "hear", lambda talk: data(3), "StreamReceiver.receive"),
    "request": (with_a_gap, "pass_ms", lambda talk: 5, "StreamReceiver.nacks_due"),
    "repair": (asked_for_its_gap, "reply", lambda talk: data(1), "StreamReceiver.receive"),
}  # fmt: skip
"""What is there before, what is cut short, with what, and a function that is struck in it."""


@pytest.mark.parametrize("case", CASES)
def test_whatever_is_cut_short_all_messages_come_once(case):
    before, call, make, part = CASES[case]
    at, places = 0, []
    while True:
        at += 1
        talk = before()
        where = struck(at, partial(getattr(talk, call), make(talk)))
        if where is None:
            break
        places.append(where)
        heal(talk.core, now_ns=talk.now_ns)
        for sequence in range(5):
            if sequence != 1:
                talk.hear(data(sequence))
        expected = [("t", sequence) for sequence in range(5)]
        found = [one for one in play_on(talk, 5) if len(one) == 3]
        spread = [(topic, n) for topic, start, count in found for n in range(start, start + count)]
        assert spread == expected, (at, where)
    assert part in places
