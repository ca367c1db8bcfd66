"""A subscriber that takes smaller frames than its publisher may send."""

import pytest

from p2pmsg import control, wire
from p2pmsg.wire import Kind
from tests.unit.p2pmsg import frames
from tests.unit.p2pmsg.frames import SESSION
from tests.unit.p2pmsg.subscriber_talk import Talk, data, head

LIMIT = 65_536


@pytest.fixture
def talk():
    return Talk(frame_bytes_max=LIMIT)


def welcome(message_bytes_max):
    body = control.Welcome("feed", "memory://r", 1000.0, message_bytes_max=message_bytes_max)
    return wire.control_frame(Kind.WELCOME, SESSION, body)


def warnings(talk):
    found = [command.text for command in talk.core.commands if command.what == "warn"]
    talk.core.commands.clear()
    return found


@pytest.mark.parametrize("most", [LIMIT, 16 * 2**20])
def test_a_publisher_of_larger_messages_is_named_with_both_limits(talk, most):
    talk.hear(welcome(most))
    (text,) = warnings(talk)
    assert "'feed'" in text
    assert f"{most:,} bytes (its message_bytes_max)" in text
    assert "frame_bytes_max (65,536 bytes, SubscriberConfig)" in text
    talk.hear(welcome(most))  # over the connection that was made again
    assert warnings(talk) == []


@pytest.mark.parametrize("most", [0, LIMIT // 2])
def test_one_of_smaller_messages_and_one_that_does_not_say_are_not(talk, most):
    talk.hear(welcome(most))
    assert warnings(talk) == []


def test_each_nack_says_how_large_a_frame_may_be(talk):
    talk.join(head(0))
    talk.hear(data(2))
    talk.pass_ms(50)
    assert {nack.frame_bytes_max for _, nack, _ in talk.asked(Kind.NACK)} == {LIMIT}


def test_what_is_too_large_is_lost_with_its_reason_and_the_rest_is_delivered(talk):
    talk.join(head(0))
    talk.hear(data(3))
    talk.pass_ms(50)
    talk.reply(data(0))
    talk.reply(frames.refused((1, 2), reason="too_large"))
    talk.reply(data(2))
    assert talk.read() == [("t", 0, 1), ("t", 1, 2, "too_large"), ("t", 2, 1), ("t", 3, 1)]
    (text,) = warnings(talk)
    assert "message 1 of 't' is lost" in text
    assert "frame_bytes_max (65,536 bytes, SubscriberConfig)" in text


def test_a_connection_that_was_ended_here_is_reported_once_a_minute(talk):
    talk.join(head(0))
    for _ in range(3):
        talk.core.connection_ended(0, talk.now_ns)
        talk.now_ns += 25 * 10**9
    assert len(warnings(talk)) == 1
    talk.core.connection_ended(0, talk.now_ns)
    assert len(warnings(talk)) == 1
