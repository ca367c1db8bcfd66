"""Peers with keys: what is delivered, and what comes of wrong, missing and changed keys."""

import asyncio
import contextlib
import logging
import threading
import time
from types import NoneType

import pytest

from p2pmsg import App, Publisher, Puller, Pusher, Relay, Requester, Responder, Subscriber, metrics
from p2pmsg.errors import AccessDeniedError, AuthenticationError, ConfigError
from p2pmsg.log import LogConfig
from p2pmsg.queue.admin import LiveBox
from p2pmsg.reader import HeadsWatch, RangeReader
from tests.endpoints import lasting_endpoint
from tests.integration.peers import LOOPBACK, eventually
from tests.integration.secure import rewrite
from transports.curve import key_text

TIMEOUT = 60.0


def received(subscriber, count):
    return [subscriber.receive(TIMEOUT).value for _ in range(count)]


def refused(call):
    """Call until it raises AuthenticationError, and return that."""
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        try:
            call()
        except AuthenticationError as error:
            return error
        except TimeoutError:
            pass
    raise AssertionError("it was not refused")


def healed(call):
    """Call until it is not refused any more, and return what it returns."""
    deadline = time.monotonic() + TIMEOUT
    while True:
        try:
            return call()
        except AuthenticationError:
            assert time.monotonic() < deadline


def test_a_log_a_cursor_and_a_relay(peers, tmp_path):
    log = LogConfig(tmp_path / "log")
    knows = peers.security("pub", "sub", "relay")
    with Publisher(LOOPBACK, security=knows, log=log, replay_bytes=0) as publisher:
        publisher.publish_many("t", list(range(100)))
        publisher.flush()
        up = peers.pinned(publisher.endpoint, "pub")
        relay = Relay(up, LOOPBACK, security=peers.security("relay", "sub"))
        with relay:
            relay.wait_for_streams(1, TIMEOUT)
            for number, place in enumerate((up, peers.pinned(relay.endpoint, "relay"))):
                cursor = tmp_path / f"cursor{number}"
                for first in (0, 50):
                    with Subscriber(
                        place, start="earliest", security=peers.security("sub"), cursor=cursor
                    ) as subscriber:
                        assert received(subscriber, 50) == list(range(first, first + 50))
                        subscriber.commit()


def test_that_a_subscriber_was_refused_is_said_at_both_ends(peers):
    with Publisher(LOOPBACK, security=peers.security("pub")) as publisher:
        place = peers.pinned(publisher.endpoint, "pub")
        with Subscriber(place, security=peers.security("sub")) as subscriber:
            for _ in range(2):  # again, at the next try
                assert refused(lambda: subscriber.receive(TIMEOUT))
            assert "does not admit" in subscriber.stats().lines[0].found
            with pytest.raises(TimeoutError, match="were refused by their keys"):
                publisher.wait_for_subscribers(1, 0.05)


def test_a_relay_that_is_not_known_logs_it_and_heals(peers, caplog):
    security = peers.security("pub")
    with Publisher(LOOPBACK, security=security) as publisher:
        publisher.publish("t", "secret")
        place = peers.pinned(publisher.endpoint, "pub")
        with Relay(place, LOOPBACK, security=peers.security("relay")) as relay:
            eventually(lambda: "does not admit our key" in caplog.text)
            assert publisher.endpoint in caplog.text
            assert relay.stats().received == 0
            security.known.add("relay", peers.text("relay"))
            relay.wait_for_streams(1, TIMEOUT)


def test_a_publisher_that_restarts_with_another_key(peers):
    first, second = peers.security("pub", "sub"), peers.security("new", "sub")
    security = peers.security("sub")
    place = lasting_endpoint()
    publisher = Publisher(place, security=first)
    security.known.add("pub", peers.text("pub"), [place])
    with Subscriber(place, security=security, start="earliest") as subscriber:
        publisher.publish("t", 1)
        assert received(subscriber, 1) == [1]
        publisher.close()
        with Publisher(place, security=second) as publisher:
            publisher.publish("t", 2)
            error = refused(lambda: subscriber.receive(TIMEOUT))
            assert f"does not hold the pinned key {first.fingerprint}" in error.reason
            with pytest.raises(AuthenticationError) as caught:
                security.known.add("pub", peers.text("new"))
            change = f"{first.fingerprint} is known, {second.fingerprint} is given"
            assert change in caught.value.reason
            security.known.add("pub", peers.text("new"), replace=True)
            assert healed(lambda: subscriber.receive(TIMEOUT)).value == 2
            publisher.publish_many("t", [3, 4])
            assert received(subscriber, 2) == [3, 4]


def test_two_lines_with_two_keys_and_one_that_is_refused(peers):
    peers.security("sub")
    with (
        Publisher(LOOPBACK, name="a", security=peers.security("a", "sub")) as a,
        Publisher(LOOPBACK, name="b", security=peers.security("b")) as b,
    ):
        places = [peers.pinned(a.endpoint, "a"), peers.pinned(b.endpoint, "b")]
        with Subscriber(places, security=peers.security("sub"), start="earliest") as subscriber:
            a.publish("t", "from a")
            b.publish("t", "from b")
            assert healed(lambda: subscriber.receive(TIMEOUT)).value == "from a"
            assert refused(lambda: subscriber.receive(TIMEOUT)).endpoint == b.endpoint


def test_mold_and_inproc_take_no_keys(peers):
    security = peers.security("pub")
    for make in (Publisher, Subscriber):
        with pytest.raises(ConfigError, match="udp://, tcp:// or ipc:// with security"):
            make("mold://239.7.7.7:7001?interface=127.0.0.1", security=security)
    with pytest.raises(ConfigError, match="stays within the process"):
        Publisher("inproc://x", security=security)


def test_only_a_known_collector_reads_metrics(peers):
    security = peers.security("client", "collector")
    with metrics.Client(LOOPBACK, security=security, interval=0, close_timeout=0) as client:
        client.increment("orders")
        place = peers.pinned(client.endpoint, "client")
        with Subscriber(place, security=peers.security("stranger")) as subscriber:
            assert refused(lambda: subscriber.receive(TIMEOUT))
        own = peers.security("collector")
        with Subscriber(place, security=own, start="earliest") as subscriber:
            assert subscriber.receive(TIMEOUT)
    with pytest.raises(ConfigError, match="security must be None with a plain StatsD server"):
        metrics.Client("udp://127.0.0.1:8125", security=security)


def test_no_secret_is_shown_anywhere(peers, caplog):
    with caplog.at_level(logging.DEBUG):
        security = peers.security("pub", "sub")
        own, other = peers.security("sub"), peers.security("other")
        shown = [repr(security), str(security), repr(security.known.peers())]
        with Publisher(LOOPBACK, security=security) as publisher:
            place = peers.pinned(publisher.endpoint, "pub")
            with (
                Subscriber(place, security=other) as refused_one,
                Subscriber(place, security=own) as subscriber,
            ):
                error = refused(lambda: refused_one.receive(TIMEOUT))
                publisher.wait_for_subscribers(1, TIMEOUT)
                shown += map(repr, (error, publisher, subscriber, publisher.stats()))
                shown += [repr(subscriber.stats()), repr(refused_one.stats())]
    text = caplog.text + "".join(shown)
    assert security.fingerprint in text
    for keys in peers.keys.values():
        for secret in (key_text(keys.secret), repr(keys.secret)[2:-1], keys.secret.hex()):
            assert secret not in text


def test_a_refusal_ends_no_app_which_goes_on_when_its_key_is_admitted(peers, caplog):
    security, own = peers.security("server"), peers.security("app")
    with (
        Publisher(LOOPBACK, security=security) as publisher,
        Pusher(LOOPBACK, security=security) as pusher,
    ):
        publisher.publish("t", "message")
        pusher.push("job")
        app, seen = App(stop_timeout=10.0), []

        def took(value):
            seen.append(value)
            if len(seen) == 2:
                app.stop()

        @app.subscriber(
            peers.pinned(publisher.endpoint, "server"), topics=["t"], start="earliest", security=own
        )
        async def on_message(value: str):
            took(value)

        @app.worker(peers.pinned(pusher.endpoint, "server"), security=own)
        async def on_job(value: str):
            took(value)

        def admit():
            eventually(lambda: caplog.text.count("does not admit our key") >= 2)
            security.known.add("app", peers.text("app"))

        threading.Thread(target=admit, daemon=True).start()
        asyncio.run(asyncio.wait_for(app.serve(), 60))
        assert sorted(seen) == ["job", "message"]


def test_dead_letters_over_the_wire(peers):
    security = peers.security("pusher", "admin")
    with Pusher(LOOPBACK, security=security, deliveries_max=1) as pusher:
        place = peers.pinned(pusher.endpoint, "pusher")
        pusher.push("bad")
        with Puller(place, security=peers.security("pusher")) as puller:
            puller.receive(TIMEOUT).discard("no good")
            eventually(lambda: pusher.stats().dead == 1)
        with contextlib.closing(LiveBox(place, TIMEOUT, peers.security("admin"))) as box:
            assert [letter.value for letter in box.list()] == ["bad"]
            assert box.act("purge", [], True) == 1
        with contextlib.closing(LiveBox(place, TIMEOUT, peers.security("stranger"))) as box:
            with pytest.raises(AuthenticationError, match="does not admit our key"):
                box.list()
        with contextlib.closing(LiveBox(pusher.endpoint, 0.2)) as box:
            with pytest.raises(AuthenticationError, match="needs keys"):
                box.list()


DOUBLE = {"double": lambda n: 2 * n}


def test_a_responder_with_another_key_and_one_that_is_right(peers):
    security = peers.security("client")
    with (
        Responder(LOOPBACK, DOUBLE, security=peers.security("a", "client")) as wrong,
        Responder(LOOPBACK, DOUBLE, security=peers.security("b", "client")) as right,
    ):
        places = [peers.pinned(wrong.endpoint, "b"), peers.pinned(right.endpoint, "b")]
        with Requester(places, security=security) as requester:
            assert requester.request("double", 1, timeout=TIMEOUT) == 2
            answers = {
                one.endpoint: (one.value, type(one.error))
                for one in requester.request_all("double", 1, deadline=TIMEOUT)
            }
            assert answers == {
                right.endpoint: (2, NoneType), wrong.endpoint: (None, AuthenticationError)
            }  # fmt: skip
        with Requester(places[0], security=security) as requester:
            with pytest.raises(AuthenticationError, match="does not hold the pinned key"):
                requester.request("double", 1, timeout=TIMEOUT)


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
        eventually(lambda: "does not admit our key" in watch.heads()[up].unanswered)
        assert not watch.heads()[up].sessions
        peers.security("pub", "stranger")
        assert watch.wait_until_asked(TIMEOUT)
        assert watch.heads()[up].only.streams["t"].next == 100
        eventually(lambda: not watch.heads()[up].unanswered)


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
            eventually(lambda: set(watch.heads()[up].only.streams) == {"t"})
            assert [*watch.heads()[up].denied] == ["hidden"]
            rewrite(access, "[[rule]]\nwho = ['reader']\nsubscribe = ['t', 'hidden']\n")
            security.grants._due_ns = 0
            eventually(lambda: not watch.heads()[up].denied)
            assert watch.wait_until_asked(TIMEOUT)
