"""Topics that nobody publishes."""

import pytest

from p2pmsg.subscriber.missing_topics import Asked, MissingTopics

S = 10**9
FEED = Asked("'feed'")


def test_a_topic_that_nobody_has_is_named_once_with_similar_ones():
    topics = MissingTopics(["trads", "sports", "quotes.*", "trads"])
    known = {"trades", "sports", "quotes.btc"}

    assert topics.check(known, [FEED], 1 * S) == []
    assert topics.check(known, [FEED], 5 * S) == []
    assert topics.check(known, [FEED], 6 * S) == [
        "nobody has published on 'trads' yet; asked for 5 s: 'feed'. Similar topics: 'trades'"
    ]
    assert topics.next_ns > 10**9 * S


@pytest.mark.parametrize(("asked", "published"), [("caf\xe9", "cafe\u0301"), ("\u212b", "\xc5")])
def test_a_topic_that_differs_only_by_normalization_is_named_with_what_differs(asked, published):
    topics = MissingTopics([asked])
    topics.check({published}, [FEED], 0)
    (said,) = topics.check({"other", published, "cafes"}, [FEED], 5 * S)
    assert said == (
        f"nobody has published on {asked!r} yet; asked for 5 s: 'feed'. Published is "
        f"{published!a}, the same text in another Unicode normalization than {asked!a}"
    )


def test_of_many_topics_and_publishers_a_few_are_named():
    topics = MissingTopics(f"t{number}" for number in range(1000))
    names = [Asked(f"'p{number}'") for number in range(9)]
    topics.check(set(), names, 0)

    said = topics.check(set(), names, 5 * S)

    assert len(said) == 9
    assert said[0].endswith("'p0', 'p1', 'p2', 'p3' and 5 others")
    assert said[-1] == "nobody has published on 992 other topics yet"
