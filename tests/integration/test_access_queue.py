"""AccessRules to push, pull and administer, between real pushers and pullers with keys."""

import contextlib

import pytest

from p2pmsg import Puller, Pusher
from p2pmsg.errors import AccessDeniedError
from p2pmsg.queue import PusherConfig
from p2pmsg.queue.admin import LiveBox
from tests.integration.peers import LOOPBACK, eventually
from tests.integration.secure import rewrite, take_job

TIMEOUT = 60.0
MODES = pytest.mark.parametrize("mode", ["each", "batch"])
ANN = "[[rule]]\nwho = ['ann']\npull = ['jobs']\npush = ['jobs']\n"
BOB = "[[rule]]\nwho = ['bob']\npull = ['job*']\n"
DENY = "[[rule]]\nwho = ['b*']\ndeny = true\npull = ['jobs']\n"


@pytest.fixture
def access(tmp_path):
    path = tmp_path / "access.toml"
    path.write_text(ANN)
    return path


@pytest.fixture
def server(peers, access):
    return peers.security("server", "ann", "bob", "eve", access=access)


def change(security, path, text):
    """Have rules hold now, and not within a second."""
    rewrite(path, text)
    security.grants._due_ns = 0


def denied(call):
    """Return what a call is denied, within a minute."""
    with pytest.raises(AccessDeniedError) as caught:
        call()
    return caught.value


def heal(call):
    """Call until it is not denied any more."""
    while True:
        try:
            return call()
        except AccessDeniedError:
            pass


@MODES
def test_a_puller_without_the_right_gets_no_job_and_learns_why(peers, server, access, mode, caplog):
    change(server, access, ANN + BOB + DENY)
    with Pusher(LOOPBACK, name="jobs", security=server, acknowledge=mode) as pusher:
        place = peers.pinned(pusher.endpoint, "server")
        pusher.push("secret")
        with (
            Puller(place, security=peers.security("bob"), acknowledge=mode) as bob,
            Puller(place, security=peers.security("eve"), acknowledge=mode) as eve,
        ):
            error = denied(lambda: bob.receive(TIMEOUT))
            assert (error.verb, error.topic) == ("pull", "jobs")
            assert "rule 3 denies it" in error.reason
            error = denied(lambda: eve.receive(TIMEOUT))
            assert "no rule gives it" in error.reason
            assert "no rule gives it" in next(iter(eve.stats().denied.values()))
            assert pusher.stats().denied >= 2
            assert pusher.stats().in_flight == 1
            assert "the pusher 'jobs': denied: 'bob' pull 'jobs'" in caplog.text
            with Puller(place, security=peers.security("ann"), acknowledge=mode) as ann:
                assert take_job(ann, mode) == "secret"
            pusher.join(TIMEOUT)
            change(server, access, ANN + BOB)
            pusher.push("for bob")
            assert heal(lambda: take_job(bob, mode)) == "for bob"
            pusher.join(TIMEOUT)
            assert bob.stats().denied == {}


@MODES
def test_who_loses_the_right_loses_its_jobs_and_its_answers_do_not_count(
    peers, server, access, mode
):
    change(server, access, ANN + BOB)
    with Pusher(LOOPBACK, name="jobs", security=server, acknowledge=mode) as pusher:
        place = peers.pinned(pusher.endpoint, "server")
        with Puller(place, security=peers.security("bob"), acknowledge=mode) as bob:
            for number in range(20):
                pusher.push(number)
            job = bob.receive(TIMEOUT)
            assert job.value == 0
            change(server, access, ANN)
            # It says what it has done meanwhile, which must not count.
            eventually(lambda: pusher.stats().denied)
            if mode == "each":
                eventually(lambda: not job.ack() or bob.stats().denied)
            else:
                bob.commit()
            assert denied(lambda: [bob.receive(TIMEOUT) for _ in range(20)]).verb == "pull"
            assert pusher.stats().in_flight == 20
            with Puller(place, security=peers.security("ann"), acknowledge=mode) as ann:
                assert sorted(take_job(ann, mode) for _ in range(20)) == list(range(20))
                pusher.join(TIMEOUT)
            if mode == "each":
                assert pusher.stats().dead == 0
                assert pusher.stats().held_back >= 1
                assert pusher.stats().balanced


@MODES
def test_a_puller_takes_no_job_from_a_pusher_that_may_not_push(
    peers, server, access, mode, tmp_path
):
    rules = tmp_path / "rules.toml"
    rules.write_text("[[rule]]\nwho = ['server']\npush = ['others']\n")
    own = peers.security("ann", "server", access=rules)
    with Pusher(LOOPBACK, name="jobs", security=server, acknowledge=mode) as pusher:
        place = peers.pinned(pusher.endpoint, "server")
        with Puller(place, security=own, acknowledge=mode) as ann:
            pusher.push("forged")
            error = denied(lambda: ann.receive(TIMEOUT))
            assert (error.verb, error.topic) == ("push", "jobs")
            assert "no rule gives it" in error.reason
            assert pusher.stats().in_flight == 1
            change(own, rules, "[[rule]]\nwho = ['server']\npush = ['jobs']\n")
            assert heal(lambda: take_job(ann, mode)) == "forged"
            pusher.join(TIMEOUT)
            change(own, rules, "[[rule]]\nwho = ['server']\npush = ['others']\n")
            assert denied(lambda: ann.receive(TIMEOUT)).verb == "push"
            pusher.push("once more")
            with pytest.raises((TimeoutError, AccessDeniedError)):
                ann.receive(0.2)
            assert pusher.stats().in_flight == 1
            pusher.close(0)


@pytest.mark.parametrize("admin", ["local", "always", "never"])
def test_dead_letters_are_for_keys_that_may_administer(peers, server, access, admin):
    rules = ANN + "[[rule]]\nwho = ['eve']\nadmin = ['jobs']\n"
    change(server, access, rules)
    config = PusherConfig(admin=admin)
    # On all addresses: by "local" alone nobody could do it.
    with Pusher(
        "tcp://*:0", name="jobs", security=server, deliveries_max=1, config=config
    ) as pusher:
        place = peers.pinned(pusher.endpoint.replace("*", "127.0.0.1"), "server")
        pusher.push("bad secret")
        with Puller(place, security=peers.security("ann")) as ann:
            ann.receive(TIMEOUT).discard("no good")
            eventually(lambda: pusher.stats().dead == 1)
        boxes = [LiveBox(place, TIMEOUT, peers.security(name)) for name in ("ann", "bob", "eve")]
        with contextlib.ExitStack() as stack:
            for box in boxes:
                stack.callback(box.close)
            ann, bob, eve = boxes
            if admin == "never":
                with pytest.raises(match="never"):
                    eve.list()
                return
            for box in (ann, bob):
                for call in (box.list, lambda each=box: each.act("purge", [], True)):
                    error = denied(call)
                    assert (error.verb, error.topic) == ("admin", "jobs")
                    assert "no rule gives it" in error.reason
            assert pusher.stats().admin_refused == 4
            assert [letter.value for letter in eve.list()] == ["bad secret"]
            change(server, access, ANN)
            eventually(lambda: server.grants.refresh() or not server.grants.may(
                peers.text("eve"), "admin", "jobs"))  # fmt: skip
            assert denied(eve.list).verb == "admin"
            assert len(pusher.dead_letters()) == 1
