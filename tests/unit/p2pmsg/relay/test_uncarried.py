"""What a relay says of topics that it leaves out."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from p2pmsg import codec, control, wire
from p2pmsg.control import CARRIES_MAX
from p2pmsg.publisher.requests import matches
from p2pmsg.relay.uncarried import NAMED_MAX
from p2pmsg.topics import overlaps
from p2pmsg.wire import Frame, Kind
from tests.unit.p2pmsg.frames import SESSION
from tests.unit.p2pmsg.relay.test_relay_core import RELAY, RelayTalk


def carried(talk, user="sub"):
    """Return what a relay says that it carries."""
    request = wire.control_frame(Kind.SESSIONS_REQUEST, RELAY)
    talk.core.requests.receive(b"s", request, now_ns=0, user=user)
    reply = talk.core.requests.next_reply(now_ns=0)
    talk.core.requests.reply_sent(reply, now_ns=0)
    return control.read_body(Frame(reply.frame), control.Sessions).carries


class Some:
    """AccessRules of one who may subscribe to these patterns."""

    def __init__(self, *patterns):
        self.patterns = patterns

    def may(self, user, verb, topic):
        return (user, verb) == ("sub", "subscribe") and topic in self.patterns

    def has_any(self, user, verb):
        return True


def test_a_relay_says_which_topics_it_takes():
    assert carried(RelayTalk(topics=["t", "quotes.*"])) == ["t", "quotes.*"]
    assert carried(RelayTalk()) == []


def test_it_does_not_say_what_is_too_much_or_denied():
    many = [f"t{number}" for number in range(CARRIES_MAX + 1)]
    assert carried(RelayTalk(topics=many)) == []
    assert carried(RelayTalk(topics=many[1:])) == many[1:]
    talk = RelayTalk(topics=["t", "secret"])
    talk.core.requests._access_rules = Some("t")
    assert carried(talk) == []
    talk.core.requests._access_rules = Some("t", "secret")
    assert carried(talk) == ["t", "secret"]


def test_lists_of_older_and_newer_relays_are_read():
    entry = [SESSION, "feed", 1]
    for body, carries in (
        ([[RELAY], [entry], 0, True], []),
        ([[RELAY], [entry], 0, True, ["t"]], ["t"]),
        ([[RELAY], [entry], 0, True, ["t"], "of a later version"], ["t"]),
    ):
        frame = Frame(wire.control_frame(Kind.SESSIONS, RELAY, body))
        assert control.read_body(frame, control.Sessions).carries == carries


class OlderSessions(codec.Struct, array_like=True):
    path: list[int]
    sessions: list[control.SessionEntry]
    following: int = 0
    settled: bool = True


def test_an_older_subscriber_reads_what_is_said():
    entries = [control.SessionEntry(SESSION, "feed", 1)]
    body = control.Sessions([RELAY], entries, 0, False, ["t"])
    frame = Frame(wire.control_frame(Kind.SESSIONS, RELAY, body))
    read = control.decoded(frame, codec.make_decoder(OlderSessions).decode)
    assert (read.sessions, read.settled) == (entries, False)


def probe(talk, *topics):
    body = control.Probe(1, list(topics), "earliest")
    talk.ask(wire.control_frame(Kind.PROBE, SESSION, body))


def test_who_asks_for_what_is_left_out_is_counted_and_named():
    talk = RelayTalk(topics=["t", "quotes.*"]).open()
    uncarried = talk.core.requests.uncarried
    for topics in (["t"], ["*"], ["quotes.a", "t"], ["quo*"]):
        probe(talk, *topics)
    assert (uncarried.count, uncarried.waiting) == (0, False)
    probe(talk, "t", "u")
    probe(talk, "u", "v*")
    assert (uncarried.count, uncarried.waiting) == (2, True)
    assert uncarried.take() == (
        "was asked for what it does not carry: 'u', 'v*'. It carries only 't', 'quotes.*'"
    )
    assert (uncarried.count, uncarried.waiting) == (2, False)
    probe(talk, *(f"x{number}" for number in range(100)))
    assert uncarried.take().count("'x") == NAMED_MAX


def test_a_relay_of_all_topics_counts_nothing():
    talk = RelayTalk().open()
    probe(talk, "u")
    assert talk.core.requests.uncarried.count == 0


PATTERNS = st.one_of(
    st.text("ab", min_size=1, max_size=3), st.text("ab", max_size=3).map("{}*".format)
)
TOPICS = ["".join(letters) for size in (1, 2, 3) for letters in product("ab", repeat=size)]


@given(pattern=PATTERNS, patterns=st.lists(PATTERNS, max_size=3))
def test_patterns_overlap_if_a_topic_fits_both(pattern, patterns):
    found = any(matches(topic, [pattern]) and matches(topic, patterns) for topic in TOPICS)
    assert overlaps(pattern, patterns) == found
