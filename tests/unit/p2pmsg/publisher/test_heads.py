"""Which topics patterns mean: the same as by comparing each with each, without doing so."""

from hypothesis import given
from hypothesis import strategies as st

from p2pmsg import control, wire
from p2pmsg.config import PublisherConfig
from p2pmsg.publisher.core import PublisherCore
from p2pmsg.publisher.heads import CACHED_HEADS_MIN, TopicIndex
from p2pmsg.topics import matches
from p2pmsg.wire import Frame, Kind
from tests.unit.p2pmsg.frames import SESSION, probe
from tests.unit.p2pmsg.publisher.served import take_sent

TOPICS = st.text("aé\U0001f600", min_size=1, max_size=4)
PATTERNS = st.lists(st.one_of(TOPICS, TOPICS.map(lambda topic: topic + "*"), st.just("*")))


@given(st.lists(TOPICS), PATTERNS)
def test_it_finds_what_a_comparison_finds(topics, patterns):
    table = dict.fromkeys(topics)
    index = TopicIndex(table)
    found = index.matching(patterns)
    assert sorted(found) == sorted(topic for topic in table if matches(topic, patterns))


def core(topics):
    made = PublisherCore(
        name="feed", session=SESSION, recovery="memory://r", config=PublisherConfig(), now_ns=0
    )
    for number in range(topics):
        made.publish(f"t{number:05}", 1, None, None, None, now_ns=0, wall_ns=1)
    take_sent(made)
    return made


def test_31_000_patterns_meet_10_000_topics():
    """Each with each are 310 million comparisons, 30 seconds in which nothing was published."""
    publisher = core(10_000)
    patterns = [f"t{number:05}" for number in range(0, 20_000, 2)]
    patterns += [f"t{number:05}*" for number in range(21_000)]
    publisher.requests.receive(b"who", probe(7, patterns), now_ns=0)
    request = wire.control_frame(Kind.HEADS_REQUEST, SESSION, control.Probe(7, patterns, "latest"))
    publisher.requests.receive(b"who", request, now_ns=0)
    pages = [Frame(data) for data in take_sent(publisher) if data[4] == Kind.ECHO]
    heads = [head for page in pages for head in control.read_body(page, control.Heads).streams]
    assert sorted(head.topic for head in heads) == sorted(publisher.heads())


def test_who_asks_without_end_is_throttled_and_is_answered_again_later():
    publisher = core(100)
    patterns = [f"t{number:05}" for number in range(30_000)]
    for number in range(100):
        publisher.requests.receive(b"rude", probe(number, patterns), now_ns=0)
    assert publisher.requests.heads.throttled > 60
    take_sent(publisher)
    publisher.requests.receive(b"calm", probe(777, ["*"]), now_ns=2 * 10**9)
    (first, *_) = map(Frame, take_sent(publisher))
    assert (first.kind, first.session) == (Kind.ECHO, 777)
    publisher.requests.receive(b"rude", probe(778, ["*"]), now_ns=20 * 10**9)
    assert take_sent(publisher), "and then it is answered again"


def test_the_same_question_is_answered_again_for_a_while():
    topics = CACHED_HEADS_MIN
    publisher = core(topics)

    def head(now_ns, closing=False):
        publisher.own.closing = closing
        publisher.requests.receive(b"%d" % now_ns, probe(now_ns, ["*"]), now_ns=now_ns)
        data = next(data for data in take_sent(publisher) if data[4] == Kind.ECHO)
        assert Frame(data).session == now_ns
        return control.read_body(Frame(data), control.Heads).streams[0].next

    assert head(1) == 1
    publisher.publish("t00000", 1, None, None, None, now_ns=2, wall_ns=1)
    publisher.flush(now_ns=2)
    assert head(3) == 1
    assert head(4, closing=True) == 2, "what is said at the end is exact"
    assert head(10**9) == 2
