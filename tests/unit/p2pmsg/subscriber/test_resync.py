"""Ctrl-C may strike at each function's start: whatever it cuts short, all messages come, once."""

from functools import partial
from itertools import count
from pathlib import Path

import pytest

from p2pmsg.subscriber.resync import resync
from tests.unit.p2pmsg import frames
from tests.unit.p2pmsg.interrupts import interrupt_at
from tests.unit.p2pmsg.subscriber_talk import Talk, data, head

ROOT = Path(__file__).parents[4]
OURS = (*(f"{ROOT}/{package}/" for package in ("p2pmsg", "recovery", "transports")), "<string>")
"""Code that is interrupted; the text is what a dataclass makes."""


def is_inside(code):
    """Not a generator that is let go, nor one watching garbage: they have nobody to raise to."""
    return code.co_filename.startswith(OURS) and code.co_name != "<genexpr>"


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
    "welcome": (Talk, "hear", lambda talk: frames.welcome(frames.SESSION), "Session.__post_init__"),
    "echo": (welcomed, "hear", echo, "StreamTable.begin"),
    "first frame": (joined, "hear", lambda talk: data(0), "StreamTable.begin"),
    "first heartbeat": (
        joined, "hear", lambda talk: frames.heartbeat(1), "StreamTable.begin",
    ),
    "frame after a gap": (with_a_gap, "hear", lambda talk: data(3), "StreamReceiver.receive"),
    "request": (with_a_gap, "pass_ms", lambda talk: 5, "NackScheduler.due"),
    "repair": (asked_for_its_gap, "reply", lambda talk: data(1), "StreamReceiver.receive"),
}  # fmt: skip
"""What is there before, what is cut short, with what, and a function that is struck in it."""


@pytest.mark.parametrize("case", CASES)
def test_whatever_is_cut_short_all_messages_come_once(case):
    before, call, make, part = CASES[case]
    places = []
    for step in count():
        talk = before()
        where = interrupt_at(step, partial(getattr(talk, call), make(talk)), is_inside, "call")
        if where is None:
            break
        places.append(where)
        resync(talk.core, now_ns=talk.now_ns)
        for sequence in range(5):
            if sequence != 1:
                talk.hear(data(sequence))
        expected = [("t", sequence) for sequence in range(5)]
        found = [one for one in play_on(talk, 5) if len(one) == 3]
        spread = [(topic, n) for topic, start, size in found for n in range(start, start + size)]
        assert spread == expected, (step, where)
    assert part in places


def test_what_was_cut_short_does_not_count_as_on_its_way():
    talk = with_a_gap()
    talk.core.table.effects.counts_replies = True
    resync(talk.core, now_ns=talk.now_ns)
    talk.pass_ms(5)
    nacks = [body for kind, body, _ in talk.asked() if kind == "NACK"]
    assert nacks[-1].received > 2**32
