"""Pushers, pullers, pipelines and the administration of dead letters with keys."""

import contextlib

import pytest

from p2pmsg import Puller, Pusher
from p2pmsg.errors import AuthenticationError
from p2pmsg.queue.admin import LiveBox
from tests.integration.secure import take_job
from tests.integration.test_security import healed, refused
from tests.unit.transports.sockets import eventually

LOOPBACK = "tcp://127.0.0.1:0"
TIMEOUT = 60.0
MODES = pytest.mark.parametrize("mode", ["each", "batch"])


@MODES
def test_jobs_and_a_puller_that_is_refused_and_heals(peers, mode):
    security, stranger = peers.security("pusher", "puller"), peers.security("stranger")
    with Pusher(LOOPBACK, security=security, acknowledge=mode) as pusher:
        place = peers.pinned(pusher.endpoint, "pusher")
        with Puller(place, security=peers.security("puller"), acknowledge=mode) as puller:
            for number in range(100):
                pusher.push(number)
            assert [take_job(puller, mode) for _ in range(100)] == list(range(100))
            pusher.join(TIMEOUT)
        assert pusher.stats().connections_refused == 0
        with Puller(place, security=stranger, acknowledge=mode) as puller:
            pusher.push("secret")
            error = refused(lambda: puller.receive(TIMEOUT))
            assert f"does not admit our key {stranger.fingerprint}" in error.reason
            assert error.endpoint == pusher.endpoint
            assert pusher.stats().connections_refused
            if mode == "each":
                assert "does not admit" in next(iter(puller.stats().unanswered.values()))
            security.known.add("stranger", peers.text("stranger"))
            assert healed(lambda: take_job(puller, mode)) == "secret"
            pusher.join(TIMEOUT)


@MODES
def test_a_pusher_with_another_key_or_none(peers, mode):
    with (
        Pusher(LOOPBACK, security=peers.security("other", "puller"), acknowledge=mode) as other,
        Pusher(LOOPBACK, acknowledge=mode) as plain,
    ):
        peers.security("pusher")
        security = peers.security("puller")
        for pusher, found in ((other, "does not hold the pinned key"), (plain, "has no security")):
            place = peers.pinned(pusher.endpoint, "pusher")
            with Puller(place, security=security, acknowledge=mode) as puller:
                assert found in refused(lambda each=puller: each.receive(TIMEOUT)).reason
        with pytest.raises(AuthenticationError, match="no key is pinned"):
            Puller(other.endpoint, security=security, acknowledge=mode)


@pytest.mark.internal
def test_a_puller_without_keys(peers):
    with (
        Pusher(LOOPBACK, security=peers.security("pusher")) as pusher,
        Puller(pusher.endpoint) as puller,
    ):
        puller._peer._unanswered.next_ns = 0
        puller._peer._unanswered._waiting = {0: 0}
        assert "needs keys" in refused(lambda: puller.receive(TIMEOUT)).reason


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
