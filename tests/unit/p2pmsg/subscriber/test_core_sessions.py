"""A subscriber's core: publishers that restart, close, fall silent or lie; no space; SIGSTOP."""

from datetime import UTC, datetime

import pytest

from p2pmsg import control
from p2pmsg.subscriber import space
from p2pmsg.wire import FLAG_CLOSING, Frame, Kind, control_frame
from tests.unit.p2pmsg.frames import SESSION, echo, heartbeat, welcome
from tests.unit.p2pmsg.subscriber_talk import MS, Talk, data, head

NEXT = SESSION + 1


def test_a_new_session_ends_the_former_one_and_what_it_owes_is_lost():
    talk = Talk().join(head(0))
    talk.hear(data(0))
    talk.hear(data(2))
    talk.hear(welcome(NEXT))

    assert talk.read() == [("t", 0, 1), ("t", 1, 2, "publisher_gone"), ("t", 2, 1)]
    assert ("disconnect", -1, SESSION) in talk.commanded()
    (stream,) = talk.core.streams
    assert stream.ledger(0).outstanding == 0


def test_effects_are_taken_out_connecting_before_sending():
    talk = Talk()
    talk.hear(welcome(SESSION))

    connect, subscribe, probe = talk.core.effects()
    assert (connect.what, connect.session, subscribe.what) == ("connect", SESSION, "subscribe")
    assert (probe.session, Frame(probe.frame).kind) == (SESSION, Kind.PROBE)
    assert list(talk.core.effects()) == []


@pytest.mark.parametrize("start", ["latest", "earliest"])
def test_who_was_there_before_a_session_began_gets_all_of_it(start):
    talk = Talk(start=start).join(head(0))
    talk.hear(welcome(NEXT))
    body = talk.probe()
    assert (body.start, body.position) == ("sequence", 0)
    talk.hear(echo(body.probe, head(3, earliest=1, start=0)))
    assert talk.read() == [("t", 0, 1, "evicted")]
    talk.pass_ms(1)
    assert talk.asked(Kind.NACK)[0][1].ranges == [(1, 3)]


@pytest.mark.parametrize("start", ["latest", "earliest"])
def test_a_topic_opened_while_the_connection_was_away_is_wanted_from_its_beginning(start):
    talk = Talk(start=start).join(head(0))
    talk.hear(welcome())
    talk.hear(echo(talk.probe().probe, head(0), head(6, topic="u", earliest=4, start=4)))
    assert talk.read() == [("u", 0, 4, "evicted")]


def test_a_topic_that_is_new_is_wanted_from_its_beginning():
    talk = Talk().join()
    talk.hear(data(1, topic="u"))
    talk.pass_ms(0)
    assert talk.asked(Kind.NACK)[0][1].ranges == [(0, 1)]


def test_a_silent_publisher_is_connected_to_again_before_what_it_kept_is_given_up():
    """It restarted on its log, published nothing since, and its welcome was lost."""
    talk = Talk(start="earliest", repair_timeout=1.0)
    talk.hear(welcome())
    talk.hear(data(7))
    talk.pass_ms(5100)
    assert "reconnect" in [what for what, *_ in talk.commanded()]
    talk.pass_ms(300)
    talk.hear(welcome())
    talk.hear(echo(talk.probe().probe, head(8, earliest=0, start=0)))
    assert talk.read() == []
    talk.pass_ms(1)
    assert talk.asked(Kind.NACK)[-1][1].ranges == [(0, 7)]


def test_a_session_that_ended_does_not_come_back():
    talk = Talk().join(head(0))
    talk.join(head(0), session=NEXT)
    talk.hear(welcome(SESSION))
    assert talk.core.lines[0].session == NEXT
    assert not talk.core.peers[NEXT].gone
    assert talk.asked(Kind.PROBE) == []
    talk.hear(data(0, session=NEXT))
    assert talk.read() == [("t", 0, 1)]


def test_sessions_without_end_are_forgotten_and_raise_nothing(monkeypatch):
    monkeypatch.setattr(space, "PEERS_MAX", 3)
    talk = Talk()
    for session in range(1, 20):
        talk.hear(welcome(session))
        talk.hear(welcome(max(1, session - 1)))
        talk.hear(welcome(1))
        assert len(talk.core.peers) <= 3
    assert len([peer for peer in talk.core.peers.values() if not peer.gone]) == 1


def test_streams_of_sessions_that_have_ended_make_space_for_others():
    """All 65,536 of former lives were kept, and those of the next one refused in silence."""
    talk = Talk(streams_max=4)
    for session in range(SESSION, SESSION + 10):
        talk.join(*[head(0, topic=topic) for topic in "abc"], session=session)
        for topic in "abcd":
            talk.hear(data(0, topic=topic, session=session))
        assert talk.read() == [("a", 0, 1), ("b", 0, 1), ("c", 0, 1), ("d", 0, 1)]
        assert len(talk.core.streams) <= 4
    stats = talk.core.stats()
    assert (stats.published, stats.delivered, stats.lost) == (40, 40, 0)
    assert stats.frames_invalid == {}


def test_a_session_that_is_forgotten_otherwise_leaves_nothing_to_make_space_with():
    talk = Talk(streams_max=2).join(head(0))
    talk.join(head(0), session=NEXT)
    talk.core.joiner.forget_peer(SESSION)
    talk.hear(data(0, session=NEXT))
    talk.hear(data(0, topic="u", session=NEXT))
    talk.hear(data(0, topic="v", session=NEXT))
    assert talk.core.stats().frames_invalid == {"streams_max": 1}
    assert not talk.core.joiner._space._ended


def test_what_was_lost_of_streams_that_made_space_stays_counted():
    talk = Talk(streams_max=2)
    for session in (SESSION, NEXT, NEXT + 1):
        talk.join(head(0), session=session)
        talk.hear(data(1, session=session))
    talk.hear(data(0, topic="u", session=NEXT + 1))
    stats = talk.core.stats()
    assert [stream.session for stream in stats.streams] == [NEXT + 1, NEXT + 1]
    assert (stats.published, stats.lost, stats.outstanding) == (7, 2, 3)


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
    assert talk.core.stats().frames_invalid == {"streams_max": 104}


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
    assert talk.core.lines[0].deaf.startswith("publisher 'feed' is heard")
    assert len(beat(talk, 20)) == 1

    talk.hear(echo(talk.probe().probe, head(3)))
    assert beat(talk, 70) == []
    assert not talk.core.lines[0].deaf


def test_who_answers_or_is_silent_is_not_said_to_be_out_of_reach():
    denied = Talk()
    denied.hear(welcome())
    denied.reply(control_frame(Kind.DENIED, SESSION, control.Denied("subscribe", ["t"])))
    assert beat(denied, 10) == []

    silent = Talk()
    silent.hear(welcome())
    silent.pass_ms(4_000)
    assert beat(silent, 0) == []
    silent.pass_ms(20_000)
    assert not silent.core.lines[0].deaf


def test_the_prefix_of_a_probe_is_given_up_with_its_session():
    talk = Talk()
    talk.hear(welcome())
    (_, subscribed) = talk.core.commands
    talk.hear(welcome(NEXT))
    given_up = [c.prefix for c in talk.core.commands if c.what == "unsubscribe"]
    assert given_up == [subscribed.prefix]


NEVER_JOINED = {
    "latest": ("latest", [("t", 500, 1)]),
    "a sequence": (499, [("t", 499, 500, "publisher_gone"), ("t", 500, 1)]),
    "earliest": ("earliest", [("t", 0, 500, "publisher_gone"), ("t", 500, 1)]),
    "a time": (
        datetime(2026, 1, 1, tzinfo=UTC),
        [("t", 0, 500, "publisher_gone"), ("t", 500, 1)],
    ),
}


@pytest.mark.parametrize(("start", "expected"), NEVER_JOINED.values(), ids=NEVER_JOINED)
def test_of_a_session_that_ended_before_it_was_joined_nothing_older_is_missed(start, expected):
    talk = Talk(start=start)
    talk.hear(welcome())
    talk.hear(data(500))
    talk.hear(heartbeat(700, topic="u"))
    talk.hear(welcome(NEXT))
    assert [out for out in talk.read() if out[0] == "t"] == expected


@pytest.mark.parametrize("ends", ["another session", "silence"])
def test_where_a_heartbeat_said_what_is_kept_no_more_than_that_is_reported(ends):
    talk = Talk(start="earliest")
    talk.hear(welcome())
    talk.hear(heartbeat(700, earliest=300))
    talk.hear(heartbeat(710, earliest=310))
    if ends == "silence":
        talk.pass_ms(60_000)
    else:
        talk.hear(welcome(NEXT))
    assert talk.read() == [("t", 300, 710, "publisher_gone")]
    assert talk.core.joiner.sessions_unjoined == 1


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
    assert talk.core.joiner.sessions_unjoined == 1  # it is said once
    talk.hear(welcome())  # it comes back on its log
    talk.hear(echo(talk.probe().probe, head(504, start=0), head(3, topic="u", start=0)))
    talk.pass_ms(1)
    assert talk.read() == []
    wanted = {body.topic: body.ranges for _, body, _ in talk.asked(Kind.NACK)}
    assert wanted == {"t": [(502, 504)], "u": [(0, 3)]}


def test_what_had_no_space_before_the_echo_is_missed_all_the_same():
    talk = Talk(start="latest")
    talk.hear(welcome())
    talk.hear(data(500), shed=True)
    talk.hear(data(501))
    talk.hear(welcome(NEXT))
    assert talk.read() == [("t", 500, 501, "publisher_gone"), ("t", 501, 1)]


def test_the_pages_of_an_echo_that_came_count_though_the_last_one_did_not():
    talk = Talk(start="earliest")
    talk.hear(welcome())
    number = talk.probe().probe
    first = control.Heads("feed", [head(9, earliest=4, start=4)], 0, 0, 1)
    talk.hear(control_frame(Kind.ECHO, number, first))
    talk.hear(data(9))
    talk.hear(data(7, topic="u"))
    talk.hear(welcome(NEXT))
    assert sorted(talk.read()) == [
        ("t", 4, 9, "publisher_gone"),
        ("t", 9, 1),
        ("u", 0, 7, "publisher_gone"),
        ("u", 7, 1),
    ]


def test_an_echo_that_waited_for_other_routes_counts():
    talk = Talk(start="earliest", lines=2)
    talk.hear(welcome())
    talk.hear(echo(talk.probe().probe, head(9, earliest=4, start=4)))
    assert not talk.core.peers[SESSION].joined  # the other line may lead to a relay that keeps more
    talk.hear(welcome(NEXT))
    assert talk.read() == [("t", 4, 9, "publisher_gone")]


def test_a_closing_publisher_learns_when_everything_is_there_and_not_before():
    talk = Talk().join(head(2))
    talk.asked()
    talk.hear(welcome(flags=FLAG_CLOSING))
    number = talk.probe().probe
    talk.pass_ms(60)
    assert talk.asked(Kind.JOINED) == []  # there may be more than is known

    talk.hear(echo(number, head(4)))
    assert [body.complete for _, body, _ in talk.asked(Kind.JOINED)] == [False]
    talk.reply(data(2, 2))
    talk.hear(welcome(flags=FLAG_CLOSING))
    talk.pass_ms(60)
    assert [body.complete for _, body, _ in talk.asked(Kind.JOINED)] == [True]


def test_a_closed_publisher_that_has_gone_stays_complete():
    """It answers nothing any more: neither its silence nor a line made again takes that back."""
    talk = Talk(publisher_timeout=1.0).join(head(2))
    talk.hear(welcome(flags=FLAG_CLOSING))
    talk.hear(echo(talk.probe().probe, head(2)))
    assert [body.complete for _, body, _ in talk.asked(Kind.JOINED)] == [True]
    for _ in range(50):
        talk.pass_ms(100)
        assert talk.core.peers[SESSION].handshake.reported_complete
    assert ("reconnect", 0, 0) in talk.commanded()
    asked = talk.asked()
    assert {kind for kind, _, _ in asked} <= {"JOINED"}
    assert all(body.complete for _, body, _ in asked)
    talk.pass_ms(5000)
    assert talk.asked() == []  # nothing is queued for its next life

    talk.hear(welcome())  # it is there again, on its log
    talk.hear(echo(talk.probe().probe, head(2)))
    assert not talk.core.peers[SESSION].handshake.reported_complete
    assert [body.complete for _, body, _ in talk.asked(Kind.JOINED)] == [False]


def test_a_publisher_that_closes_with_gaps_left_is_probed_when_it_is_silent():
    talk = Talk(publisher_timeout=1.0).join(head(2))
    talk.hear(welcome(flags=FLAG_CLOSING))
    talk.hear(echo(talk.probe().probe, head(4)))
    talk.asked()
    talk.pass_ms(900)
    assert talk.asked(Kind.PROBE)


def test_a_keep_alive_is_sent_now_and_then():
    talk = Talk(publisher_timeout=1.0).join(head(0))
    talk.asked()
    for _ in range(40):
        talk.pass_ms(100)
        talk.hear(heartbeat(0))
    assert 3 <= len(talk.asked(Kind.JOINED)) <= 4


def test_a_silent_line_is_probed_and_then_connected_again():
    talk = Talk(publisher_timeout=1.0).join(head(0))
    talk.asked()
    talk.pass_ms(900)
    assert len({body.probe for _, body, _ in talk.asked(Kind.PROBE)}) == 1
    assert ("reconnect", 0, 0) not in talk.commanded()
    talk.pass_ms(400)
    assert ("reconnect", 0, 0) in talk.commanded()


@pytest.mark.parametrize("publisher_timeout", [0.2, 0.3, 1.0])
def test_a_line_that_answers_is_left_alone(publisher_timeout):
    talk = Talk(publisher_timeout=publisher_timeout).join()
    for _ in range(500):
        talk.pass_ms(10)
        for _, body, _ in talk.asked(Kind.PROBE)[-1:]:
            talk.hear(echo(body.probe))
    assert "reconnect" not in [what for what, _, _ in talk.commanded()]


def test_two_lines_to_one_session_are_one_peer():
    talk = Talk(lines=2).join(head(0))
    talk.join(head(0), line=1)
    for line in (0, 1):
        talk.hear(data(0), line=line)
    assert talk.read() == [("t", 0, 1)]
    talk.hear(welcome(NEXT), line=0)
    assert not talk.core.peers[SESSION].gone
    talk.hear(welcome(NEXT), line=1)
    assert talk.core.peers[SESSION].gone


def test_a_line_whose_new_welcome_was_lost_is_connected_again():
    talk = Talk(lines=2)
    talk.hear(welcome(), line=1)
    talk.hear(data(0), line=1)  # it never joined that session, of which something waits
    talk.join(head(0), session=NEXT, line=0)
    for _ in range(14):
        talk.hear(heartbeat(0, session=NEXT), line=1)
        talk.pass_ms(100)
    assert ("reconnect", 1, 0) in talk.commanded()
    talk.hear(welcome(NEXT), line=1)
    assert talk.core.peers[SESSION].gone
    assert talk.read() == [("t", 0, 1)]


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


def test_a_repair_that_could_not_be_handed_on_finds_no_space():
    talk = full_of_what_waits("ab", 4)
    talk.hear(heartbeat(100, topic="a"))
    held = talk.core.bytes_held
    for sequence in range(20, 30):
        talk.reply(data(sequence, topic="a", size=SIZE))
    assert talk.core.bytes_held == held
    assert talk.core.streams[0].ledger(0).balanced


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


def test_what_is_shed_counts_as_missing():
    talk = Talk().join(head(0))
    talk.hear(data(0, 5), shed=True)
    assert talk.read() == []
    assert talk.core.frames_shed == 1
    assert talk.core.streams[0].ledger(0).outstanding == 5


def test_frames_before_the_echo_leave_space_to_go_on():
    talk = Talk(receive_bytes=SPACE)
    talk.hear(welcome())
    for sequence in range(20):
        talk.hear(data(sequence, size=SIZE))
    assert not talk.core.is_full
    talk.hear(echo(talk.probe().probe, head(20, start=0)))
    talk.pass_ms(0)
    assert sum(count for _, _, count in talk.read()) >= 3
    assert talk.asked(Kind.NACK)[0][1].ranges[-1][1] == 20


def test_leaving_informs_every_publisher_that_is_there():
    talk = Talk(lines=2).join(head(0))
    talk.join(head(0), session=NEXT, line=1)
    talk.asked()
    talk.core.leave()
    assert [(kind, session) for kind, _, session in talk.asked()] == [
        ("LEAVE", SESSION),
        ("LEAVE", NEXT),
    ]


def test_time_that_passes_without_events_costs_few_looks():
    talk = Talk().join(head(0))
    looks = 0
    while talk.now_ns < 1000 * MS:
        talk.now_ns = talk.core.next_deadline_ns()
        talk.core.handle_timer(now_ns=talk.now_ns)
        looks += 1
    assert looks <= 25


def test_a_welcome_that_cannot_be_read_joins_nothing():
    talk = Talk()
    broken = bytearray(welcome())
    broken[-1] ^= 0xFF
    talk.hear(bytes(broken))
    assert sum(talk.core.invalid.values()) == 1
    assert talk.core.peers == {}


def test_a_session_that_is_forgotten_takes_its_streams_along():
    talk = Talk().join(head(5))
    talk.hear(data(5))
    assert talk.core.last_stream is not None
    talk.core.joiner.forget_peer(SESSION)
    assert talk.core.last_stream is None
    assert talk.core.stream_table.count == 0


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


def test_after_a_stop_the_rest_of_the_time_runs():
    talk = talk_with_a_gap()
    stop_for_ms(talk, 5000)
    talk.pass_ms(1500)
    assert talk.read() == []
    talk.pass_ms(1000)

    assert talk.read() == [("t", 1, 2, "timeout"), ("t", 2, 1)]


def test_a_publisher_is_not_silent_because_nobody_listened():
    talk = talk_with_a_gap(publisher_timeout=1.0)
    stop_for_ms(talk, 5000)
    talk.pass_ms(300)

    assert ("reconnect", 0, 0) not in talk.commanded()
    talk.hear(heartbeat(3))
    assert not talk.core.peers[SESSION].presumed_gone


def test_silence_after_a_stop_is_noticed():
    talk = talk_with_a_gap(publisher_timeout=1.0)
    stop_for_ms(talk, 5000)
    talk.pass_ms(2000)

    assert "reconnect" in [what for what, _, _ in talk.commanded()]


def test_a_shell_that_is_late_again_and_again_gives_up_all_the_same():
    talk = talk_with_a_gap()
    for _ in range(40):
        stop_for_ms(talk, 900)

    assert talk.read() == [("t", 1, 2, "timeout"), ("t", 2, 1)]
