"""What a worker that is none may send, and what it costs."""

import random

import pytest

from p2pmsg.queue import frames, pusher_core
from p2pmsg.queue.pusher_core import REPORT_ENTRIES_MIN, PusherCore
from p2pmsg.queue.rules import JobRun
from p2pmsg.wire import Frame, Kind, control_frame
from tests.queues import job_queue
from tests.unit.memory import bytes_kept

MANY = frames.RANGES_MAX


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


LONG_REPORTS = {
    "acks": {"acks": [(10**6 + 2 * n, 10**6 + 2 * n + 1) for n in range(MANY)]},
    "acks of everything": {"acks": [(0, 2**62)] * MANY},
    "released": {"released": [(0, 2**62)] * MANY},
    "refusals": {"refusals": [frames.Refusal(10**6 + n, False, "", -1.0) for n in range(MANY)]},
    "long reasons": {"refusals": [frames.Refusal(0, True, "x" * 4000, -1.0)] * 2000},
    "extended": {"extended": [(0, 1.0)] * MANY},
}


@pytest.mark.parametrize("fields", LONG_REPORTS.values(), ids=LONG_REPORTS)
def test_a_report_about_more_than_its_worker_ever_had_is_not_read(monkeypatch, fields):
    """65,536 entries took 75 ms each time, and one could send them without end."""
    pusher = Pusher(jobs=100)
    pusher.join(b"a", 7, prefetch=65_536)
    pusher.core.pump(now_ns=0)
    worker = pusher.queue.workers[7]
    assert worker.assigned.count == worker.most == 4
    monkeypatch.setattr(pusher_core.frames, "read", None)  # it is refused before
    pusher.report(b"a", 7, 1, **fields)
    assert pusher.core.invalid == {"report_bytes": 1}
    assert worker.assigned.count == 4


def test_the_longest_honest_report_is_read():
    """Every other job of a large hand: none of its ranges joins another; half with long reasons."""
    pusher = Pusher(jobs=20_000, unproven_max=20_000)
    pusher.join(b"a", 7, prefetch=20_000)
    pusher.core.pump(now_ns=0)
    assert pusher.queue.workers[7].most == 20_000
    done = [(n, n + 1) for n in range(0, 10_000, 2)]
    refused = [frames.Refusal(n, True, "\U0001f600" * 1000, -1.0) for n in range(1, 10_000, 2)]
    released = [(n, n + 1) for n in range(10_000, 20_000)]
    pusher.report(b"a", 7, 1, acks=done, refusals=refused, released=released)
    assert pusher.core.invalid == {}
    assert pusher.queue.workers[7].assigned.count == 0
    # After that it may still settle what it had before, and say so at length.
    pusher.report(b"a", 7, 2, acks=[(2 * n, 2 * n + 1) for n in range(20_000)])
    assert pusher.core.invalid == {}


def test_a_new_worker_may_extend_again_and_again():
    pusher = Pusher(jobs=4)
    pusher.join(b"a", 7)
    pusher.report(b"a", 7, 1, extended=[(0, 1000.0)] * REPORT_ENTRIES_MIN)
    assert pusher.core.invalid == {}


def test_long_hellos_are_rationed_over_all_connections_and_short_ones_are_not():
    pusher = Pusher(jobs=10)
    everything = [(2 * n, 2 * n + 1) for n in range(MANY)]
    for number in range(100):
        pusher.join(b"%d" % number, 100 + number, held=everything, claims=everything)
    assert 1 <= len(pusher.queue.workers) <= 10
    assert pusher.core.invalid == {"hello_bytes": 100 - len(pusher.queue.workers)}
    pusher.join(b"honest", 1, held=everything[:500])
    assert 1 in pusher.queue.workers


def test_strangers_do_not_push_out_workers_and_cost_no_search():
    pusher = Pusher(workers_max=50)
    for number in range(50):
        pusher.join(b"w%d" % number, 1000 + number)
    pusher.core.outbox.clear()

    def come():
        for number in range(10_000):
            pusher.give(b"s%d" % number, Kind.QUEUE_REPORT, number, frames.Report())
            pusher.core.outbox.clear()

    assert bytes_kept(come) < 50 * 1024
    for number in range(50):
        pusher.report(b"w%d" % number, 1000 + number, 1)
    assert pusher.core.invalid == {}
    assert len(pusher.queue.workers) == 50
    pusher.queue.leave(1000, now_ns=0)
    pusher.core.handle_timer(now_ns=0)
    pusher.join(b"new", 1)
    assert 1 in pusher.queue.workers


def test_one_that_comes_a_thousand_times_leaves_nothing():
    """Under another name each time; and under one, over a new connection each time."""
    pusher = Pusher(jobs=100, workers_max=10)
    for number in range(1000):
        pusher.join(b"c%d" % number, 7)
        pusher.core.pump(now_ns=0)
    assert len(pusher.queue.workers) == 1
    assert pusher.queue.assigned_count <= 4

    def come():
        for number in range(1000):
            pusher.join(b"d%d" % number, 1000 + number)
            pusher.core.pump(now_ns=0)
            pusher.core.unreachable(b"d%d" % number, now_ns=0)
        pusher.core.outbox.clear()

    assert bytes_kept(come) < 50 * 1024
    assert len(pusher.queue.workers) == 10
    assert pusher.core.invalid == {"workers_max": 1000 - 9}


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
