"""Strangers that connect to a pusher: what they get, and what they cannot do."""

import re
import secrets
import threading
from dataclasses import replace

import pytest
import zmq

import p2pmsg
from p2pmsg.queue import frames
from p2pmsg.queue.rules import QueueLimits
from p2pmsg.wire import Frame, FrameError, Kind, control_frame
from tests.integration.commands import eventually, run, run_here
from tests.integration.inside import connections_known, core_of, hold_for_ever
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
    assert 1 <= len(warnings) <= 20


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


class Hostile:
    """A raw socket that says hello as a worker does, and then what it likes."""

    def __init__(self, context, endpoint, routing_id=None):
        self.worker = secrets.randbits(64)
        self.jobs, self.serial = [], 0
        self.socket = context.socket(zmq.DEALER)
        self.socket.set(zmq.LINGER, 0)
        self.socket.set(zmq.SNDHWM, 50)
        if routing_id is not None:
            self.socket.set(zmq.ROUTING_ID, routing_id)
        self.socket.connect(endpoint)
        self.send(Kind.QUEUE_REPORT, frames.Report())

    def send(self, kind, body=None, sequence=0):
        try:
            frame = control_frame(kind, self.worker, body, sequence=sequence)
            self.socket.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            pass

    def report(self, **fields):
        self.serial += 1
        self.send(Kind.QUEUE_REPORT, frames.Report(**fields), self.serial)

    def listen(self):
        """Answer who it is, and note what it gets."""
        while self.socket.poll(0):
            frame = Frame(self.socket.recv())
            if frame.kind == Kind.QUEUE_CHALLENGE:
                token = frames.read(frame, frames.Challenge).token
                hello = frames.Hello(
                    "hostile", "", 0, 0, 2**31, token, self.serial, [], [], 0, 2**24
                )
                self.send(Kind.QUEUE_HELLO, hello)
            elif frame.kind == Kind.JOBS:
                self.jobs += range(frame.sequence, frame.sequence + frame.count)


def only_holds(one, endpoint):
    one.send(Kind.QUEUE_REPORT, frames.Report())  # it lives


def rejects(one, endpoint):
    while one.jobs:
        one.report(refusals=[frames.Refusal(one.jobs.pop(), False, "x" * 4000, 1e300)])


def sends_long_reports(one, endpoint):
    one.send(Kind.QUEUE_REPORT, LONG, one.serial + 1)


def gives_all_back_at_once(one, endpoint):
    one.report(acks=[(0, 1)], released=[(0, 2**62)], extended=[(0, 1e300), (0, 1e14)])


def sends_garbage(one, endpoint):
    one.socket.send(secrets.token_bytes(60), zmq.NOBLOCK)
    try:
        frame = bytearray(control_frame(Kind.QUEUE_REPORT, one.worker, LONG, sequence=1)[:200])
        one.socket.send(bytes(frame), zmq.NOBLOCK)
        one.socket.send_multipart([b"", b"a", b"b"], zmq.NOBLOCK)
    except zmq.Again:
        pass


def comes_again_and_again(one, endpoint):
    """Over a new connection with the same ROUTING_ID, with jobs in flight."""
    if one.jobs:
        one.jobs.clear()
        one.socket.disconnect(endpoint)
        one.socket.connect(endpoint)
        one.worker = secrets.randbits(64)
        one.serial = 0
        one.send(Kind.QUEUE_REPORT, frames.Report())


LONG = frames.Report(acks=[(2 * n, 2 * n + 1) for n in range(10**6, 10**6 + frames.RANGES_MAX)])
BEHAVIOURS = [
    only_holds, rejects, sends_long_reports, gives_all_back_at_once,
    sends_garbage, comes_again_and_again,
]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=lambda one: one.__name__)
def test_an_honest_worker_gets_its_share_whatever_ten_others_do(
    make_pusher, make_puller, behaviour
):
    pusher = make_pusher(config=replace(CONFIG, deliveries_max=1000))
    with_limits(core_of(pusher).queue, extend_max=0.2, **LIMITS)
    context, stop = zmq.Context(), threading.Event()
    hostile = [Hostile(context, pusher.endpoint, b"thief %d" % (n // 2)) for n in range(10)]

    def misbehave():
        while not stop.wait(0.005):
            for one in hostile:
                try:
                    one.listen()
                    behaviour(one, pusher.endpoint)
                except (zmq.Again, FrameError):
                    pass

    thread = threading.Thread(target=misbehave)
    thread.start()
    try:
        wait_for_workers(pusher, 5)  # libzmq refuses those with another's ROUTING_ID
        for number in range(JOBS):
            pusher.push(number, key=f"k{number % 50}" if number % 2 else None)
        worker, done = make_puller(pusher.endpoint, name="honest"), []
        while len(done) < JOBS:
            with worker.receive(timeout=60) as job:
                done.append(job.value)
        stats = pusher.stats()
        assert (sorted(set(done)), stats.dead) == ([*range(JOBS)], 0), stats
        assert connections_known(pusher) <= 2 * QueueLimits().workers_max
        assert len(core_of(pusher).outbox) < 1000
    finally:
        stop.set()
        thread.join()
        for one in hostile:
            one.socket.close()
        context.term()
    pusher.join(timeout=60)
    assert pusher.stats().balanced
