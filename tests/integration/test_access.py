"""AccessRules by topic between real peers with keys: what is denied comes by no way."""

import contextlib
import time

import pytest

import p2pmsg
from p2pmsg import LogConfig, control, wire
from p2pmsg.errors import AccessDeniedError, AuthenticationError, MessagesLostError
from p2pmsg.wire import Frame, Kind
from tests.integration.peers import LOOPBACK, eventually
from tests.integration.secure import rewrite, take_job
from transports import ZmqReceiver, ZmqRecoveryClient, context
from transports.curve import CurveClient

SECRET = "what-nobody-else-may-read"
ALL = (
    "[[rule]]\nwho = ['ann', 'relay', 'feed']\nsubscribe = ['*']\npublish = ['*']\nrelay = ['*']\n"
)
RULES = f"{ALL}[[rule]]\nwho = ['bob']\nsubscribe = ['trades']\n"


@pytest.fixture
def access(tmp_path):
    path = tmp_path / "access.toml"
    path.write_text(RULES)
    return path


@pytest.fixture
def feed(peers, access):
    return peers.security("feed", "ann", "bob", "relay", access=access)


class Taken:
    """What a subscriber got, and what it was denied."""

    def __init__(self, subscriber):
        self.subscriber, self.values, self.denials, self.losses = subscriber, [], [], []

    def until(self, is_done):
        end_s = time.monotonic() + 60
        while not is_done(self):
            assert time.monotonic() < end_s, (self.values, self.denials, self.losses)
            try:
                self.values.append(self.subscriber.receive(0.05).value)
            except AccessDeniedError as error:
                self.denials.append((error.verb, error.topic))
            except MessagesLostError as error:
                self.losses.append((error.report.loss.start, error.report.loss.stop))
            except (TimeoutError, AuthenticationError):
                pass  # a refusal that came before the key was admitted again
        return self


class Intruder:
    """Holds bob's key, and asks over sockets of its own for all that there is."""

    def __init__(self, peers, publisher, server):
        bob, key = peers.keys["bob"], peers.keys[server].public
        self.received = []
        self._line = ZmqReceiver(publisher.endpoint, context=context(), curve=CurveClient(bob, key))
        echo = wire.control_prefix(Kind.ECHO)
        for prefix in (b"", b"\0", b"h", b"hidden", b"hidden\0", b"t", echo, echo + b"\0" * 8):
            self._line.subscribe(prefix)
        self._line.subscribe(wire.control_prefix(Kind.WELCOME))
        self._line.subscribe(wire.control_prefix(Kind.ECHO, 7))
        self._line.subscribe(b"trades\0")
        self._line.connect()
        self._client = ZmqRecoveryClient(
            publisher.recovery_endpoint, context=context(), curve=CurveClient(bob, key)
        )
        self._client.connect()

    def ask(self, session):
        """Ask by all kinds of requests."""
        many = [str(number) for number in range(10_000)]
        for topics in (["*"], ["h*"], ["hidden"], ["trades", "hidden"], [""], many):
            for start in ("earliest", "latest", "time"):
                probe = control.Probe(7, topics, start, 0, True)
                self._send(Kind.PROBE, session, probe)
                self._send(Kind.HEADS_REQUEST, session, probe)
        self._send(Kind.HEADS_REQUEST, session, None)
        self._send(Kind.JOINED, session, control.Joined(1, "bob"))
        for attempt in (1, 2):
            self._send(Kind.NACK, session, control.Nack("hidden", [(0, 10)], attempt))
            self._send(Kind.NACK, session, control.Nack("trades", [(0, 10)], attempt))
        self._send(Kind.SETTLED, session, control.Settled("hidden", 3))

    def _send(self, kind, session, body):
        eventually(lambda: self._client.send(wire.control_frame(kind, session, body)))

    def take(self):
        """Take what has come; return the frames so far by kind."""
        for receive in (self._line.receive, self._client.receive):
            while (data := receive()) is not None:
                self.received.append(data)
        kinds = {}
        for data in self.received:
            kinds.setdefault(Frame(data).kind, []).append(data)
        return kinds

    def close(self):
        self._line.close()
        self._client.close()


def publish_some(publisher, count=3):
    for number in range(count):
        publisher.publish("hidden", f"{SECRET}{number}")
        publisher.publish("trades", f"trade{number}")
    publisher.flush()


@pytest.mark.parametrize("way", ["buffer", "relay with a log"])
def test_an_intruder_with_a_key_gets_nothing_that_is_denied(way, peers, feed, access, tmp_path):
    publisher = p2pmsg.Publisher(LOOPBACK, security=feed)
    served, server, relay = publisher, "feed", None
    publish_some(publisher)
    if way == "relay with a log":
        relay = p2pmsg.Relay(
            peers.pinned(publisher.endpoint, "feed"), LOOPBACK, log=LogConfig(tmp_path / "relayed"),
            security=peers.security("relay", "ann", "bob", "feed", access=access),
        )  # fmt: skip
        relay.wait_for_streams(2, 60)
        served, server = relay, "relay"
    intruder = Intruder(peers, served, server)
    try:
        eventually(lambda: Kind.WELCOME in intruder.take())
        intruder.ask(publisher.session)
        wanted = {Kind.ECHO, Kind.HEADS, Kind.DENIED, Kind.REFUSED, Kind.DATA}

        def has_all():
            publish_some(publisher)
            return wanted <= intruder.take().keys()

        eventually(has_all)

        def has_more():
            publish_some(publisher)
            return sum(b"trade1" in data for data in intruder.take()[Kind.DATA]) > 1

        eventually(has_more)
        assert not any(SECRET.encode() in data for data in intruder.received)
        assert all(len(data) < 1000 for data in intruder.take()[Kind.ECHO])
        named = [data for data in intruder.received if b"hidden" in data]
        assert {Frame(data).kind for data in named} <= {Kind.DENIED, Kind.REFUSED, Kind.ECHO}
        for data in intruder.take()[Kind.ECHO]:  # it may say that what was asked for is denied
            heads = control.read_body(Frame(data), control.Heads).streams
            assert {head.topic for head in heads} <= {"trades"}
        assert served.stats().subscriptions_refused
        assert served.stats().requests_denied
    finally:
        intruder.close()
        if relay is not None:
            relay.close(0)
        publisher.close(0)


@pytest.mark.parametrize(
    ("topics", "denied", "count"),
    [(None, "*", 0), (["tra*"], "tra*", 0), (["trades", "hidden"], "hidden", 6)],
)
def test_prefixes_and_all_topics_are_denied_as_a_whole(topics, denied, count, peers, feed):
    with p2pmsg.Publisher(LOOPBACK, security=feed) as publisher:
        publish_some(publisher)
        where = peers.pinned(publisher.endpoint, "feed")
        with (
            p2pmsg.Subscriber(where, start="earliest", security=peers.security("ann")) as ann,
            p2pmsg.Subscriber(
                where, topics=topics, start="earliest", security=peers.security("bob")
            ) as bob,
        ):
            got = Taken(bob).until(lambda taken: taken.denials)
            assert got.denials == [("subscribe", denied)]
            publish_some(publisher)
            assert len(Taken(ann).until(lambda taken: len(taken.values) == 12).values) == 12
            got.until(lambda taken: len(taken.values) >= count)
            assert not any(SECRET in value for value in got.values)
            assert len(got.values) == count
            assert got.denials == [("subscribe", denied)]
            assert bob.stats().denied == 1


def test_history_is_given_as_far_back_as_the_rule_says(peers, feed, access):
    access.write_text(f"{ALL}[[rule]]\nwho=['bob']\nsubscribe=['trades']\nreplay_max='1h'\n")
    feed = peers.security("feed", "ann", "bob", access=access)
    with p2pmsg.Publisher(LOOPBACK, security=feed) as publisher:
        hour_ns = 3600 * 10**9
        for age, value in ((3, "old"), (2, "older than allowed"), (0, "new")):
            publisher.publish("trades", value, timestamp_ns=time.time_ns() - age * hour_ns)
            publisher.flush()
        where = peers.pinned(publisher.endpoint, "feed")
        with p2pmsg.Subscriber(
            where, topics=["trades"], start="earliest", security=peers.security("bob")
        ) as bob:
            publisher.wait_for_subscribers(1, 60)
            publisher.publish("trades", "live")
            got = Taken(bob).until(lambda taken: len(taken.values) == 2)
            assert got.values == ["new", "live"]


def test_rules_change_while_running(peers, feed, access):
    with p2pmsg.Publisher(LOOPBACK, security=feed) as publisher:
        where = peers.pinned(publisher.endpoint, "feed")
        ann = p2pmsg.Subscriber(where, topics=["trades"], security=peers.security("ann"))
        bob = p2pmsg.Subscriber(where, topics=["trades"], security=peers.security("bob"))
        with ann, bob:
            publisher.wait_for_subscribers(2, 60)
            publisher.publish("trades", 0)
            assert bob.receive(60).value == 0
            rewrite(access, ALL)
            feed.access_rules._due_ns = 0  # look now, and not within a second
            eventually(lambda: publisher.stats().connections_ended >= 1)
            publisher.publish_many("trades", list(range(1, 100)))
            assert Taken(ann).until(lambda taken: len(taken.values) == 100).values == [*range(100)]
            got = Taken(bob).until(lambda taken: taken.denials)
            assert got.values == []
            rewrite(access, RULES)
            feed.access_rules._due_ns = 0
            eventually(lambda: feed.access_rules.refresh() or feed.access_rules.may(
                peers.text("bob"), "subscribe", "trades"))  # fmt: skip
            got.until(lambda taken: len(taken.values) == 99)
            assert got.values == [*range(1, 100)]
            assert ann.stats().balanced
            assert bob.stats().balanced


def test_a_relay_without_the_right_is_not_believed(peers, feed, access, tmp_path):
    rules = tmp_path / "rules.toml"
    rules.write_text("[[rule]]\nwho = ['feed']\npublish = ['*']\n")
    with p2pmsg.Publisher(LOOPBACK, security=feed) as publisher:
        publish_some(publisher)
        with p2pmsg.Relay(
            peers.pinned(publisher.endpoint, "feed"), LOOPBACK,
            security=peers.security("relay", "ann", "bob", "feed", access=access),
        ) as relay:  # fmt: skip
            relay.wait_for_streams(2, 60)
            security = peers.security("ann", "relay", "feed", access=rules)
            where = peers.pinned(relay.endpoint, "relay")
            with p2pmsg.Subscriber(where, start="earliest", security=security) as ann:
                got = Taken(ann).until(lambda taken: taken.denials)
                assert got.denials[0][0] == "relay"
                assert got.values == []
                assert ann.stats().denied >= 1
            relay.close(0)


def test_a_relay_logs_what_is_denied_to_it(peers, access, caplog):
    access.write_text("[[rule]]\nwho = ['relay']\nsubscribe = ['trades']\n")
    feed = peers.security("feed", "relay", access=access)
    with p2pmsg.Publisher(LOOPBACK, security=feed) as publisher:
        publish_some(publisher)
        where = peers.pinned(publisher.endpoint, "feed")
        with p2pmsg.Relay(
            where, LOOPBACK, name="middle", topics=["trades", "hidden"],
            security=peers.security("relay", "feed"),
        ) as relay:  # fmt: skip
            eventually(lambda: "the relay 'middle': subscribe 'hidden'" in caplog.text)
            relay.wait_for_streams(1, 60)
            assert relay.stats().denied == 1
            assert {topic for _, topic in relay.stats().streams} == {"trades"}


KINDS = {
    "publisher": (p2pmsg.Publisher, {}, p2pmsg.Subscriber, {"topics": ["t"], "on_gap": "raise"}),
    "pusher": (p2pmsg.Pusher, {}, p2pmsg.Puller, {}),
    "pipeline": (
        p2pmsg.Pusher, {"acknowledge": "batch"}, p2pmsg.Puller, {"acknowledge": "batch"}
    ),
    "responder": (
        p2pmsg.Responder, {"handlers": {"t": lambda value: value}}, p2pmsg.Requester, {}
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", ["revoked", "taken out of the known peers"])
@pytest.mark.parametrize("kind", KINDS)
def test_who_is_not_trusted_any_more_is_cut_off_and_others_lose_nothing(peers, kind, how, caplog):
    """Without an access file."""
    server = peers.security("feed", "ann", "bob")
    binds, options, connects, own = KINDS[kind]
    with contextlib.ExitStack() as stack:
        bound = stack.enter_context(binds(LOOPBACK, security=server, **options))
        where = peers.pinned(bound.endpoint, "feed")
        ann, bob = (
            stack.enter_context(connects(where, security=peers.security(name), **own))
            for name in ("ann", "bob")
        )
        if kind == "publisher":
            bound.wait_for_subscribers(2, 60)
        elif kind == "responder":
            assert (ann.request("t", 1, timeout=60), bob.request("t", 1, timeout=60)) == (1, 1)
        else:
            eventually(lambda: all(all(end.stats().answering.values()) for end in (ann, bob)))

        if how == "revoked":
            assert bound.revoke("bob") == [peers.text("bob")]
            with pytest.raises(p2pmsg.ConfigError, match="who"):
                bound.revoke("nobody")
        else:
            server.known.remove("bob")
            server.grants._due_ns = 0  # look now, and not within a second
        stats = getattr(bound, "stats", lambda: bound)
        eventually(lambda: stats().connections_revoked >= 1)
        if kind == "publisher":
            eventually(lambda: bound.stats().subscribers == 1)
            bound.publish_many("t", list(range(500)))
            assert Taken(ann).until(lambda taken: len(taken.values) == 500).losses == []
            assert bob.stats().published == 0
        elif kind == "responder":
            assert ann.request("t", 2, timeout=60) == 2
            with pytest.raises((AuthenticationError, AccessDeniedError)):
                bob.request("t", 2, timeout=60)
        else:
            for number in range(100):
                bound.push(number)
            mode = own.get("acknowledge", "each")
            assert sorted(take_job(ann, mode) for _ in range(100)) == list(range(100))
            with pytest.raises((AuthenticationError, AccessDeniedError)):
                bob.receive(60)
        if how == "revoked":  # it comes back in vain
            why = f"{peers.text('bob')} from 127.0.0.1: the key was revoked"
            eventually(lambda: why in caplog.text)


@pytest.mark.parametrize("kind", KINDS)
def test_without_keys_there_is_nobody_to_revoke(kind):
    binds, options, *_ = KINDS[kind]
    with binds(LOOPBACK, **options) as bound, pytest.raises(p2pmsg.ConfigError, match="security"):
        bound.revoke("ann")
