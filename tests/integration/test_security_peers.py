"""What holds of every peer with keys: strangers are refused and heal; another key, and none."""

import contextlib
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest

from p2pmsg import Publisher, Puller, Pusher, Requester, Responder, Subscriber, unanswered
from p2pmsg.bridge import Bridge
from p2pmsg.errors import AuthenticationError, ConfigError
from p2pmsg.queue.admin import LiveBox
from p2pmsg.reader import HeadsWatch, RangeReader
from tests.integration.peers import LOOPBACK, eventually
from tests.integration.secure import take_job
from tests.integration.test_security import TIMEOUT, healed, refused

VALUE = "secret"


class Kind(NamedTuple):
    """A peer that binds, one that connects, and how a value gets from the one to the other."""

    binds: Callable[..., Any]
    connects: Callable[..., Any]
    give: Callable[[Any], Any]
    take: Callable[[Any, float], Any]


def publish(publisher):
    publisher.publish("t", VALUE)
    publisher.flush()


def queue(mode):
    return Kind(
        partial(Pusher, LOOPBACK, acknowledge=mode),
        partial(Puller, acknowledge=mode),
        lambda pusher: pusher.push(VALUE),
        lambda puller, timeout: take_job(puller, mode, timeout),
    )


KINDS = {
    "subscriber": Kind(
        partial(Publisher, LOOPBACK),
        partial(Subscriber, start="earliest"),
        publish,
        lambda subscriber, timeout: subscriber.receive(timeout).value,
    ),
    "puller": queue("each"),
    "puller by the batch": queue("batch"),
    "requester": Kind(
        partial(Responder, LOOPBACK, {"t": lambda value: value}),
        Requester,
        lambda responder: None,
        lambda requester, timeout: requester.request("t", VALUE, timeout=timeout),
    ),
    "reader": Kind(
        partial(Publisher, LOOPBACK),
        partial(RangeReader, timeout=TIMEOUT),
        publish,
        lambda reader, timeout: next(reader.fetch("t", 0, 1)).values[0],
    ),
}


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


def connections_refused(bound):
    return (
        bound.stats().connections_refused if hasattr(bound, "stats") else bound.connections_refused
    )


def test_who_is_known_gets_it_and_a_stranger_is_refused_and_heals(kind, peers, caplog):
    caplog.set_level(logging.WARNING, "p2pmsg")
    security, stranger = peers.security("server", "known"), peers.security("stranger")
    with kind.binds(security=security) as bound:
        place = peers.pinned(bound.endpoint, "server")
        kind.give(bound)
        with kind.connects(place, security=peers.security("known")) as peer:
            assert kind.take(peer, TIMEOUT) == VALUE
        assert connections_refused(bound) == 0
        kind.give(bound)
        with kind.connects(place, security=stranger) as peer:
            error = refused(lambda: kind.take(peer, TIMEOUT))
            assert error.endpoint == bound.endpoint
            assert f"does not admit our key {stranger.fingerprint}" in error.reason
            eventually(lambda: connections_refused(bound))
            security.known.add("stranger", peers.text("stranger"))
            assert healed(lambda: kind.take(peer, TIMEOUT)) == VALUE
    assert f"key {peers.text('stranger')} from 127.0.0.1: not among the known peers" in caplog.text


def test_another_key_or_none_at_the_place_is_named(kind, peers):
    peers.security("server")
    own = peers.security("own")
    with kind.binds(security=peers.security("other", "own")) as other, kind.binds() as plain:
        for bound, found in ((other, "does not hold the pinned key"), (plain, "has no security")):
            place = peers.pinned(bound.endpoint, "server")
            with kind.connects(place, security=own) as peer:
                assert found in refused(lambda one=peer: kind.take(one, TIMEOUT)).reason
        with pytest.raises(AuthenticationError, match="no key is pinned"):
            kind.connects(other.endpoint, security=own)


@pytest.mark.internal
def test_who_has_no_keys_learns_that_they_are_needed(kind, peers, monkeypatch):
    monkeypatch.setattr(unanswered, "FIRST_NS", 10**8)
    with kind.binds(security=peers.security("server")) as bound:
        with kind.connects(bound.endpoint) as peer:
            # A requester says it when its time is over.
            assert "needs keys" in refused(lambda: kind.take(peer, 1.0)).reason


PLACE = f"tcp://127.0.0.1:1?key={'A' * 43}"
OPEN = "tcp://127.0.0.1:1"
CONNECT = {
    "subscriber": lambda: Subscriber(PLACE),
    "requester": lambda: Requester(PLACE),
    "one of several": lambda: Requester([OPEN, PLACE]),
    "puller": lambda: Puller(PLACE),
    "pipeline": lambda: Puller(PLACE, acknowledge="batch"),
    "dead letters": lambda: LiveBox(PLACE, 1.0),
    "range reader": lambda: RangeReader(PLACE),
    "its recovery": lambda: RangeReader(OPEN, recovery_endpoint=PLACE, session=1),
    "heads watch": lambda: HeadsWatch([PLACE]),
    "bridge": lambda: Bridge(PLACE, "zmq+push://127.0.0.1:1"),
    "bridge's puller": lambda: Bridge(f"queue+{PLACE}", "zmq+push://127.0.0.1:1"),
}


@pytest.mark.parametrize("connect", CONNECT.values(), ids=CONNECT)
def test_a_pinned_key_is_not_dropped(connect):
    """An endpoint that pins a key is never connected to without security."""
    refusal = pytest.raises(ConfigError, match="security must be given where an endpoint pins")
    with refusal, contextlib.closing(connect()):
        pass


def test_readers_take_no_keys_over_udp(peers):
    group = "udp://239.7.7.7:7001?interface=127.0.0.1"
    for make in (RangeReader, lambda at, security: HeadsWatch([at], security=security)):
        with pytest.raises(ConfigError, match="tcp:// or ipc:// with security"):
            make(group, security=peers.security("reader"))
