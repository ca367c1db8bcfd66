"""What is asked of relays, and the routes over them, without a subscriber's core."""

from random import Random

import pytest

from p2pmsg import control, wire
from p2pmsg.config import SubscriberConfig
from p2pmsg.start import Start
from p2pmsg.subscriber.connections import Connection
from p2pmsg.subscriber.effects import Effects
from p2pmsg.subscriber.relays import ASK_NS, RelayClient
from p2pmsg.subscriber.sessions import Session
from p2pmsg.subscriber.settings import Settings
from p2pmsg.wire import Frame, Kind

RELAY, OWN, SESSION = 100, 55, 7
WELCOME = control.Welcome("relay", "tcp://127.0.0.1:2", 100.0)


class Client(RelayClient):
    """A client of one connection; its queues are looked at by hand."""

    def __init__(self, own=None):
        self.effects, self.due, self.unprobed = Effects(), [], []
        self.peers, self.lines = {}, [Connection()]
        settings = Settings(
            subscriber=1, name="s", topics=[], start=Start("latest"), config=SubscriberConfig()
        )
        super().__init__(
            settings, own, peers=self.peers, lines=self.lines, effects=self.effects,
            hurry=self.due.append, rng=Random(1), now_ns=0,
        )  # fmt: skip

    def welcome(self, relay=RELAY, now_ns=0):
        """Meet a relay."""
        self.meet(0, relay, WELCOME, now_ns)
        return self.ask_or_refuse(relay, now_ns)

    def list(self, *sessions, path=(RELAY,), following=0, now_ns=1):
        """Be told what the relay serves."""
        entries = [control.SessionEntry(session, "feed", 1) for session in sessions]
        body = control.Sessions(list(path), entries, following)
        frame = Frame(wire.control_frame(Kind.SESSIONS, RELAY, body))
        for up, entry in self.receive_sessions(RELAY, frame, now_ns):
            welcome = control.Welcome(entry.name, "", up.stall_ms)
            peer = self.peers.setdefault(
                entry.session, Session(entry.session, welcome, returning=False, now_ns=now_ns)
            )
            self.unprobed += self.add_routes(up, peer, entry, now_ns)

    def asked(self):
        kinds = [Kind(Frame(data).kind).name for _, data in self.effects.requests]
        self.effects.requests.clear()
        return kinds

    def commanded(self):
        what = [command.what for command in self.effects.commands]
        self.effects.commands.clear()
        return what


@pytest.fixture
def client():
    client = Client()
    assert client.welcome()
    return client


def test_a_relay_that_is_met_is_asked_what_it_serves(client):
    assert client.commanded() == ["connect", "subscribe"]
    assert client.asked() == ["SESSIONS_REQUEST"]
    assert client.waiting == [RELAY]


def test_each_session_that_it_serves_gets_a_route_that_is_to_be_probed(client):
    client.list(SESSION, 8)
    (route,) = client.peers[SESSION].relayed
    assert (route.key, route.handshake.line, route.hops) == (RELAY, 0, 1)
    assert client.unprobed == [route, *client.peers[8].relayed]
    assert list(client.routes_over(0)) == [
        (client.peers[SESSION], route), (client.peers[8], client.unprobed[1]),
    ]  # fmt: skip


def test_the_list_is_asked_for_again(client):
    client.list()
    client.asked()
    client.check(ASK_NS)
    assert client.asked() == []
    client.check(ASK_NS + 1)
    assert client.asked() == ["SESSIONS_REQUEST"]


def test_a_session_whose_relay_leaves_has_ended(client):
    client.list(SESSION)
    client.leave_line(0)
    assert client.ended == [client.peers[SESSION]]
    assert client.peers[SESSION].relayed == []
    assert client.upstreams == {}


def test_a_session_that_has_its_publisher_goes_on_without_the_relay(client):
    client.list(SESSION)
    client.peers[SESSION].direct = True
    client.leave_line(0)
    assert client.ended == []


def test_a_relay_that_leads_back_is_refused():
    client = Client(own=OWN)
    client.welcome()
    client.commanded()
    client.list(SESSION, path=[RELAY, OWN])
    assert client.loops_refused == 1
    assert client.peers == {}
    assert client.lines[0].refused_until_ns is not None
    assert client.commanded()[0] == "leave"
    assert not client.welcome(OWN, 3)  # that is the relay itself


def test_an_unknown_session_hurries_the_next_request(client):
    client.list()
    client.due.clear()
    client.note_unknown(0, 2)
    assert len(client.due) == 1
    assert client.due[0] < ASK_NS
