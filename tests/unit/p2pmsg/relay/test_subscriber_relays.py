"""A subscriber with lines to relays, and with several routes to one session."""

import pytest

from p2pmsg import control, wire
from p2pmsg.subscriber import session_table
from p2pmsg.wire import Frame, Kind
from tests.unit.p2pmsg.frames import SESSION, echo, heartbeat, refused, welcome
from tests.unit.p2pmsg.subscriber_talk import Talk, data, head

RELAY, OTHER = 0xAA, 0xBB


def relay_welcome(relay=RELAY, *, recovery="memory://relay"):
    return welcome(relay, name="relay", recovery=recovery, flags=wire.FLAG_RELAY)


def sessions(*entries, relay=RELAY, path=None, page=0, following=0, settled=True, carries=()):
    listed = [control.SessionEntry(session, "feed", hops) for session, hops in entries]
    body = control.Sessions(
        [relay] if path is None else path, listed, following, settled, [*carries]
    )
    return wire.control_frame(Kind.SESSIONS, relay, body, sequence=page)


class Relayed(Talk):
    """As `Talk`, with relays at some of the lines."""

    def requests(self):
        """Take out the requests: (kind, whose, body)."""
        return [(kind, key, body) for kind, body, key in self.asked()]

    def nacks(self):
        return [(key, body.ranges) for kind, key, body in self.requests() if kind == "NACK"]

    def meet(self, relay=RELAY, *, line=0, served=((SESSION, 1),), heads=(), **options):
        """Be welcomed by a relay, take its sessions, and echo their probes with these heads."""
        self.hear(relay_welcome(relay), line=line)
        self.reply(sessions(*served, relay=relay, **options), session=relay)
        for kind, key, body in self.requests():
            if kind == "PROBE" and key == relay:
                self.hear(echo(body.probe, *heads), line=line)
        return self

    def two(self, **options):
        """A publisher at line 0 and a relay at line 1 that has its session."""
        self.__init__(lines=2, **options)
        self.join(head(0))
        self.meet(line=1, heads=[head(0)])
        self.requests()
        return self


def test_a_relay_is_asked_for_its_sessions_and_each_is_probed():
    talk = Relayed()
    talk.hear(relay_welcome())
    assert talk.requests() == [("SESSIONS_REQUEST", RELAY, None)]
    talk.reply(sessions((SESSION, 1), (7, 2)), session=RELAY)
    assert [(kind, key) for kind, key, _ in talk.requests()] == [("PROBE", RELAY)] * 2
    assert ("connect", 0, RELAY) in talk.commanded()
    assert set(talk.core.peers) == {SESSION, 7}


def test_pages_are_asked_for_at_once():
    talk = Relayed()
    talk.hear(relay_welcome())
    talk.requests()
    talk.reply(sessions((1, 1), following=1), session=RELAY)
    _, raw = next((key, raw) for key, raw in talk.core.requests if Frame(raw).kind == 64)
    assert Frame(raw).sequence == 1
    talk.reply(sessions((2, 1), page=1), session=RELAY)
    assert set(talk.core.peers) == {1, 2}


def test_a_page_with_more_sessions_than_there_may_be_renews_those_that_are_known(monkeypatch):
    monkeypatch.setattr(session_table, "PEERS_MAX", 2)
    talk = Relayed().meet(served=((1, 1), (2, 1)))
    for _ in range(20):
        talk.pass_ms(500)
        talk.hear(pulse(RELAY))
        if any(kind == "SESSIONS_REQUEST" for kind, _, _ in talk.requests()):
            talk.reply(sessions((3, 1), (2, 1), (1, 1)), session=RELAY)
    assert [peer for peer in talk.core.peers.values() if not peer.relayed] == []
    assert (set(talk.core.peers), talk.core.invalid["peers_max"] > 0) == ({1, 2}, True)


def test_unknown_sessions_make_it_ask_again_but_not_all_the_time():
    talk = Relayed().meet(heads=[head(0)])
    talk.pass_ms(200)
    talk.requests()
    for _ in range(5):
        talk.hear(data(0, session=99))
        talk.hear(heartbeat(4, session=98))
    talk.pass_ms(50)
    asked = [kind for kind, _, _ in talk.requests() if kind == "SESSIONS_REQUEST"]
    assert len(asked) == 1
    assert not talk.core.lines[0].unknown_ns


def test_a_relay_is_ahead_of_a_restarted_publisher_that_is_held_back():
    talk = Relayed(lines=2)
    talk.hear(welcome(incarnation=1))
    talk.hear(echo(talk.probe().probe, head(0), incarnation=1))
    talk.meet(line=1, heads=[head(0)])
    talk.hear(welcome(incarnation=2))
    assert talk.core.peers[SESSION].is_held
    talk.hear(heartbeat(3, topic="new", incarnation=2), line=1)
    assert "new" not in talk.core.peers[SESSION].streams
    talk.hear(echo(talk.probe().probe, head(0), head(3, topic="new", start=0), incarnation=2))
    assert talk.core.peers[SESSION].streams["new"].receiver.head == 3


def test_a_stop_of_this_process_is_no_silence_of_a_relay():
    talk = Relayed()
    talk.hear(relay_welcome())
    talk.pass_ms(1000)
    talk.now_ns += 20_000_000_000
    for _ in range(4):
        talk.hear(pulse(RELAY))
        talk.pass_ms(500)
    assert "warn" not in {what for what, _, _ in talk.commanded()}


class TestTwoRoutes:
    @pytest.mark.parametrize("is_welcomed", [False, True])
    def test_the_relay_is_asked_when_the_publisher_gives_no_answer(self, is_welcomed):
        talk = Relayed().two()
        talk.hear(data(3), line=1)
        talk.pass_ms(400)
        assert {key for key, _ in talk.nacks()} == {SESSION, RELAY}
        talk.reply(data(0), session=RELAY)
        if is_welcomed:  # which makes the publisher the first again
            talk.hear(welcome(), line=0)
            talk.requests()
        talk.pass_ms(500)
        # Who answers is kept.
        assert {key for key, _ in talk.nacks()} == {SESSION if is_welcomed else RELAY}
        assert talk.core.peers[SESSION].streams["t"].repairs.relayed == 1

    @pytest.mark.parametrize("reason", ["evicted", "crash", "timeout", "publisher_gone"])
    def test_a_refusal_is_no_loss_while_another_may_have_it(self, reason):
        talk = Relayed().two()
        talk.hear(data(4), line=1)
        talk.pass_ms(1)
        talk.requests()
        talk.reply(refused((0, 2), reason=reason))
        assert talk.nacks() == [(RELAY, [(0, 2)])]  # at once
        talk.pass_ms(25)
        assert sorted(talk.nacks()) == sorted([(SESSION, [(2, 4)]), (RELAY, [(0, 2)])])
        talk.reply(refused((0, 1)), session=RELAY)
        assert talk.read() == [("t", 0, 1, reason)]  # the nearest route's reason
        talk.reply(data(1, 3), session=RELAY)
        assert talk.read() == [("t", 1, 3), ("t", 4, 1)]
        assert all(not route.refused for route in talk.core.peers[SESSION].routes)

    def test_what_a_heartbeat_says_is_evicted_may_be_elsewhere(self):
        talk = Relayed().two()
        talk.hear(heartbeat(10, earliest=8), line=0)
        assert talk.read() == []
        talk.pass_ms(1)
        assert talk.nacks() == [(SESSION, [(0, 10)])]

    def test_a_silent_line_does_not_count(self):
        talk = Relayed().two(publisher_timeout=0.5)
        for at in range(12):  # the relay lives, the publisher's line is silent
            talk.pass_ms(100)
            talk.hear(data(at), line=1)
        talk.read()
        talk.hear(data(20), line=1)
        talk.pass_ms(1)
        talk.requests()
        talk.reply(refused((12, 20)), session=RELAY)
        assert talk.read() == [("t", 12, 20, "evicted"), ("t", 20, 1)]


def test_replies_are_taken_from_those_who_have_a_route_only():
    talk = Relayed(lines=2).meet(heads=[head(0)])
    talk.hear(data(2))
    talk.reply(data(0), session=OTHER)
    talk.reply(data(0), session=SESSION)
    assert (talk.read(), talk.core.invalid["session"]) == ([], 2)


def test_who_starts_at_the_earliest_begins_where_any_route_does():
    talk = Relayed(lines=2, start="earliest")
    talk.hear(welcome(), line=0)
    talk.hear(echo(talk.probe().probe, head(9, earliest=6, start=6)), line=0)
    assert not talk.core.peers[SESSION].joined  # the other line may have more
    talk.meet(line=1, heads=[head(8, earliest=2, start=2)])
    assert talk.core.peers[SESSION].joined
    talk.pass_ms(1)
    assert {(key, *ranges[0]) for key, ranges in talk.nacks()} == {(SESSION, 2, 9)}


def pulse(relay):
    return wire.control_frame(Kind.HEARTBEAT, relay, control.Heartbeat(0), sequence=7)


def with_a_gap():
    talk = Relayed(start="earliest").meet(heads=[head(0)])
    talk.hear(data(0))
    talk.hear(data(3))
    assert talk.read() == [("t", 0, 1)]
    return talk


def restarted(talk):
    """Let another incarnation of the relay be at its place, which has nothing yet."""
    talk.hear(relay_welcome(OTHER))
    talk.requests()


def answer(talk, seconds, *served, settled):
    """Let the relay answer whenever it is asked what it has, for so long."""
    for _ in range(seconds * 2):
        talk.pass_ms(500)
        talk.hear(pulse(OTHER))
        if any(kind == "SESSIONS_REQUEST" for kind, _, _ in talk.requests()):
            talk.reply(sessions(*served, relay=OTHER, settled=settled), session=OTHER)


def test_a_relay_that_stays_away_is_given_up():
    talk = with_a_gap()
    talk.pass_ms(60_000)
    assert talk.read() == [("t", 1, 3, "publisher_gone"), ("t", 3, 1)]


def test_a_relay_that_knows_all_and_has_not_the_session_ends_it():
    talk = with_a_gap()
    restarted(talk)
    answer(talk, 20, settled=True)
    assert talk.read() == [("t", 1, 3, "publisher_gone"), ("t", 3, 1)]
    assert talk.core.peers[SESSION].gone
