"""What follows where bytes come, and no frame is whole yet."""

import pytest

from p2pmsg.subscriber import partial_frames
from tests.unit.p2pmsg.frames import SESSION
from tests.unit.p2pmsg.subscriber_talk import MS, Talk, data, head


@pytest.fixture
def talk():
    return Talk(start="earliest", publisher_timeout=2.0).join(head(0))


def pass_seconds(talk, seconds, *, line=False, answer=False, lag_ms=50):
    """Let time pass, in which bytes come, and are looked for as `Receiving` does."""
    for _ in range(int(seconds * 10)):
        talk.pass_ms(100)
        came_ns = talk.now_ns - lag_ms * MS
        if line and 0 in partial_frames.silent_lines(talk.core, talk.now_ns):
            partial_frames.on_line(talk.core, 0, came_ns)
        if answer and SESSION in partial_frames.awaited_answers(talk.core, talk.now_ns):
            partial_frames.on_answer(talk.core, SESSION, came_ns)


def miss_one(talk):
    talk.hear(data(1))
    talk.asked()


def what(talk):
    return [name for name, _, _ in talk.commanded()]


def test_bytes_of_malformed_frames_are_no_sign(talk):
    pass_seconds(talk, 0.5, line=True)
    talk.hear(b"no frame")
    pass_seconds(talk, 3, line=True)
    assert "reconnect" in what(talk)
    talk.hear(data(0))
    pass_seconds(talk, 10, line=True)
    assert "reconnect" not in what(talk)


def test_it_is_waited_for_a_bounded_time(talk):
    miss_one(talk)
    number, lost = 2, []
    while not lost:
        assert number < 1000
        talk.hear(data(number))
        number += 1
        pass_seconds(talk, 1, answer=True)
        lost = talk.read()
    assert lost[0] == ("t", 0, 1, "timeout")
    assert 90 < number < 110  # ten times `repair_timeout`
