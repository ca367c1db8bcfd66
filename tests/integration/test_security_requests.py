"""Requesters and responders with keys."""

import pytest

from p2pmsg import Requester, Responder
from p2pmsg.errors import AuthenticationError
from tests.integration.peers import LOOPBACK

TIMEOUT = 60.0
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
            answers = requester.request_all("double", 1, deadline=TIMEOUT)
            assert answers.values == {right.endpoint: 2}
            assert list(answers.errors) == [wrong.endpoint]
        with Requester(places[0], security=security) as requester:
            with pytest.raises(AuthenticationError, match="does not hold the pinned key"):
                requester.request("double", 1, timeout=TIMEOUT)
