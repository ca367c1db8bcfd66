"""Strangers that connect to a pusher: what they get, and what they cannot do."""

import re

import pytest

import p2pmsg
from tests.integration.commands import eventually, run
from tests.integration.test_queue import wait_for_workers

FAST = p2pmsg.QueueConfig(ack_timeout_ms=400, reject_delay_max_ms=200, hold_ms=300)
CONFIG = p2pmsg.PusherConfig(queue=FAST, job_timeout_ms=200)
EVERYWHERE = "tcp://*:0"
JOBS = 200


@pytest.fixture
def make_holder(make_puller):
    """Makes a worker that takes what it gets, says that it lives, and never answers."""

    def make(endpoint, prefetch=65_536):
        puller = make_puller(endpoint, prefetch=prefetch)
        for line in puller._lines:
            line._time_out = lambda now_ns: None
            line._receive_recall = lambda frame: None
        return puller

    return make


def test_twenty_who_only_hold_do_not_keep_the_jobs(make_pusher, make_puller, make_holder, caplog):
    pusher = make_pusher(config=CONFIG)
    for _ in range(20):
        make_holder(pusher.endpoint)
    wait_for_workers(pusher, 20)
    for number in range(JOBS):
        pusher.push(number, key=f"k{number % 50}" if number % 2 else None)
    eventually(lambda: pusher.stats().in_hands == 80)
    worker, done = make_puller(pusher.endpoint, name="honest"), set()
    while len(done) < JOBS:
        with worker.receive(timeout=30) as job:
            done.add(job.value)
    pusher.drain(timeout=30)
    stats = pusher.stats()
    assert (stats.done, stats.dead, stats.balanced) == (JOBS, 0, True)
    assert stats.held_back >= 80
    assert all(each.allowed < 4 for each in stats.workers if each.held_back)
    warnings = [text for text in caplog.messages if "settled none" in text]
    assert 1 <= len(warnings) <= 20


def test_what_an_idle_program_has_is_asked_back_and_that_is_no_offence(make_pusher, make_puller):
    pusher = make_pusher(config=CONFIG)
    idle = make_puller(pusher.endpoint)
    wait_for_workers(pusher, 1)
    for number in range(4):
        pusher.push(number, key=f"k{number}")
    eventually(lambda: idle.stats().in_hand == 4)
    eventually(lambda: idle.stats().given_back >= 4)
    for _ in range(4):
        with idle.receive(timeout=5) as job:
            assert job.delivery_count == 1
    pusher.drain(timeout=5)
    assert (pusher.stats().held_back, pusher.stats().failed) == (0, 0)


def test_a_delay_of_centuries_is_cut(make_pusher, make_puller, caplog):
    pusher = make_pusher(config=CONFIG)
    stranger = make_puller(pusher.endpoint, name="stranger")
    for number in range(2):
        pusher.push(number, key="k")
    assert stranger.receive(timeout=5).reject("later", delay=1e12)
    for number in range(2):
        with stranger.receive(timeout=5) as job:
            assert job.value == number
    pusher.drain(timeout=5)
    assert pusher.stats().delays_capped == 1
    assert "worker 'stranger' rejects a job with a delay of 1e+12 s" in caplog.text


def reached(pusher):
    return f"tcp://127.0.0.1:{pusher.endpoint.rpartition(':')[2]}"


def with_a_dead_letter(pusher, puller):
    pusher.push("secret")
    puller.receive(timeout=5).discard("bad")
    eventually(lambda: len(pusher.dead_letters()) == 1)


@pytest.mark.parametrize(
    ("endpoint", "admin"), [(EVERYWHERE, "local"), ("tcp://127.0.0.1:0", "never")]
)
def test_dead_letters_are_not_for_anybody(make_pusher, make_puller, caplog, endpoint, admin):
    pusher = make_pusher(endpoint, config=p2pmsg.PusherConfig(admin=admin))
    with_a_dead_letter(pusher, make_puller(reached(pusher)))
    for action in (["ls"], ["retry", "--all"], ["purge", "--all"]):
        ended = run("dead-letters", action[0], reached(pusher), *action[1:])
        assert (ended.returncode, ended.stdout) == (1, b"")
        assert re.search(rb"refuses: .*(PusherConfig\(admin=|admin=\"never\")", ended.stderr)
        assert ended.stderr.count(b"\n") == 1
    assert len(pusher.dead_letters()) == 1
    assert pusher.stats().admin_refused == 3
    assert caplog.text.count("a request for dead letters over the wire was refused") == 1
    assert pusher.dead_letters().purge() == 1


def test_dead_letters_are_for_everybody_where_that_is_wanted(make_pusher, make_puller):
    pusher = make_pusher(EVERYWHERE, config=p2pmsg.PusherConfig(admin="always"))
    with_a_dead_letter(pusher, make_puller(reached(pusher)))

    assert b"secret" in run("dead-letters", "show", reached(pusher), "0").stdout
    assert run("dead-letters", "purge", reached(pusher), "--all").stdout == b"1 thrown away\n"
    assert pusher.stats().admin_refused == 0


LIMITS = {
    "admin": {"admin": "sometimes"},
    "queue.hold_ms": {"queue": p2pmsg.QueueConfig(hold_ms=10), "job_timeout_ms": 1000},
}


@pytest.mark.parametrize(("name", "change"), LIMITS.items())
def test_settings_have_limits(name, change):
    with pytest.raises(p2pmsg.ConfigError, match=name):
        p2pmsg.PusherConfig(**change)
