"""Pushers, pullers, pipelines and the administration of dead letters with keys."""

import contextlib

import pytest

from p2pmsg import Puller, Pusher
from p2pmsg.errors import AuthenticationError
from p2pmsg.queue.admin import LiveBox
from tests.integration.peers import LOOPBACK, eventually

TIMEOUT = 60.0


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
