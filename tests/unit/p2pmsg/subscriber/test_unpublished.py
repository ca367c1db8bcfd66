"""Topics that nobody publishes."""

import pytest

from p2pmsg.subscriber.unpublished import Asked, UnpublishedTopics, who_was_asked
from tests.unit.p2pmsg.frames import echo, welcome
from tests.unit.p2pmsg.relay.test_subscriber_relays import OTHER, Relayed, sessions
from tests.unit.p2pmsg.subscriber_talk import head

S = 10**9
FEED = Asked("'feed'")
SAID = Asked("the relay at A", ["t", "quotes.*"])
SILENT = Asked("the relay at B", [])


def test_a_topic_that_nobody_has_is_named_once_with_similar_ones():
    topics = UnpublishedTopics(["trads", "sports", "quotes.*", "trads"])
    known = {"trades", "sports", "quotes.btc"}

    assert topics.look(known, [FEED], 1 * S) == []
    assert topics.look(known, [FEED], 5 * S) == []
    assert topics.look(known, [FEED], 6 * S) == [
        "nobody has published on 'trads' yet; asked for 5 s: 'feed'. Similar topics: 'trades'"
    ]
    assert topics.next_ns > 10**9 * S


@pytest.mark.parametrize(("asked", "published"), [("caf\xe9", "cafe\u0301"), ("\u212b", "\xc5")])
def test_a_topic_that_differs_only_by_normalization_is_named_with_what_differs(asked, published):
    topics = UnpublishedTopics([asked])
    topics.look({published}, [FEED], 0)
    (said,) = topics.look({"other", published, "cafes"}, [FEED], 5 * S)
    assert said == (
        f"nobody has published on {asked!r} yet; asked for 5 s: 'feed'. Published is "
        f"{published!a}, the same text in another Unicode normalization than {asked!a}"
    )


def test_nothing_is_said_of_prefixes_or_before_anybody_was_asked():
    assert UnpublishedTopics(["trades.*", "*"]).next_ns > 10**9 * S
    topics = UnpublishedTopics(["t"])
    assert topics.look(set(), [], 0) == topics.look(set(), [], 60 * S) == []
    assert topics.next_ns == 61 * S
    assert topics.look(set(), [FEED], 61 * S) == []
    assert topics.look({"t"}, [FEED], 62 * S) == []
    assert topics.look(set(), [FEED], 99 * S) == []


def test_of_many_topics_and_publishers_a_few_are_named():
    topics = UnpublishedTopics(f"t{number}" for number in range(1000))
    names = [Asked(f"'p{number}'") for number in range(9)]
    topics.look(set(), names, 0)

    said = topics.look(set(), names, 5 * S)

    assert len(said) == 9
    assert said[0].endswith("'p0', 'p1', 'p2', 'p3' and 5 others")
    assert said[-1] == "nobody has published on 992 other topics yet"


ONLY = "the relay at A carries only 't', 'quotes.*'"
CASES = {
    "a relay that leaves it out": ("u", [SAID], f"nothing of 'u' can come: {ONLY}"),
    "a relay that takes it": (
        "quotes.a", [SAID], "nothing is known of 'quotes.a' yet; asked for 5 s: the relay at A",
    ),
    "a relay that does not say": (
        "u", [SILENT],
        "nothing is known of 'u' yet; asked for 5 s: the relay at B (which may not carry it)",
    ),
    "its publisher, too": (
        "u", [SAID, FEED],
        f"nobody has published on 'u' yet; asked for 5 s: 'feed'. And {ONLY}",
    ),
    "both kinds of relays": (
        "u", [SAID, SILENT],
        "nothing is known of 'u' yet; asked for 5 s: the relay at B (which may not carry it). And "
        + ONLY,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("topic", "asked", "text"), CASES.values(), ids=CASES)
def test_what_is_said_is_true_where_relays_were_asked(topic, asked, text):
    topics = UnpublishedTopics([topic])
    topics.look(set(), asked, 0)
    assert topics.look(set(), asked, 5 * S) == [text]


def asked_of(talk):
    core = talk.core
    return who_was_asked(core.peers, core.relays.upstreams, ["tcp://p:1", "tcp://r:2"])


def test_who_answered_was_asked():
    talk = Relayed().two()
    assert asked_of(talk) == [
        Asked("'feed' at tcp://p:1"), Asked("the relay at tcp://r:2", []),
    ]  # fmt: skip
    talk = Relayed()
    talk.hear(welcome(name="tcp://p:1"))
    assert asked_of(talk) == []
    talk.hear(echo(talk.probe().probe, head(0)))
    assert asked_of(talk) == [Asked("'tcp://p:1'")]


def test_a_relay_without_sessions_was_asked_once_its_list_has_come():
    talk = Relayed().meet(served=())
    assert asked_of(talk) == [Asked("the relay at tcp://p:1", [])]
    talk.meet(OTHER, served=())
    talk.pass_ms(2000)
    talk.reply(sessions(relay=OTHER, carries=["t"]), session=OTHER)
    assert asked_of(talk) == [Asked("the relay at tcp://p:1", ["t"])]
