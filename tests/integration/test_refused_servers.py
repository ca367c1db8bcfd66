"""Who refuses a server says why, and not that nobody answers there."""

import logging

import pytest

import p2pmsg
from p2pmsg import aio
from p2pmsg.errors import AccessDeniedError
from tests.endpoints import lasting_endpoint
from tests.integration.inside import is_watched
from tests.integration.looped import Looped
from tests.integration.peers import LOOPBACK, eventually

NO_RIGHT = "its key has no right to publish anything here"


@pytest.fixture(autouse=True)
def _warnings(caplog):
    caplog.set_level(logging.WARNING, "p2pmsg")


@pytest.fixture
def make(opened):
    """Make a peer of threads or of asyncio."""

    def make(kind, *arguments, **options):
        no_wait = [0.0] if kind.__name__ == "Relay" else []
        if kind.__module__.startswith(("p2pmsg.aio", "p2pmsg.peers.loop")):
            made = Looped(kind, *arguments, **options)
            opened.callback(made._loop.close)
            opened.callback(made.close, *no_wait)
            return made, made.peer
        made = kind(*arguments, **options)
        opened.callback(made.close, *no_wait)
        return made, made

    return make


def said(caplog):
    return [text for text in caplog.messages if "has answered" in text or "allowed" in text]


@pytest.mark.parametrize("kind", [p2pmsg.Relay, aio.Relay], ids=["threads", "asyncio"])
def test_a_relay_in_a_loop_names_the_upstream_that_it_refuses(make, caplog, kind):
    first, second = lasting_endpoint(), lasting_endpoint()
    relays = [make(kind, second, first, name="r0"), make(kind, first, second, name="r1")]
    eventually(lambda: "a loop" in caplog.text)
    lines = [text for text in caplog.messages if "a loop" in text]
    assert lines[0] in (
        f"the relay 'r0' refuses {second}: it gets what it has from this relay: a loop",
        f"the relay 'r1' refuses {first}: it gets what it has from this relay: a loop",
    )
    at = 0 if "'r0'" in lines[0] else 1
    eventually(lambda: not is_watched(relays[at][1]))
    assert said(caplog) == []
    assert relays[at][0].stats().unanswered == {}

    def refused_now():
        stats = relays[at][0].stats()
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


@pytest.mark.parametrize("kind", [p2pmsg.Subscriber, aio.Subscriber], ids=["threads", "asyncio"])
def test_a_subscriber_says_once_that_a_publisher_has_no_right(
    make, peers, opened, tmp_path, caplog, kind
):
    _, where, mine = open_feed(peers, opened, tmp_path)
    subscriber, peer = make(kind, where, security=mine)
    with pytest.raises(AccessDeniedError):
        subscriber.receive(60)

    def is_settled():
        with pytest.raises(TimeoutError):
            subscriber.receive(0.01)
        return not is_watched(peer)

    eventually(is_settled)
    assert len(said(caplog)) == 1
    assert "publish '*' is not allowed" in said(caplog)[0]
    assert eventually(lambda: subscriber.stats().lines[0].found) == NO_RIGHT
