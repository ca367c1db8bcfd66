"""Strangers that connect to a pusher: what they get, and what they cannot do."""

import re

import pytest

import p2pmsg
from tests.integration.commands import run, run_here
from tests.integration.inside import core_of, hold_for_ever
from tests.integration.peers import eventually
from tests.integration.test_queue import wait_for_workers
from tests.queues import with_limits

CONFIG = p2pmsg.PusherConfig(ack_timeout=0.4, job_timeout=0.2)
LIMITS = {"reject_delay_max": 0.2, "hold_timeout": 0.3}
EVERYWHERE = "tcp://*:0"
JOBS = 200


@pytest.fixture
def make_holder(make_puller):
    """Makes a worker that takes what it gets, says that it lives, and never answers."""

    def make(endpoint, prefetch=65_536):
        puller = make_puller(endpoint, prefetch=prefetch)
        hold_for_ever(puller)
        return puller

    return make


def test_twenty_who_only_hold_do_not_keep_the_jobs(make_pusher, make_puller, make_holder, caplog):
    pusher = make_pusher(config=CONFIG)
    with_limits(core_of(pusher).queue, **LIMITS)
    for _ in range(20):
        make_holder(pusher.endpoint)
    wait_for_workers(pusher, 20)
    for number in range(JOBS):
        pusher.push(number, key=f"k{number % 50}" if number % 2 else None)
    # All that they may have, unless the first ones were held for too long before the last came.
    eventually(lambda: pusher.stats().in_hands == 80 or pusher.stats().held_back)
    worker, done = make_puller(pusher.endpoint, name="honest"), set()
    while len(done) < JOBS:
        with worker.receive(timeout=60) as job:
            done.add(job.value)
    pusher.join(timeout=60)
    stats = pusher.stats()
    assert (stats.done, stats.dead, stats.balanced) == (JOBS, 0, True)
    assert stats.held_back >= 80
    assert all(each.allowed < 4 for each in stats.workers if each.held_back)
    warnings = [text for text in caplog.messages if "acknowledged none" in text]
    assert warnings  # once for each time that one joined


def reached(pusher):
    return f"tcp://127.0.0.1:{pusher.endpoint.rpartition(':')[2]}"


def with_a_dead_letter(pusher, puller):
    pusher.push("secret")
    puller.receive(timeout=60).discard("bad")
    eventually(lambda: len(pusher.dead_letters()) == 1)


@pytest.mark.long
@pytest.mark.parametrize(
    ("endpoint", "admin"), [(EVERYWHERE, "local"), ("tcp://127.0.0.1:0", "never")]
)
def test_dead_letters_are_not_for_anybody(make_pusher, make_puller, caplog, endpoint, admin):
    pusher = make_pusher(endpoint, config=p2pmsg.queue.PusherConfig(admin=admin))
    with_a_dead_letter(pusher, make_puller(reached(pusher)))
    # The first one elsewhere, since the pusher says it here, once.
    for ask, action in ((run, "ls"), (run_here, "retry --all"), (run_here, "purge --all")):
        name, *which = action.split()
        ended = ask("dead-letters", name, reached(pusher), *which)
        assert (ended.returncode, ended.stdout) == (1, b"")
        assert re.search(rb"refuses: .*(PusherConfig\(admin=|admin=\"never\")", ended.stderr)
        assert ended.stderr.count(b"\n") == 1
    assert len(pusher.dead_letters()) == 1
    assert pusher.stats().admin_refused == 3
    assert caplog.text.count("a request for dead letters over the wire was refused") == 1
    assert pusher.dead_letters().purge() == 1


def test_dead_letters_are_for_everybody_where_that_is_wanted(make_pusher, make_puller):
    pusher = make_pusher(EVERYWHERE, config=p2pmsg.queue.PusherConfig(admin="always"))
    with_a_dead_letter(pusher, make_puller(reached(pusher)))

    assert b"secret" in run_here("dead-letters", "show", reached(pusher), "0").stdout
    assert run_here("dead-letters", "purge", reached(pusher), "--all").stdout == b"1 thrown away\n"
    assert pusher.stats().admin_refused == 0
