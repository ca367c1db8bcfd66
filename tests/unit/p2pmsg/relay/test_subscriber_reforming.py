"""Relays that restart behind one another: what may yet be had is not given up meanwhile."""

from p2pmsg import control, wire
from p2pmsg.wire import Kind
from tests.unit.p2pmsg.frames import SESSION, heartbeat
from tests.unit.p2pmsg.relay.test_subscriber_relays import OTHER, RELAY, Relayed, relay_welcome
from tests.unit.p2pmsg.subscriber_talk import data, head


def listed(relay, *served, settled):
    entries = [control.SessionEntry(session, "feed", 1) for session in served]
    body = control.Sessions([relay], entries, 0, settled)
    return wire.control_frame(Kind.SESSIONS, relay, body)


def pulse(relay):
    return wire.control_frame(Kind.HEARTBEAT, relay, control.Heartbeat(0), sequence=7)


def with_a_gap():
    talk = Relayed(start="earliest").meet(heads=[head(0)])
    talk.hear(data(0))
    talk.hear(data(3))
    assert talk.read() == [("t", 0, 1)]
    return talk


def restarted(talk):
    """Let another life of the relay be at its place, which has nothing yet."""
    talk.hear(relay_welcome(OTHER))
    talk.requests()


def answer(talk, seconds, *served, settled):
    """Let the relay answer whenever it is asked what it has, for so long."""
    for _ in range(seconds * 2):
        talk.pass_ms(500)
        talk.hear(pulse(OTHER))
        if any(kind == "SESSIONS_REQUEST" for kind, _, _ in talk.requests()):
            talk.reply(listed(OTHER, *served, settled=settled), session=OTHER)


def test_a_relay_that_is_away_for_longer_than_a_gap_is_waited_for_may_come_back():
    talk = with_a_gap()
    talk.pass_ms(15_000)
    assert talk.read() == []
    talk.hear(relay_welcome())
    talk.pass_ms(100)
    talk.reply(data(1, 2), session=RELAY)
    assert talk.read() == [("t", 1, 2), ("t", 3, 1)]


def test_a_relay_that_stays_away_is_given_up():
    talk = with_a_gap()
    talk.pass_ms(60_000)
    assert talk.read() == [("t", 1, 3, "publisher_gone"), ("t", 3, 1)]


def test_while_a_relay_says_that_it_does_not_know_all_yet_it_is_asked_on():
    talk = with_a_gap()
    restarted(talk)
    answer(talk, 20, settled=False)
    assert talk.read() == []
    assert not talk.core.peers[SESSION].gone
    answer(talk, 2, SESSION, settled=True)
    assert not talk.core.peers[SESSION].gone


def test_a_relay_that_knows_all_and_has_not_the_session_ends_it():
    talk = with_a_gap()
    restarted(talk)
    answer(talk, 20, settled=True)
    assert talk.read() == [("t", 1, 3, "publisher_gone"), ("t", 3, 1)]
    assert talk.core.peers[SESSION].gone


def catching_up(step):
    """Let the relay have the session again and be at `step` more messages each half second."""
    talk = Relayed(start="earliest").meet(heads=[head(1000, start=0)])
    for turn in range(50):
        talk.pass_ms(500)
        talk.hear(pulse(RELAY))
        talk.hear(heartbeat(turn * step, earliest=0))
        if any(kind == "SESSIONS_REQUEST" for kind, _, _ in talk.requests()):
            talk.reply(listed(RELAY, SESSION, settled=True), session=RELAY)
    return talk.read()


def test_while_a_relay_catches_up_what_it_does_not_have_yet_is_waited_for():
    assert catching_up(10) == []


def test_a_relay_that_gets_no_further_is_not_waited_for():
    assert catching_up(0) == [("t", 0, 1000, "timeout")]
