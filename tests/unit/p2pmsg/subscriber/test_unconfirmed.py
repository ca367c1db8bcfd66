"""What datagrams told of a publisher that was gone before it confirmed it: counted, and said."""

import pytest

from p2pmsg import wire
from p2pmsg.control import Head, Heads, Heartbeat, Welcome
from p2pmsg.wire import Kind
from tests.unit.p2pmsg import frames
from tests.unit.p2pmsg.subscriber.test_group import MS, SESSION, Member

HISTORY = 65_536
"""`history_messages`, as it is by default."""


def data(sequence, count=1, topic="t", session=SESSION):
    return frames.data([0] * count, topic=topic, session=session, sequence=sequence)


def beat(topic, following, session=SESSION):
    return wire.control_frame(
        Kind.HEARTBEAT, session, Heartbeat(0), sequence=following, topic=topic.encode()
    )


def fall_silent(member):
    """Let so much time pass that the publisher is given up."""
    for _ in range(60):
        member.now_ns += 250 * MS
        member.core.handle_timer(now_ns=member.now_ns)
        member.core.requests.clear()
    return member.core.member.confirmation.unconfirmed, [
        command.text for command in member.core.commands if command.what == "warn"
    ]


def receiver(member, topic):
    return member.core.peers[SESSION].streams[topic].receiver


HINTS = {"data": data(100_000, 5), "a heartbeat": beat("t", 100_005)}


@pytest.mark.parametrize("hint", HINTS.values(), ids=HINTS)
def test_what_is_too_far_ahead_and_never_confirmed_is_counted_and_said_once(hint):
    member = Member()
    member.give(data(0, 3), hint)
    unconfirmed, (text,) = fall_silent(member)
    assert unconfirmed == 100_002
    assert "[3, 100005) of 't'" in text
    assert "'p'" in text
    assert receiver(member, "t").lost == 0
    assert fall_silent(member) == (100_002, [text])


def test_what_is_confirmed_is_not_counted():
    member = Member()
    member.give(data(0, 3), data(100_000, 5))
    (request,) = [
        frame for frame in map(wire.Frame, [made for _, made in member.core.requests])
        if frame.kind == Kind.HEADS_REQUEST
    ]  # fmt: skip
    heads = Heads("p", [Head("t", 0, 100_005)])
    answer = wire.control_frame(Kind.HEADS, SESSION, heads, sequence=request.sequence)
    member.core.receive_reply(SESSION, answer, now_ns=member.now_ns)
    unconfirmed, warnings = fall_silent(member)
    assert (unconfirmed, warnings) == (0, [])
    assert receiver(member, "t").lost == 100_002


def test_a_stream_that_nobody_confirmed_is_handed_on_as_far_as_it_came_without_gaps():
    member = Member(2**24)
    for sequence in range(0, 4 * HISTORY, HISTORY // 2):
        member.give(data(sequence, HISTORY // 2, "new"))
    assert fall_silent(member) == (0, [])
    assert (receiver(member, "new").handed, receiver(member, "new").lost) == (4 * HISTORY, 0)


def test_gaps_of_a_stream_that_nobody_confirmed_are_lost_up_to_the_bound_and_then_counted():
    member = Member()
    for sequence in (0, HISTORY, 2 * HISTORY, 3 * HISTORY):
        member.give(data(sequence, 1, "new"))
    fall_silent(member)
    unconfirmed, (text,) = fall_silent(member)
    got = receiver(member, "new")
    assert (got.handed, got.lost) == (2, HISTORY - 1)
    assert f"[{HISTORY + 1}, {3 * HISTORY + 1}) of 'new'" in text
    assert unconfirmed == 2 * HISTORY


def test_a_heartbeat_of_a_stream_that_nobody_confirmed_counts():
    member = Member()
    member.give(data(0, 2, "new"), beat("new", 9_000_000))
    unconfirmed, (text,) = fall_silent(member)
    assert unconfirmed == 9_000_000 - 2
    assert "[2, 9000000) of 'new'" in text


def announced(member, session, *made):
    member.give(wire.control_frame(Kind.WELCOME, session, Welcome("q", "tcp://h:2", 1.0, 1)), *made)


def test_a_session_that_never_answered_is_counted_and_said_at_most_once_a_minute():
    member = Member()
    for session in (501, 502):
        announced(member, session, data(7, 3, "u", session))
    announced(member, 503)
    unconfirmed, (text,) = fall_silent(member)
    assert unconfirmed == 6
    assert "[7, 10) of 'u'" in text
    assert member.core.joiner.sessions_unjoined == 2
    assert {501, 502, 503}.isdisjoint(member.core.peers)
