"""A subscriber's core: publishers that restart, close, fall silent or lie; no space; SIGSTOP."""

from datetime import UTC, datetime

import pytest

from p2pmsg.peers.subscriber_stats import subscriber_stats
from p2pmsg.subscriber import session_table
from p2pmsg.wire import FLAG_CLOSING, Kind
from tests.unit.p2pmsg.frames import SESSION, echo, heartbeat, welcome
from tests.unit.p2pmsg.subscriber_talk import MS, Talk, data, head

NEXT = SESSION + 1


def test_sessions_without_end_are_forgotten_and_raise_nothing(monkeypatch):
    monkeypatch.setattr(session_table, "PEERS_MAX", 3)
    talk = Talk()
    for session in range(1, 20):
        talk.hear(welcome(session))
        talk.hear(welcome(max(1, session - 1)))
        talk.hear(welcome(1))
        assert len(talk.core.peers) <= 3
    assert len([peer for peer in talk.core.peers.values() if not peer.gone]) == 1


def test_streams_of_sessions_that_have_ended_make_space_for_others():
    """All 65,536 of former incarnations were kept, and those of the next one refused in silence."""
    talk = Talk(streams_max=4)
    for session in range(SESSION, SESSION + 10):
        talk.join(*[head(0, topic=topic) for topic in "abc"], session=session)
        for topic in "abcd":
            talk.hear(data(0, topic=topic, session=session))
        assert talk.read() == [("a", 0, 1), ("b", 0, 1), ("c", 0, 1), ("d", 0, 1)]
        assert len(talk.core.streams) <= 4
    stats = subscriber_stats(talk.core)
    assert (stats.published, stats.delivered, stats.lost) == (40, 40, 0)
    assert stats.frames_invalid == {}


def test_streams_that_find_no_space_are_named_once_a_minute():
    talk = Talk(streams_max=1).join(head(0))

    def said():
        found = [c.text for c in talk.core.commands if c.what == "warn"]
        talk.core.commands.clear()
        return found

    for topic in "uvw":
        talk.hear(data(0, topic=topic))
    talk.pass_ms(300)
    (text,) = said()
    assert "1 streams (`streams_max`)" in text
    assert "3 of streams and 0 of sessions" in text
    for _ in range(100):
        talk.hear(data(0, topic="u"))
        talk.hear(heartbeat(0))
        talk.pass_ms(300)
    assert said() == []
    talk.hear(data(0, topic="u"))
    for _ in range(200):
        talk.hear(heartbeat(0))
        talk.pass_ms(300)
    assert len(said()) == 1
    assert subscriber_stats(talk.core).frames_invalid == {"streams_max": 104}


def beat(talk, seconds):
    """Let heartbeats come, and return what is said meanwhile."""
    for _ in range(int(seconds * 2)):
        talk.hear(heartbeat(3))
        talk.pass_ms(500)
    said = [c.text for c in talk.core.commands if c.what == "warn"]
    talk.core.commands.clear()
    return said


def test_who_is_heard_and_does_not_answer_at_its_recovery_endpoint_is_named():
    """Frames came for ever, nothing was delivered, and all counters stood at 0."""
    talk = Talk()
    talk.hear(welcome())
    assert beat(talk, 4) == []
    (text,) = beat(talk, 50)
    assert "its recovery endpoint memory://r has not answered for 5 s" in text
    assert talk.core.lines[0].one_way.startswith("publisher 'feed' is heard")
    assert len(beat(talk, 20)) == 1

    talk.hear(echo(talk.probe().probe, head(3)))
    assert beat(talk, 70) == []
    assert not talk.core.lines[0].one_way


def test_who_was_not_asked_for_long_is_not_said_to_be_silent():
    talk = Talk()
    talk.hear(welcome(incarnation=1))
    talk.pass_ms(1000)
    talk.now_ns += 20_000 * MS  # this process was stopped
    assert beat(talk, 1) == []
    talk.hear(echo(talk.probe().probe, head(3), incarnation=1))
    assert beat(talk, 30) == []
    talk.hear(heartbeat(3, incarnation=2))
    assert beat(talk, 1) == []


def test_who_was_silent_and_is_back_is_not_said_to_be_gone():
    talk = Talk(repair_timeout=20.0).join(head(0))
    talk.hear(data(2))
    talk.pass_ms(5300)
    assert talk.core.peers[SESSION].is_silent
    talk.hear(welcome())
    talk.hear(echo(talk.probe().probe, head(3)))
    beat(talk, 40)
    assert talk.read()[0] == ("t", 0, 2, "timeout")


NEVER_JOINED = {
    "latest": ("latest", [("t", 500, 1)]),
    "a sequence": (499, [("t", 499, 500, "publisher_gone"), ("t", 500, 1)]),
    "earliest": ("earliest", [("t", 0, 500, "publisher_gone"), ("t", 500, 1)]),
    "a time": (
        datetime(2026, 1, 1, tzinfo=UTC),
        [("t", 0, 500, "publisher_gone"), ("t", 500, 1)],
    ),
}


def test_who_misses_something_stays_known_to_a_publisher_that_closes():
    talk = Talk(repair_timeout=100).join(head(0))
    talk.hear(welcome(flags=FLAG_CLOSING))
    talk.hear(echo(talk.probe().probe, head(5)))
    came = []
    for _ in range(20):
        talk.hear(heartbeat(5))
        talk.pass_ms(1000)
        came += [body.complete for _, body, _ in talk.asked(Kind.JOINED)]
    assert len(came) >= 4
    assert not any(came)
    talk.reply(data(0, 5))
    talk.pass_ms(1000)
    assert [body.complete for _, body, _ in talk.asked(Kind.JOINED)] == [True]


@pytest.mark.parametrize(("start", "expected"), NEVER_JOINED.values(), ids=NEVER_JOINED)
def test_of_a_session_that_ended_before_it_was_joined_nothing_older_is_missed(start, expected):
    talk = Talk(start=start)
    talk.hear(welcome())
    talk.hear(data(500))
    talk.hear(heartbeat(700, topic="u"))
    talk.hear(welcome(NEXT))
    assert [out for out in talk.read() if out[0] == "t"] == expected


def test_what_came_from_a_publisher_that_stays_away_is_handed_on_though_it_was_never_joined():
    talk = Talk(start="earliest")
    talk.hear(welcome())
    talk.hear(data(500, 2))
    talk.pass_ms(5000)
    assert talk.read() == []
    talk.pass_ms(10_000)
    assert talk.read() == [("t", 0, 500, "publisher_gone"), ("t", 500, 2)]
    assert sum(command.what == "warn" for command in talk.core.commands) == 1

    talk.pass_ms(60_000)
    assert talk.core.table.unjoined == 1  # it is said once
    talk.hear(welcome())  # it comes back on its log
    talk.hear(echo(talk.probe().probe, head(504, start=0), head(3, topic="u", start=0)))
    talk.pass_ms(1)
    assert talk.read() == []
    wanted = {body.topic: body.ranges for _, body, _ in talk.asked(Kind.NACK)}
    assert wanted == {"t": [(502, 504)], "u": [(0, 3)]}


SIZE = 10_000
SPACE = 64 * 1024


def full_of_what_waits(topics, frames_each):
    """A subscriber whose space is taken by frames that wait for the first of their stream."""
    talk = Talk(receive_bytes=SPACE).join(*[head(0, topic=topic) for topic in topics])
    for topic in topics:
        for sequence in range(1, 1 + frames_each):
            if not talk.core.is_full:
                talk.hear(data(sequence, topic=topic, size=SIZE))
    talk.pass_ms(0)
    return talk


def test_where_repairs_alone_can_make_space_they_are_asked_for_and_taken():
    talk = full_of_what_waits("ab", 4)
    assert talk.core.is_full
    assert not talk.core.replies_full
    talk.asked()
    talk.pass_ms(30)
    nacked = {body.topic: body.ranges for _, body, _ in talk.asked(Kind.NACK)}
    assert nacked == {"a": [(0, 1)], "b": [(0, 1)]}

    talk.reply(data(0, topic="a", size=SIZE))
    assert talk.core.replies_full
    assert talk.read() == [("a", sequence, 1) for sequence in range(5)]
    assert not talk.core.is_full


def test_gaps_do_not_age_while_the_application_does_not_read():
    talk = Talk(receive_bytes=SPACE, repair_timeout=0.1).join(head(0))
    for sequence in range(7):
        talk.hear(data(sequence, size=SIZE))
    talk.hear(heartbeat(9))
    talk.asked()
    talk.pass_ms(2000)
    assert talk.asked(Kind.NACK) == []
    assert talk.read()[-1] == ("t", 6, 1)
    talk.pass_ms(50)
    assert talk.asked(Kind.NACK)[0][1].ranges == [(7, 9)]


def talk_with_a_gap(**options):
    talk = Talk(start="earliest", repair_timeout=2.0, **options)
    talk.join(head(0))
    talk.hear(data(0))
    talk.hear(data(2))
    talk.pass_ms(100)
    talk.read()
    talk.asked()
    return talk


def stop_for_ms(talk, ms):
    talk.now_ns += ms * MS
    talk.core.handle_timer(now_ns=talk.now_ns)


def test_a_stop_does_not_count_as_waiting_for_a_repair():
    talk = talk_with_a_gap()
    stop_for_ms(talk, 5000)

    assert talk.read() == []
    assert talk.asked(Kind.NACK) == []  # what answers it may lie unread
    talk.reply(data(1))
    assert talk.read() == [("t", 1, 1), ("t", 2, 1)]
