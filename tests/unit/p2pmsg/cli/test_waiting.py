"""What commands say while they wait."""

import threading

import pytest

from p2pmsg.cli import waiting
from p2pmsg.cli.waiting import Answers, Waiting, several

A, B = "tcp://a:1", "tcp://b:1"


def test_a_state_is_said_after_a_second_once_and_again_when_it_comes_back(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(waiting.time, "monotonic", lambda: now[0])
    said, text = [], ["nobody"]
    monkeypatch.setattr(waiting, "note", lambda command, text: said.append(text))
    one = Waiting("sub", lambda: text[0], quiet=False)
    none = Waiting("sub", lambda: text[0], quiet=True)

    def pass_s(seconds, what):
        text[0] = what
        for _ in range(int(seconds * 10)):
            one.check()
            none.check()
            now[0] += 0.1

    pass_s(0.9, "nobody")
    assert said == []
    pass_s(5, "nobody")
    pass_s(0.5, "connected")
    pass_s(5, "")
    assert said == ["nobody"]
    pass_s(2, "nobody")
    pass_s(2, "connected")
    assert said == ["nobody", "nobody", "connected"]


def test_what_is_waited_for_is_said_by_endpoint():
    answers = Answers("no message on 'trades'")
    assert answers.describe({A: False, B: False}, []) == (
        f"waiting for {A}, {B}: nobody answers there yet"
    )
    assert answers.describe({A: True, B: False}, ["feed"]) == (
        f"connected to feed; waiting for {B}: nobody answers there yet"
    )
    both = {A: True, B: True}
    assert answers.describe(both, ["feed"]) == "connected to feed; no message on 'trades' yet"
    answers.came = True
    assert answers.describe(both, ["feed"]) == ""
    assert answers.describe({A: False, B: False}, []) == (
        f"waiting for {A}, {B}: nobody answers there any more"
    )
    assert answers.describe(both, ["feed"]).endswith("no message on 'trades' since")


@pytest.mark.parametrize(
    ("names", "text"), [("ab", "a, b"), ("abc", "a, b, c"), ("abcde", "a, b, c and 2 other topics")]
)
def test_a_few_names_are_said_and_how_many_others_there_are(names, text):
    assert several([*names], "topic") == text


class Watched(threading.Event):
    """An event that notes how long it is waited for at a time, and is set at the third wait."""

    def __init__(self):
        super().__init__()
        self.waits = []

    def wait(self, timeout=None):
        self.waits.append(timeout)
        if len(self.waits) == 3:
            self.set()
        return super().wait(0.0)


def test_an_event_is_waited_for_in_slices_so_that_no_signal_is_missed():
    event = Watched()
    waiting.wait_for(event)
    assert event.waits == [0.25] * 3
    waiting.wait_for(never := threading.Event(), 0.01)
    assert not never.is_set()


def test_who_is_refused_does_answer():
    answers = Answers("no message")
    assert answers.describe({A: False, B: True}, ["feed"], {A: "a loop"}) == (
        f"connected to feed; nothing is taken from {A}: a loop"
    )
    assert answers.describe({A: False, B: False}, [], {A: "a loop"}) == (
        f"waiting for {B}: nobody answers there any more; nothing is taken from {A}: a loop"
    )
