"""What a subscriber with rights takes from servers, and what it reports as denied."""

import pytest

from p2pmsg import control, wire
from p2pmsg.subscriber.servers import DENIALS_MAX, Denial, Denials
from p2pmsg.wire import Frame, FrameError, Kind
from tests.unit.p2pmsg import frames
from tests.unit.p2pmsg.frames import SESSION
from tests.unit.p2pmsg.relay.test_subscriber_relays import Relayed, relay_welcome
from tests.unit.p2pmsg.security.files import access_of, rule, user_of
from tests.unit.p2pmsg.subscriber_talk import data, head

RULES = (
    rule("ann", publish=["a*"]),
    rule("bob", publish=["b*"], relay=["b*"]),
)


def trusting(*servers, **options):
    """A subscriber with rights, and the servers of its lines."""
    talk = Relayed(lines=len(servers), **options)
    talk.access_rules = access_of(*RULES)
    talk.core.use_access_rules(talk.access_rules, [user_of(name) for name in servers])
    return talk


def denied(talk):
    found = []
    while (denial := talk.core.denials.take()) is not None:
        found.append(denial)
    return found


def test_topics_that_a_server_may_not_publish_are_dropped_counted_and_said_once():
    talk = trusting("ann").join(head(0, topic="a1"), head(5, topic="b1"))
    assert list(talk.core.peers[SESSION].streams) == ["a1"]
    for sequence in range(3):
        talk.hear(data(sequence, topic="a1"))
        talk.hear(data(sequence, topic="b1"))
    talk.hear(frames.heartbeat(9, topic="b2"))

    assert talk.read() == [("a1", sequence, 1) for sequence in range(3)]
    assert talk.core.invalid == {"denied": 4}
    assert denied(talk) == [
        Denial("publish", "b1", "feed", True), Denial("publish", "b2", "feed", True),
    ]  # fmt: skip
    assert talk.core.denials.count == 2
    talk.pass_ms(3000)
    assert talk.asked(Kind.NACK) == []  # what it may not send is not missed


def test_a_server_that_may_publish_nothing_is_disconnected_and_tried_again():
    talk = trusting("eve")
    talk.hear(frames.welcome())

    assert talk.core.peers == {}
    assert ("leave", 0, 0) in talk.commanded()
    assert denied(talk) == [Denial("publish", "*", "feed", True)]
    talk.pass_ms(11_000)
    assert ("reconnect", 0, 0) in talk.commanded()


def test_a_session_is_its_publishers_and_no_other_servers():
    talk = trusting("ann", "bob")
    talk.join(head(0, topic="a1"))
    talk.hear(frames.welcome(7), line=1)
    talk.hear(frames.echo(talk.probe().probe, head(0, topic="b1")), line=1)

    talk.hear(data(0, topic="b1", session=SESSION), line=1)  # bob may publish b1, but not as ann
    talk.hear(frames.welcome(SESSION, recovery="memory://bob"), line=1)
    talk.hear(frames.welcome(SESSION, flags=wire.FLAG_CLOSING), line=1)
    assert talk.core.invalid == {"denied": 3}
    assert talk.core.peers[SESSION].own.recovery == "memory://r"
    assert not talk.core.peers[SESSION].closing
    talk.hear(data(0, topic="a1", session=SESSION))
    talk.hear(data(0, topic="b1", session=7), line=1)
    assert talk.read() == [("a1", 0, 1), ("b1", 0, 1)]


def test_repairs_are_checked_as_what_comes_live():
    talk = trusting("ann").join(head(3, topic="a1", start=0))
    talk.pass_ms(100)
    assert talk.asked(Kind.NACK)
    talk.reply(data(0, topic="a1"))
    talk.access_rules.revoke("ann")
    talk.core.access_changed()
    talk.reply(data(1, topic="a1"))

    assert talk.read() == [("a1", 0, 1)]
    assert talk.core.invalid == {"denied": 1}


def test_a_right_that_is_withdrawn_counts_on_the_fast_path():
    talk = trusting("ann").join(head(0, topic="a1"))
    stream = talk.core.peers[SESSION].streams["a1"]
    talk.hear(data(0, topic="a1"))
    talk.read()
    assert talk.core.take_frame(stream, data(1, topic="a1"), 1, 0).sequence == 1
    talk.access_rules.revoke("ann")
    talk.core.access_changed()
    assert talk.core.take_frame(stream, data(2, topic="a1"), 1, 0) is None
    talk.hear(data(2, topic="a1"))
    assert talk.read() == []
    assert talk.core.invalid == {"denied": 1}

    talk.access_rules._by_hand = frozenset()
    talk.access_rules._changed()
    talk.core.access_changed()
    assert talk.core.take_frame(stream, data(2, topic="a1"), 1, 0).sequence == 2


def test_a_relay_needs_the_right_to_relay_and_only_for_its_topics():
    talk = trusting("bob").meet(heads=[head(0, topic="a1"), head(0, topic="b1")])
    talk.hear(data(0, topic="a1"))
    talk.hear(data(0, topic="b1"))
    assert talk.read() == [("b1", 0, 1)]
    assert denied(talk) == [Denial("relay", "a1", "feed", True)]

    talk = trusting("ann")
    talk.hear(relay_welcome())
    assert talk.requests() == []
    assert talk.core.relays.upstreams == {}
    assert denied(talk) == [Denial("relay", "*", "relay", True)]


def test_what_servers_deny_is_reported_once():
    talk = trusting("ann").join(head(0, topic="a1"))
    answer = wire.control_frame(Kind.DENIED, SESSION, control.Denied("subscribe", ["x", "y*"]))
    talk.reply(answer)
    talk.reply(answer)
    assert denied(talk) == [
        Denial("subscribe", "x", "feed", False), Denial("subscribe", "y*", "feed", False),
    ]  # fmt: skip
    assert talk.core.invalid == {}


def test_a_server_cannot_have_many_topics_compared_with_many_denied_ones():
    most = control.Heads("feed", [], denied=["t"] * control.DENIED_MAX)
    more = control.Heads("feed", [], denied=["t"] * (control.DENIED_MAX + 1))
    frames = [Frame(wire.control_frame(Kind.ECHO, 5, one)) for one in (most, more)]
    assert len(control.read_body(frames[0], control.Heads).denied) == control.DENIED_MAX
    with pytest.raises(FrameError):
        control.read_body(frames[1], control.Heads)


def test_a_server_cannot_fill_the_memory_with_denials():
    denials = Denials()
    for number in range(2 * DENIALS_MAX):
        denials.note(Denial("publish", str(number), "feed", True))
    assert len(denials.waiting) == DENIALS_MAX
    assert denials.count == 2 * DENIALS_MAX
    assert sum(denials.take() is not None for _ in range(2 * DENIALS_MAX)) == DENIALS_MAX
    denials.note(Denial("publish", "0", "feed", True))
    assert denials.count == 2 * DENIALS_MAX


def test_what_is_denied_again_after_it_was_allowed_is_reported_again():
    talk = trusting("ann").join(head(0, topic="a1"))
    answer = control.Denied("subscribe", ["x", "y"], "rule 3 denies it")
    frame = wire.control_frame(Kind.DENIED, SESSION, answer)
    talk.reply(frame)
    first, second = denied(talk)
    assert str(first.as_error()).endswith("gives us no right to it: rule 3 denies it")
    assert str(second.as_error()).endswith("gives us no right to it")
    talk.core.denials.answered("feed", ["x"])
    talk.core.denials.answered("another")
    talk.reply(frame)
    assert [one.topic for one in denied(talk)] == ["y"]
    assert talk.core.denials.count == 3

    talk.core.denials.answered("feed", ["*"])  # it denies more than it lists
    talk.reply(frame)
    assert denied(talk) == []

    ours = Denial("publish", "b1", "feed", True)
    talk.hear(data(0, topic="b1"))
    talk.hear(data(1, topic="b1"))
    assert denied(talk) == [ours]
    talk.core.denials.allow("publish", "b1", "feed")
    talk.hear(data(2, topic="b1"))
    assert denied(talk) == [ours]
