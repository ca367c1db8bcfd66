"""Topics that nobody publishes."""

from p2pmsg.subscriber.missing_topics import MissingTopics

S = 10**9


def test_a_topic_that_nobody_has_is_named_once_with_similar_ones():
    topics = MissingTopics(["trads", "sports", "quotes.*", "trads"])
    known = {"trades", "sports", "quotes.btc"}

    assert topics.check(known, ["'feed'"], 1 * S) == []
    assert topics.check(known, ["'feed'"], 5 * S) == []
    assert topics.check(known, ["'feed'"], 6 * S) == [
        "nobody has 'trads' yet; asked for 5 s: 'feed'. Similar topics: 'trades'"
    ]
    assert topics.next_ns > 10**9 * S


def test_of_many_topics_and_publishers_a_few_are_named():
    topics = MissingTopics(f"t{number}" for number in range(1000))
    names = [f"'p{number}'" for number in range(9)]
    topics.check(set(), names, 0)

    said = topics.check(set(), names, 5 * S)

    assert len(said) == 9
    assert said[0].endswith("'p0', 'p1', 'p2', 'p3' and 5 others")
    assert said[-1] == "nobody has 992 other topics yet"
