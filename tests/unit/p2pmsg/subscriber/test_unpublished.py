"""Topics that nobody publishes."""

from p2pmsg.subscriber.unpublished import UnpublishedTopics

S = 10**9


def test_a_topic_that_nobody_has_is_named_once_with_similar_ones():
    topics = UnpublishedTopics(["trads", "sports", "quotes.*", "trads"])
    known = {"trades", "sports", "quotes.btc"}

    assert topics.look(known, ["feed"], 1 * S) == []
    assert topics.look(known, ["feed"], 5 * S) == []
    assert topics.look(known, ["feed"], 6 * S) == [
        "nobody has published on 'trads' yet; asked for 5 s: 'feed'. Similar topics: 'trades'"
    ]
    assert topics.next_ns > 10**9 * S


def test_nothing_is_said_of_prefixes_or_before_anybody_was_asked():
    assert UnpublishedTopics(["trades.*", "*"]).next_ns > 10**9 * S
    topics = UnpublishedTopics(["t"])
    assert topics.look(set(), [], 0) == topics.look(set(), [], 60 * S) == []
    assert topics.next_ns == 61 * S
    assert topics.look(set(), ["feed"], 61 * S) == []
    assert topics.look({"t"}, ["feed"], 62 * S) == []
    assert topics.look(set(), ["feed"], 99 * S) == []


def test_of_many_topics_and_publishers_a_few_are_named():
    topics = UnpublishedTopics(f"t{number}" for number in range(1000))
    names = [f"p{number}" for number in range(9)]
    topics.look(set(), names, 0)

    said = topics.look(set(), names, 5 * S)

    assert len(said) == 9
    assert said[0].endswith("'p0', 'p1', 'p2', 'p3' and 5 others")
    assert said[-1] == "nobody has published on 992 other topics yet"
