"""Range readers and the heads watch with keys."""

import pytest

from p2pmsg import Publisher, Relay
from p2pmsg.errors import AccessDeniedError
from p2pmsg.reader import HeadsWatch, RangeReader
from tests.integration.peers import LOOPBACK, eventually
from tests.integration.secure import rewrite

TIMEOUT = 60.0


@pytest.fixture
def publisher(peers):
    with Publisher(LOOPBACK, security=peers.security("pub", "reader", "relay")) as made:
        made.publish_many("t", list(range(100)))
        made.flush()
        yield made


def values(reader, **options):
    return [one for batch in reader.fetch("t", 0, 100, **options) for one in batch.values]


def test_ranges_of_a_publisher_and_of_a_relay(peers, publisher):
    up, security = peers.pinned(publisher.endpoint, "pub"), peers.security("reader")
    with RangeReader(up, timeout=TIMEOUT, security=security) as reader:
        heads = reader.heads()
        assert heads.streams["t"].next == 100
        assert values(reader) == list(range(100))
    with RangeReader(
        up, timeout=TIMEOUT, security=security, session=heads.session,
        recovery_endpoint=heads.recovery_endpoint,
    ) as reader:  # fmt: skip
        assert values(reader, session=heads.session) == list(range(100))
    with Relay(up, LOOPBACK, security=peers.security("relay", "reader")) as relay:
        relay.wait_for_streams(1, TIMEOUT)
        place = peers.pinned(relay.endpoint, "relay")
        with RangeReader(place, timeout=TIMEOUT, security=security) as reader:
            assert [one.session for one in reader.sessions()] == [heads.session]


def test_a_heads_watch_that_is_refused_and_heals(peers, publisher):
    up, stranger = peers.pinned(publisher.endpoint, "pub"), peers.security("stranger")
    with HeadsWatch([up], topics=["t"], security=stranger) as watch:
        eventually(lambda: "does not admit our key" in watch.unanswered().get(up, ""))
        assert watch.heads() == {up: None}
        peers.security("pub", "stranger")
        assert watch.wait_until_asked(TIMEOUT)
        assert watch.heads()[up].streams["t"].next == 100
        eventually(lambda: watch.unanswered() == {})


def test_what_a_reader_may_not_read_is_raised(peers, tmp_path):
    access = tmp_path / "access.toml"
    access.write_text("[[rule]]\nwho = ['reader']\nsubscribe = ['t']\n")
    security = peers.security("pub", "reader", access=access)
    with Publisher(LOOPBACK, security=security) as publisher:
        for topic in ("t", "hidden"):
            publisher.publish_many(topic, list(range(10)))
        publisher.flush()
        up = peers.pinned(publisher.endpoint, "pub")
        with RangeReader(up, timeout=TIMEOUT, security=peers.security("reader")) as reader:
            assert set(reader.heads().streams) == {"t"}
            assert set(reader.heads(topics=["t", "hidden", "t*", "*"]).streams) == {"t"}
            assert {each: error.topic for each, error in reader.denied.items()} == {
                each: each for each in ("hidden", "t*", "*")
            }
            assert reader.heads(topics=["hidden"]).streams == {}
            assert "no rule gives it" in reader.denied["hidden"].reason
            assert set(reader.heads(topics=["t"]).streams) == {"t"}
            assert reader.denied == {}
            denied = reader.fetch("hidden", 0, 10)
            for _ in range(2):
                with pytest.raises(AccessDeniedError) as caught:
                    next(denied)
                assert (caught.value.verb, caught.value.topic) == ("subscribe", "hidden")
            assert [one for batch in reader.fetch("t", 0, 10) for one in batch.values] == [
                *range(10)
            ]
        with HeadsWatch([up], topics=["t", "hidden"], security=peers.security("reader")) as watch:
            with pytest.raises(AccessDeniedError, match="subscribe 'hidden'"):
                watch.wait_until_asked(TIMEOUT)
            eventually(lambda: set(watch.heads()[up].streams) == {"t"})
            assert [error.topic for error in watch.denied()[up]] == ["hidden"]
            rewrite(access, "[[rule]]\nwho = ['reader']\nsubscribe = ['t', 'hidden']\n")
            security.grants._due_ns = 0
            eventually(lambda: watch.denied() == {})
            assert watch.wait_until_asked(TIMEOUT)
