"""What a worker that is none may send, and what it costs."""

import random

import pytest

from p2pmsg.queue import frames
from p2pmsg.queue.pusher_core import PusherCore
from p2pmsg.queue.rules import End, JobRun
from p2pmsg.wire import Frame, Kind, control_frame
from tests.queues import job_queue
from tests.unit.memory import bytes_kept


class Pusher:
    """A pusher's core, and workers that speak to it with frames of their own."""

    def __init__(self, jobs=0, **settings):
        self.queue = job_queue(**settings)
        self.core = PusherCore(self.queue, name="p", session=1, incarnation=1)
        if jobs:
            self.queue.store.push_run(JobRun(0, b"x" * jobs, list(range(1, jobs + 1)), 1))

    def give(self, identity, kind, worker, body=None, sequence=0):
        self.core.receive(identity, control_frame(kind, worker, body, sequence=sequence), now_ns=0)

    def join(self, identity, worker, prefetch=16, **fields):
        self.give(identity, Kind.QUEUE_REPORT, worker, frames.Report())
        (who,) = [
            frames.read(Frame(frame), frames.Challenge)
            for to, frame in self.core.outbox
            if to == identity and Frame(frame).kind == Kind.QUEUE_CHALLENGE
        ]
        self.core.outbox.clear()
        held, claims = fields.get("held", []), fields.get("claims", [])
        hello = frames.Hello("w", "", 0, 0, prefetch, who.token, 0, held, claims, 0, 2**24)
        self.give(identity, Kind.QUEUE_HELLO, worker, hello)

    def report(self, identity, worker, number, **fields):
        self.give(identity, Kind.QUEUE_REPORT, worker, frames.Report(**fields), sequence=number)


def test_strangers_do_not_push_out_workers_and_cost_no_search():
    pusher = Pusher(workers_max=50)
    for number in range(50):
        pusher.join(b"w%d" % number, 1000 + number)
    pusher.core.outbox.clear()

    def come():
        for number in range(20_000):
            pusher.give(b"s%d" % number, Kind.QUEUE_REPORT, number, frames.Report())
            pusher.core.outbox.clear()

    assert bytes_kept(come) < 2 * 1024 * 1024, "more than how the last 4,096 of them began"
    for number in range(50):
        pusher.report(b"w%d" % number, 1000 + number, 1)
    assert pusher.core.invalid == {}
    assert len(pusher.queue.workers) == 50
    pusher.queue.dismiss(1000, End.NOT_BEGUN, now_ns=0)
    pusher.core.handle_timer(now_ns=0)
    pusher.join(b"new", 1)
    assert 1 in pusher.queue.workers


def test_a_worker_cannot_be_given_up_or_answered_for_by_another_connection():
    pusher = Pusher(jobs=8)
    pusher.join(b"honest", 7)
    pusher.core.pump(now_ns=0)
    for body in (frames.Report(acks=[(0, 4)]), frames.Report(released=[(0, 4)])):
        pusher.give(b"thief", Kind.QUEUE_REPORT, 7, body, sequence=1)
    pusher.give(b"thief", Kind.QUEUE_LEAVE, 7)
    assert pusher.queue.workers[7].assigned.count == 4
    assert pusher.queue.store.done == 0


@pytest.mark.parametrize("prefetch", [0, -1, 2**31 + 1, 2**62])
def test_a_prefetch_that_cannot_be_is_refused(prefetch):
    pusher = Pusher(jobs=8)
    pusher.join(b"a", 7, prefetch=prefetch)
    assert pusher.queue.workers == {}
    assert pusher.core.invalid == {"body": 1}


def test_garbage_of_every_kind_changes_nothing():
    pusher, rng = Pusher(jobs=8), random.Random(7)
    pusher.join(b"a", 7)
    pusher.core.pump(now_ns=0)
    for _ in range(3000):
        kind = rng.choice([*Kind])
        frame = bytearray(control_frame(kind, rng.choice([7, rng.getrandbits(64)]), None))
        frame += rng.randbytes(rng.randrange(40))
        for _ in range(rng.randrange(4)):
            frame[rng.randrange(len(frame))] = rng.randrange(256)
        identity = rng.choice([b"b", b"%d" % rng.randrange(50)])
        pusher.core.receive(identity, bytes(frame), now_ns=0)
    assert pusher.queue.store.in_flight == 8
    assert pusher.queue.workers[7].assigned.count in (0, 4)  # it may have been ended
    assert sum(pusher.core.invalid.values()) > 1000
