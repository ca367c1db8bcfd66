"""What follows where bytes come, and no frame is whole yet."""

import pytest

from p2pmsg.subscriber import underway
from p2pmsg.wire import Kind
from tests.unit.p2pmsg.frames import SESSION
from tests.unit.p2pmsg.subscriber_talk import MS, Talk, data, head


@pytest.fixture
def talk():
    return Talk(start="earliest", publisher_timeout=2.0).join(head(0))


def pass_seconds(talk, seconds, *, line=False, answer=False, lag_ms=50):
    """Let time pass, in which bytes come, and are looked for as `SubscriberIO` does."""
    for _ in range(int(seconds * 10)):
        talk.pass_ms(100)
        came_ns = talk.now_ns - lag_ms * MS
        if line and 0 in underway.silent_lines(talk.core, talk.now_ns):
            underway.note_line(talk.core, 0, came_ns)
        if answer and SESSION in underway.awaited_answers(talk.core, talk.now_ns):
            underway.note_answer(talk.core, SESSION, came_ns)


def miss_one(talk):
    talk.hear(data(1))
    talk.asked()


def what(talk):
    return [name for name, _, _ in talk.commanded()]


def test_a_line_over_which_bytes_come_is_not_made_again(talk):
    pass_seconds(talk, 30, line=True)
    assert "reconnect" not in what(talk)
    assert talk.core.lines[0].is_heard
    pass_seconds(talk, 3)
    assert "reconnect" in what(talk)


def test_only_bytes_since_it_was_last_heard_count(talk):
    before_ns = talk.core.lines[0].heard_ns
    underway.note_line(talk.core, 0, before_ns - 1)
    assert talk.core.lines[0].heard_ns == before_ns


def test_bytes_of_malformed_frames_are_no_sign(talk):
    pass_seconds(talk, 0.5, line=True)
    talk.hear(b"no frame")
    pass_seconds(talk, 3, line=True)
    assert "reconnect" in what(talk)
    talk.hear(data(0))
    pass_seconds(talk, 10, line=True)
    assert "reconnect" not in what(talk)


def test_an_answer_whose_bytes_come_is_waited_for(talk):
    miss_one(talk)
    for _ in range(50):  # longer than a gap is waited for without an answer, than a line is deaf
        talk.hear(data(2 + _))
        pass_seconds(talk, 0.5, answer=True)
    assert "reconnect" not in what(talk)
    assert not talk.read()
    talk.reply(data(0))
    assert talk.read()[0] == ("t", 0, 1)


def test_an_answer_of_which_no_byte_comes_is_lost_in_time(talk):
    miss_one(talk)
    for _ in range(50):
        talk.hear(data(2 + _))
        pass_seconds(talk, 0.5)
    assert "reconnect" in what(talk)
    assert talk.read()[0] == ("t", 0, 1, "timeout")


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


def test_streams_that_wait_for_their_turn_wait_on_while_an_answer_comes():
    """Over a slow network what is asked for first takes longer than `repair_timeout`."""
    topics = [f"t{number}" for number in range(300)]
    talk = Talk(start="earliest", publisher_timeout=2.0)
    talk.join(*(head(0, topic=topic) for topic in topics))
    for topic in topics:
        talk.hear(data(1, topic=topic))
    for _ in range(30):
        talk.hear(data(2 + _, topic=topics[0]))
        pass_seconds(talk, 1, answer=True)
    assert not talk.read()
    for topic in topics:
        talk.reply(data(0, topic=topic))
    assert len({topic for topic, *_ in talk.read()}) == 300


def test_answers_are_awaited_only_where_something_was_asked_for(talk):
    pass_seconds(talk, 1)
    talk.asked()
    assert not underway.awaited_answers(talk.core, talk.now_ns)
    underway.note_answer(talk.core, SESSION, talk.now_ns)
    assert talk.core.peers[SESSION].repaired_ns == -1
    miss_one(talk)
    assert not underway.awaited_answers(talk.core, talk.now_ns)
    talk.pass_ms(300)
    assert talk.asked(Kind.NACK)
    assert underway.awaited_answers(talk.core, talk.now_ns) == {SESSION}
