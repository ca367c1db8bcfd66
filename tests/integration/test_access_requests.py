"""AccessRules to request and to respond, between real requesters and responders with keys."""

import threading

import pytest

from p2pmsg import Requester, Responder
from p2pmsg.errors import AccessDeniedError
from tests.integration import inside
from tests.integration.peers import LOOPBACK, eventually
from tests.integration.test_access_queue import change, denied

TIMEOUT = 60.0
ANN = "[[rule]]\nwho = ['ann']\nrequest = ['price', 'wait']\nrespond = ['*']\n"
BOB = "[[rule]]\nwho = ['bob']\nrequest = ['load*']\n"


@pytest.fixture
def access(tmp_path):
    path = tmp_path / "access.toml"
    path.write_text(ANN + BOB)
    return path


@pytest.fixture
def server(peers, access):
    return peers.security("server", "ann", "bob", access=access)


def ask(requester, topic="price", **options):
    return requester.request(topic, 1, timeout=TIMEOUT, **options)


def test_what_a_key_may_not_ask_is_denied_at_once_and_reaches_no_handler(
    peers, server, access, caplog
):
    asked = []

    def price(value):
        asked.append(value)
        return "secret"

    with Responder(LOOPBACK, {"price": price, "load": lambda _: 3}, security=server) as responder:
        place = peers.pinned(responder.endpoint, "server")
        with (
            Requester(place, security=peers.security("ann")) as ann,
            Requester(place, security=peers.security("bob")) as bob,
        ):
            assert ask(ann) == "secret"
            assert ask(bob, "load") == 3
            error = denied(lambda: ask(bob))
            assert (error.verb, error.topic) == ("request", "price")
            assert "no rule gives it" in error.reason
            assert denied(lambda: ask(bob, "none")).topic == "none"  # whether it is there or not
            answers = bob.request_all("price", 1, deadline=TIMEOUT)
            assert [type(one.error) for one in answers] == [AccessDeniedError]
            assert asked == [1]
            assert responder.stats().denied == 3
            assert "denied: 'bob' request 'price': no rule gives it" in caplog.text
            # The answer to another's request, which is kept, is not for bob.
            inside.asks_as(bob, ann)
            assert denied(lambda: ask(bob)).topic == "price"
            change(server, access, ANN + BOB.replace("load*", "*"))
            eventually(lambda: server.grants.refresh() or server.grants.may(
                peers.text("bob"), "request", "price"))  # fmt: skip
            inside.asks_as(bob, ann)
            assert ask(bob) == "secret"
            assert asked == [1, 1]


@pytest.mark.parametrize("threads", [1, 2])
def test_who_loses_the_right_while_it_waits_gets_no_answer(peers, server, access, threads):
    begun, go_on = threading.Event(), threading.Event()

    def wait(_):
        begun.set()
        go_on.wait(TIMEOUT)
        return "secret"

    with Responder(LOOPBACK, {"wait": wait}, threads=threads, security=server) as responder:
        place = peers.pinned(responder.endpoint, "server")
        with Requester(place, security=peers.security("ann")) as ann:
            found = []
            thread = threading.Thread(
                target=lambda: found.append(denied(lambda: ask(ann, "wait", attempts_max=1)))
            )
            thread.start()
            assert begun.wait(TIMEOUT)
            change(server, access, BOB)
            eventually(lambda: server.grants.refresh() or not server.grants.may(
                peers.text("ann"), "request", "wait"))  # fmt: skip
            go_on.set()
            thread.join(TIMEOUT)
            assert found[0].topic == "wait"


def test_another_responder_that_allows_it_is_asked(peers, server, access):
    with (
        Responder(LOOPBACK, {"price": lambda _: "denied"}, security=server) as strict,
        Responder(LOOPBACK, {"price": lambda _: 7}, security=peers.security("open", "bob")) as free,
    ):
        places = [
            peers.pinned(strict.endpoint, "server"), peers.pinned(free.endpoint, "open")
        ]  # fmt: skip
        with Requester(places, security=peers.security("bob")) as bob:
            assert bob.request("price", 1, timeout=1000) == 7  # it is asked again after 333 s
            answers = [*bob.request_all("price", 1, deadline=TIMEOUT)]
            assert [one.value for one in answers if one.error is None] == [7]
            assert len(answers) == 2


def test_a_responder_whose_key_may_not_respond_is_not_asked(peers, server, tmp_path):
    rules = tmp_path / "rules.toml"
    rules.write_text("[[rule]]\nwho = ['server']\nrespond = ['load']\n")
    own = peers.security("ann", "server", access=rules)
    asked = []
    with Responder(LOOPBACK, {"price": asked.append}, security=server) as responder:
        place = peers.pinned(responder.endpoint, "server")
        with Requester(place, security=own) as ann:
            error = denied(lambda: ask(ann))
            assert (error.verb, error.topic) == ("respond", "price")
            answers = ann.request_all("price", 1, deadline=TIMEOUT)
            assert [one.error.verb for one in answers] == ["respond"]
            assert asked == []
            change(own, rules, "[[rule]]\nwho = ['server']\nrespond = ['price']\n")
            assert ask(ann) is None
            assert asked == [1]
