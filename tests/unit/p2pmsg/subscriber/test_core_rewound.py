"""A subscriber's core whose publisher has gone back: its log came back shorter."""

import pytest

from p2pmsg import control
from p2pmsg.wire import Kind, control_frame
from tests.unit.p2pmsg.frames import echo, heartbeat, welcome
from tests.unit.p2pmsg.subscriber_talk import Talk, data, head


def began(at, following, *, topic="t", start=None):
    return control.Head(topic, 0, following, following if start is None else start, at)


def received(count):
    talk = Talk(start="earliest").join(head(0))
    talk.hear(data(0, count))
    assert talk.read() == [("t", 0, count)]
    return talk


OVERTAKING = {"of a known stream": (3, 4, "t", 5), "of one opened since": (0, 2, "u", 3)}


@pytest.mark.parametrize(
    ("sequence", "count", "topic", "following"), OVERTAKING.values(), ids=OVERTAKING
)
def test_an_echo_that_data_has_overtaken_is_no_publisher_that_went_back(
    sequence, count, topic, following
):
    talk = received(3)
    talk.hear(welcome())
    number = talk.probe().probe
    talk.hear(data(sequence, count, topic=topic))
    talk.hear(echo(number, began(0, following)))
    assert talk.read() == [(topic, sequence, count)]
    assert talk.core.stream_table.rewound == 0


def lived(talk, incarnation, *heads):
    """Let the publisher say hello, and answer the probe, in one of its incarnations."""
    talk.hear(welcome(incarnation=incarnation))
    talk.hear(echo(talk.probe().probe, *heads, incarnation=incarnation))


def followed(count):
    """Return a subscriber that had `count` messages of a first incarnation, which said so."""
    talk = Talk(start="earliest")
    lived(talk, 1, began(0, 0))
    talk.hear(data(0, count))
    talk.hear(heartbeat(count, incarnation=1))
    assert talk.read() == [("t", 0, count)]
    return talk


def test_nothing_of_another_incarnation_is_taken_before_its_echo():
    talk = followed(10)
    talk.hear(welcome(incarnation=2))
    number = talk.probe().probe
    talk.hear(data(30))
    talk.hear(heartbeat(31, incarnation=2))
    talk.reply(data(10, 20))
    assert talk.read() == []
    talk.hear(echo(number, began(4, 31), incarnation=2))
    talk.hear(data(4, 27))
    assert talk.read() == [("t", 4, 10, "rewound"), ("t", 4, 27)]


@pytest.mark.parametrize(("start", "rewound"), [(10, 0), (4, 1)])
def test_of_a_topic_that_was_denied_a_heartbeat_may_come_before_the_answer(start, rewound):
    """What it says is of the new incarnation: taken for the former one's, that looked gone back
    from."""
    talk = followed(10)
    talk.hear(welcome(incarnation=2))
    nothing = control.Heads("feed", [], incarnation=2, denied=["t"])
    talk.hear(control_frame(Kind.ECHO, talk.probe().probe, nothing))
    talk.hear(welcome(incarnation=2))
    talk.hear(heartbeat(14, incarnation=2))
    talk.hear(echo(talk.probe().probe, began(start, 14), incarnation=2))
    assert talk.core.stream_table.rewound == rewound
