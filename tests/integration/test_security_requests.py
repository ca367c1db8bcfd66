"""Requesters and responders with keys."""

import logging

import pytest

from p2pmsg import Requester, Responder
from p2pmsg.errors import AuthenticationError
from tests.integration.test_security import healed

LOOPBACK = "tcp://127.0.0.1:0"
TIMEOUT = 60.0
DOUBLE = {"double": lambda n: 2 * n}


def test_a_request_and_one_that_is_refused_and_heals(peers, caplog):
    security, stranger = peers.security("server", "client"), peers.security("stranger")
    with (
        caplog.at_level(logging.WARNING, "p2pmsg"),
        Responder(LOOPBACK, DOUBLE, security=security) as responder,
    ):
        place = peers.pinned(responder.endpoint, "server")
        with Requester(place, security=peers.security("client")) as requester:
            assert requester.request("double", 21, timeout=TIMEOUT) == 42
            answers = requester.request_all("double", 2, deadline=TIMEOUT)
            assert list(answers.values.values()) == [4]
        assert responder.connections_refused == 0
        with Requester(place, security=stranger) as requester:
            with pytest.raises(AuthenticationError) as caught:
                requester.request("double", 1, timeout=TIMEOUT)
            assert f"does not admit our key {stranger.fingerprint}" in caught.value.reason
            assert caught.value.endpoint == responder.endpoint
            answers = requester.request_all("double", 2, deadline=TIMEOUT)
            (error,) = answers.errors.values()
            assert isinstance(error, AuthenticationError)
            assert responder.connections_refused
            security.known.add("stranger", peers.text("stranger"))
            assert healed(lambda: requester.request("double", 4, timeout=TIMEOUT)) == 8
    assert "not among the known peers" in caplog.text


def test_a_responder_with_another_key_and_one_that_is_right(peers):
    security = peers.security("client")
    with (
        Responder(LOOPBACK, DOUBLE, security=peers.security("a", "client")) as wrong,
        Responder(LOOPBACK, DOUBLE, security=peers.security("b", "client")) as right,
    ):
        places = [peers.pinned(wrong.endpoint, "b"), peers.pinned(right.endpoint, "b")]
        with Requester(places, security=security) as requester:
            assert requester.request("double", 1, timeout=TIMEOUT) == 2
            answers = requester.request_all("double", 1, deadline=TIMEOUT)
            assert answers.values == {right.endpoint: 2}
            assert list(answers.errors) == [wrong.endpoint]
        with Requester(places[0], security=security) as requester:
            with pytest.raises(AuthenticationError, match="does not hold the pinned key"):
                requester.request("double", 1, timeout=TIMEOUT)


def test_keys_on_one_side_only(peers):
    with (
        Responder(LOOPBACK, DOUBLE) as plain,
        Responder(LOOPBACK, DOUBLE, security=peers.security("server", "client")) as secure,
    ):
        security = peers.security("client")
        with Requester(peers.pinned(plain.endpoint, "server"), security=security) as requester:
            with pytest.raises(AuthenticationError, match="has no security"):
                requester.request("double", 1, timeout=TIMEOUT)
        with Requester(secure.endpoint) as requester:
            with pytest.raises(AuthenticationError, match="needs keys"):
                requester.request("double", 1, timeout=1.0)
        with pytest.raises(AuthenticationError, match="no key is pinned"):
            Requester(secure.endpoint, security=security)
