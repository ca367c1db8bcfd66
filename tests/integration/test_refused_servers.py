"""Who refuses a server says why, and not that nobody answers there."""

import logging

import pytest

import p2pmsg
from p2pmsg.errors import AccessDeniedError
from tests.endpoints import lasting_endpoint
from tests.integration.inside import is_watched
from tests.integration.peers import LOOPBACK, eventually

NO_RIGHT = "its key has no right to publish anything here"


@pytest.fixture(autouse=True)
def _warnings(caplog):
    caplog.set_level(logging.WARNING, "p2pmsg")


def said(caplog):
    return [text for text in caplog.messages if "has answered" in text or "allowed" in text]


def test_a_relay_in_a_loop_names_the_upstream_that_it_refuses(make_relay, caplog):
    first, second = lasting_endpoint(), lasting_endpoint()
    relays = [make_relay(second, first, name="r0"), make_relay(first, second, name="r1")]
    eventually(lambda: "a loop" in caplog.text)
    lines = [text for text in caplog.messages if "a loop" in text]
    assert lines[0] in (
        f"the relay 'r0' refuses {second}: it gets what it has from this relay: a loop",
        f"the relay 'r1' refuses {first}: it gets what it has from this relay: a loop",
    )
    at = 0 if "'r0'" in lines[0] else 1
    eventually(lambda: not is_watched(relays[at]))
    assert said(caplog) == []
    assert relays[at].stats().unanswered == {}

    def refused_now():
        stats = relays[at].stats()
        return stats.refused and stats.refusals

    upstream = [second, first][at]
    assert eventually(refused_now) == {upstream: "it gets what it has from this relay: a loop"}


def open_feed(peers, opened, tmp_path):
    """Open a publisher that has no right to publish at `mine`; return its place and that of."""
    rules = tmp_path / "rules.toml"
    rules.write_text("[[rule]]\nwho = ['*']\nsubscribe = ['*']\n")
    mine = peers.security("mine", "feed", access=rules)
    feed = p2pmsg.Publisher(LOOPBACK, name="feed", security=peers.security("feed", "mine"))
    opened.callback(feed.close, 0.0)
    return feed, peers.pinned(feed.endpoint, "feed"), mine


def test_a_subscriber_says_once_that_a_publisher_has_no_right(
    make_subscriber, peers, opened, tmp_path, caplog
):
    _, where, mine = open_feed(peers, opened, tmp_path)
    subscriber = make_subscriber(where, security=mine)
    with pytest.raises(AccessDeniedError):
        subscriber.receive(60)

    def is_settled():
        with pytest.raises(TimeoutError):
            subscriber.receive(0.01)
        return not is_watched(subscriber)

    eventually(is_settled)
    assert len(said(caplog)) == 1
    assert "publish '*' is not allowed" in said(caplog)[0]
    assert eventually(lambda: subscriber.stats().lines[0].found) == NO_RIGHT
