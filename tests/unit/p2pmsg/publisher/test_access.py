"""What a publisher with rights answers, by core and requests: to each what it may have."""

import pytest

from p2pmsg import control, wire
from p2pmsg.config import PublisherConfig
from p2pmsg.publisher import heads
from p2pmsg.publisher.access import LIMIT_NS
from p2pmsg.publisher.core import PublisherCore
from p2pmsg.wire import Frame, Kind
from tests.unit.p2pmsg.frames import SESSION
from tests.unit.p2pmsg.publisher.served import take_sent
from tests.unit.p2pmsg.security.files import access_of, rule, user_of

S = 10**9
WALL_NS = 1_700_000_000 * S
TOPICS = ("trades", "quotes.us", "quotes.eu", "orders")
RULES = (
    rule("ann", subscribe=["*"]),
    rule("bob", subscribe=["quotes*", "trades"]),
    rule("carl", subscribe=["trades"], replay_max=4),
    rule("dora", subscribe=["trades"], replay_max=0),
)


class Asked:
    """A publisher of ten messages of each topic, one a second, and those who ask it."""

    def __init__(self, *rules, topics=TOPICS):
        self.now_ns, self.why, self.denied = 0, None, []
        self.core = PublisherCore(
            name="feed", session=SESSION, recovery="memory://r", config=PublisherConfig(),
            now_ns=0,
        )  # fmt: skip
        self.access_rules = access_of(*rules)
        self.core.use_access_rules(self.access_rules)
        for _ in range(10):
            self.publish(*topics)
        take_sent(self.core)

    def publish(self, *topics):
        self.now_ns += S
        for topic in topics:
            self.core.publish(
                topic, 1, None, self.wall_ns, None, now_ns=self.now_ns, wall_ns=self.wall_ns
            )
        self.core.flush(now_ns=self.now_ns)
        self.core.outbox.clear()

    @property
    def wall_ns(self):
        return WALL_NS + self.now_ns

    def ask(self, who, kind, body=None, *, requester=None, session=SESSION):
        """Ask as `who`; returns answers by kind, those over the data path included."""
        data = wire.control_frame(kind, session, body, sequence=7)
        self.core.requests.receive(
            requester or who.encode(), data, now_ns=self.now_ns, user=user_of(who),
            wall_ns=self.wall_ns,
        )  # fmt: skip
        return self.answers()

    def answers(self):
        handler, found = self.core.requests, {}
        while (reply := handler.next_reply(now_ns=self.now_ns)) is not None:
            handler.reply_sent(reply, now_ns=self.now_ns)
            self._add(found, Frame(reply.frame))
        for data in take_sent(self.core):
            self._add(found, Frame(data))
        return found

    def _add(self, found, frame):
        kind = Kind(frame.kind)
        if kind is Kind.DATA:
            found.setdefault("DATA", []).append((frame.topic, frame.sequence))
        elif kind is Kind.REFUSED:
            body = control.read_body(frame, control.Refused)
            found.setdefault(body.reason, []).extend(body.ranges)
        elif kind is Kind.DENIED:
            body = control.read_body(frame, control.Denied)
            found["DENIED"] = body.patterns
            self.why = body.why
        elif kind in (Kind.ECHO, Kind.HEADS):
            body = control.read_body(frame, control.Heads)
            self.denied = body.denied
            found[kind.name] = {
                head.topic: (head.earliest, head.next, head.start) for head in body.streams
            }

    def probe(self, who, *patterns, start="latest", position=0, newer=False, requester=None):
        body = control.Probe(5, list(patterns), start, position, newer)
        return self.ask(who, Kind.PROBE, body, requester=requester)

    def heads(self, who, *patterns):
        body = control.Probe(0, list(patterns), "latest") if patterns else None
        return self.ask(who, Kind.HEADS_REQUEST, body)

    def nack(self, who, topic, *ranges, requester=None):
        return self.ask(who, Kind.NACK, control.Nack(topic, list(ranges)), requester=requester)


@pytest.fixture
def asked():
    return Asked(*RULES)


def test_an_echo_has_only_what_is_covered_and_says_the_rest(asked):
    assert set(asked.probe("ann", "*")["ECHO"]) == set(TOPICS)
    found = asked.probe("bob", "quotes*", "trades", "orders", "tra*", "quotes.us")
    assert set(found["ECHO"]) == {"quotes.us", "quotes.eu", "trades"}
    assert found["DENIED"] == ["orders", "tra*"]
    assert asked.probe("bob", "*") == {"ECHO": {}, "DENIED": ["*"]}
    assert asked.probe("eve", "trades") == {"ECHO": {}, "DENIED": ["trades"]}
    assert asked.core.requests.access.denied_requests == 3


def test_an_echo_says_a_bounded_part_of_what_is_denied(asked):
    """One without rights makes neither long answers, nor what a cache keeps of long questions."""
    most = [f"hidden{number}" for number in range(control.DENIED_MAX)]
    found = asked.probe("bob", "trades", *most, *most)
    assert found["DENIED"] == asked.denied == most
    assert list(found["ECHO"]) == ["trades"]
    found = asked.probe("bob", "trades", *(f"{number}" for number in range(16_000)))
    assert list(found["ECHO"]) == ["trades"]
    assert asked.denied == ["*"]
    asked = Asked(*RULES, topics=[f"quotes{number}" for number in range(heads.CACHED_HEADS_MIN)])
    questions = asked.core.requests.heads._cached
    asked.probe("bob", "quotes*", *most)
    assert not questions
    asked.probe("bob", "quotes*", *most[:5])
    assert len(questions) == 1


def test_heads_that_are_used_again_are_not_those_of_another(monkeypatch):
    topics = [f"{kind}{number}" for kind in "ab" for number in range(heads.CACHED_HEADS_MIN)]
    asked = Asked(rule("ann", subscribe=["*"]), rule("bob", subscribe=["a*"]), topics=topics)
    pages, make = [], heads.HeadsMaker._pages
    monkeypatch.setattr(
        heads.HeadsMaker, "_pages", lambda *a, **more: pages.append(1) or make(*a, **more)
    )

    for ask in (asked.heads, lambda who: asked.probe(who, "*"), lambda who: asked.heads(who, "*")):
        del pages[:]
        for who, count in (("ann", 128), ("ann", 128), ("eve", 0), ("bob", 64), ("ann", 128)):
            (found,) = [value for key, value in ask(who).items() if key in ("ECHO", "HEADS")]
            is_echo_of_part = who == "bob" and "ECHO" in ask(who)
            assert len(found) == (0 if is_echo_of_part else count)
        assert len(pages) < 10  # ann's was used again
    assert len(asked.probe("bob", "a*")["ECHO"]) == 64
    assert len(asked.probe("ann", "a*")["ECHO"]) == 64
    assert asked.probe("eve", "a*")["ECHO"] == {}


def test_what_a_requester_asked_for_is_not_sent_to_another_user_with_its_id(asked):
    data = wire.control_frame(Kind.NACK, SESSION, control.Nack("orders", [(0, 3)]))
    asked.core.requests.receive(
        b"id", data, now_ns=asked.now_ns, user=user_of("ann"), wall_ns=asked.wall_ns
    )
    assert asked.nack("bob", "trades", (0, 1), requester=b"id") == {"DATA": [("trades", 0)]}


def test_history_that_is_too_old_is_refused_with_its_reason(asked):
    # Ten messages, the last one just now: it may have those of the last four seconds.
    assert asked.nack("carl", "trades", (0, 10)) == {
        "too_old": [(0, 5)], "DATA": [("trades", number) for number in range(5, 10)],
    }  # fmt: skip
    assert asked.nack("carl", "trades", (0, 3)) == {"too_old": [(0, 3)]}
    assert asked.nack("dora", "trades", (9, 10)) == {"too_old": [(9, 10)]}
    assert asked.heads("carl") == {"HEADS": {"trades": (5, 10, 0)}}
    assert asked.heads("ann")["HEADS"]["trades"] == (0, 10, 0)
    assert asked.heads("dora") == {"HEADS": {"trades": (10, 10, 0)}}

    asked.now_ns += LIMIT_NS
    asked.publish("trades")
    assert asked.nack("carl", "trades", (6, 8)) == {"too_old": [(6, 7)], "DATA": [("trades", 7)]}


def test_what_comes_after_one_has_joined_is_repaired_however_old_it_is(asked):
    asked.probe("dora", "trades", requester=b"one")
    asked.publish("trades")
    asked.publish("trades")
    asked.now_ns += 3600 * S

    assert asked.nack("dora", "trades", (8, 12), requester=b"one") == {
        "too_old": [(8, 10)], "DATA": [("trades", 10), ("trades", 11)],
    }  # fmt: skip
    assert asked.nack("dora", "trades", (10, 12), requester=b"two") == {"too_old": [(10, 12)]}
    # A later probe over the same connection does not move it.
    asked.now_ns += S
    asked.probe("dora", "trades", requester=b"one", newer=True)
    assert asked.nack("dora", "trades", (10, 11), requester=b"one") == {"DATA": [("trades", 10)]}


def test_who_has_joined_gets_no_history_of_what_it_did_not_ask_for():
    asked = Asked(rule("carl", subscribe=["trades", "quotes*", "new"], replay_max=4))
    for patterns in (["quotes.us"], ["none.such"]):  # a probe of other topics, or of none
        requester = patterns[0].encode()
        asked.probe("carl", *patterns, requester=requester)
        found = asked.nack("carl", "trades", (0, 6), requester=requester)
        assert found == {"too_old": [(0, 5)], "DATA": [("trades", 5)]}

    asked.publish("new", "trades")  # began since: all of it is live
    asked.publish("new", "trades")
    asked.probe("carl", "new", "trades", requester=b"quotes.us")
    asked.publish("trades")
    asked.now_ns += 3600 * S
    found = asked.nack("carl", "new", (0, 2), requester=b"quotes.us")
    assert found == {"DATA": [("new", 0), ("new", 1)]}
    found = asked.nack("carl", "trades", (0, 13), requester=b"quotes.us")
    assert found == {"too_old": [(0, 12)], "DATA": [("trades", 12)]}


def test_those_without_any_right_are_not_counted_and_change_nothing(asked):
    handler = asked.core.requests
    body = control.Joined(1, "ann", True)
    asked.ask("eve", Kind.JOINED, body)
    assert handler.known.by_id() == {}
    asked.ask("ann", Kind.JOINED, body)
    assert handler.known.by_id()[1].name == "ann"

    asked.ask("bob", Kind.JOINED, control.Joined(1, "bob", False))
    asked.ask("bob", Kind.LEAVE, control.Joined(1, "bob"))
    assert handler.known.by_id()[1].name == "ann"
    assert handler.invalid == {"subscriber": 2}

    asked.ask("bob", Kind.SETTLED, control.Settled("orders", 5))
    asked.ask("bob", Kind.SETTLED, control.Settled("trades", 5))
    done = {name: one.acknowledged for name, one in asked.core.streams.items()}
    assert {name: count for name, count in done.items() if count} == {"trades": 5}
    asked.ask("ann", Kind.LEAVE, body)
    assert handler.known.by_id() == {}
