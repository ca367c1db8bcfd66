"""An exception at any line of the queue's engines: after `resync` no job is forgotten."""

import pytest

from p2pmsg.queue import puller_core, pusher_core, reports, rules, taking
from p2pmsg.queue.config import PusherConfig
from p2pmsg.queue.job import DISCARDED, REJECTED
from p2pmsg.queue.jobs import QueueIdentity, QueueJobs
from p2pmsg.queue.journal.records import JournalState, change_record, push_record
from p2pmsg.queue.puller_core import Process, PullerCore, PullerIdentity
from p2pmsg.queue.rules import JobRun, QueuedJob
from tests.strikes import AtLine
from tests.unit.p2pmsg.queue.test_puller_core import down, make_puller, make_pusher, up

JOBS = 6


def struck_at(line, module, call):
    """Call, with an interrupt at the so many-th line of a module that runs; whether it came."""
    with AtLine({module.__file__}, line, error=KeyboardInterrupt) as at:
        call()
    return at.struck


def work(pusher, line, done, now_ns):
    """Do one round of both ends, and all jobs that are there; dead letters are tried again."""
    pusher.queue.store.act_on_dead("retry", None, now_ns=now_ns)
    line.handle_timer(now_ns=now_ns)
    up(line, pusher, now_ns=now_ns)
    pusher.handle_timer(now_ns=now_ns)
    down(pusher, line, now_ns=now_ns)
    while (job := line.take(now_ns=now_ns)) is not None:
        done.append(job.sequence)
        if job.sequence % 3 == 2 and job.delivery_count == 1:
            line.refuse(job, REJECTED, "not yet", 0.0)
        elif job.sequence == 4 and job.delivery_count == 1:
            line.refuse(job, DISCARDED, "never")
        else:
            line.ack(job)
    line.flush(now_ns=now_ns)


@pytest.mark.parametrize("module", [puller_core, reports])
def test_at_any_line_of_one_that_acknowledges_each(module):
    number, was_struck = 0, True
    while was_struck:
        number += 1
        pusher = make_pusher()
        pusher.queue.store.push_run(JobRun(0, b"\xc0" * JOBS, [*range(1, JOBS + 1)], 0))
        line, done = make_puller(), []

        def some(pusher=pusher, line=line, done=done):
            for step in range(8):
                work(pusher, line, done, step * 10**9)

        if was_struck := struck_at(number, module, some):
            line.resync()
        for step in range(8, 40):
            work(pusher, line, done, step * 10**9)
        store = pusher.queue.store
        assert (store.done, store.in_flight) == (JOBS, 0), number
        assert {*done} == {*range(JOBS)}
        assert (line.reports.waiting, len(line.ready), line.reports.is_empty) == (0, 0, True)
    assert number > 100


@pytest.mark.parametrize("module", [rules.store, pusher_core])
def test_at_any_line_of_a_pusher(module):
    number, was_struck = 0, True
    while was_struck:
        number += 1
        pusher, line, done, state = make_pusher(), make_puller(), [], JournalState()
        store = pusher.queue.store
        store.records = True
        store.push_run(JobRun(0, b"\xc0" * 3, [1, 2, 3], 0))
        for sequence in range(3, JOBS):
            store.push(QueuedJob(sequence, b"\xc0", 0, key="k"), now_ns=0)
        for sequence in range(JOBS):
            state.apply(push_record(QueuedJob(sequence, b"\xc0", 0)))

        def some(pusher=pusher, line=line, done=done):
            for step in range(8):
                work(pusher, line, done, step * 10**9)

        if was_struck := struck_at(number, module, some):
            pusher.resync(now_ns=8 * 10**9)
        for step in range(8, 80):  # beyond `ack_timeout`, for which a key may have to wait
            work(pusher, line, done, step * 10**9)
        ended = store.done + store.died
        assert (ended, store.in_flight, store.bytes) == (store.accepted, 0, 0), number
        assert {*done} == {*range(JOBS)}
        for change in store.changes:
            state.apply(change_record(change))
        assert not state.open, number
        assert not state.dead, number
    assert number > 100


def test_what_was_gathered_is_handed_out_after_an_exception():
    identity = QueueIdentity(
        name="jobs", session=7, by_batch=False, is_gone=lambda *_: False, admin_refusal=None,
        access_rules=None,
    )  # fmt: skip
    jobs = QueueJobs(PusherConfig(), identity, JournalState(), None, now_ns=0, wall_ns=0)
    for value in range(3):
        jobs.try_push(jobs.job(value, None, 0, 0.0, None, None, now_ns=0), now_ns=0)
        jobs.on_pushed(0)
    assert jobs.batch.ends

    jobs.resync(now_ns=0)
    jobs.begin_turn(0)
    assert (jobs.in_flight, len(jobs.batch.ends)) == (3, 0)


def exchange(pusher, line, now_ns):
    """Do one round of both ends, with a socket for jobs that is always there."""
    line.handle_timer(now_ns=now_ns)
    up(line, pusher, now_ns=now_ns)
    pusher.handle_timer(now_ns=now_ns)
    while pusher.wanted:
        pusher.on_channel(pusher.wanted.popleft(), "inproc://jobs")
    for worker in pusher.blocked():
        pusher.on_space(worker, has_space=True)
    down(pusher, line, now_ns=now_ns)
    while pusher.job_frames:
        line.receive(pusher.job_frames.popleft()[1], now_ns=now_ns)
    if line.is_missing:
        line.rejoin()


@pytest.mark.parametrize("module", [puller_core, reports, taking])
def test_at_any_line_of_one_that_acknowledges_by_the_batch(module):
    number, was_struck = 0, True
    while was_struck:
        number += 1
        pusher = make_pusher(by_batch=True)
        store, batch, done = pusher.queue.store, taking.Batch(), []
        line = PullerCore(PullerIdentity(1, "worker", Process(), 4), batch=batch, now_ns=0)

        def take(now_ns, batch=batch, line=line, done=done):
            while (job := batch.take_plain() or line.take(now_ns=now_ns)) is not None:
                done.append(job.sequence)

        def some(pusher=pusher, line=line, store=store, take=take):
            for step in range(8):
                if step < JOBS // 2:
                    store.push_run(JobRun(2 * step, b"\xc0" * 2, [1, 2], 0))
                exchange(pusher, line, step * 10**9)
                take(step * 10**9)
                line.flush(now_ns=step * 10**9)

        if was_struck := struck_at(number, module, some):
            batch.resync()
            line.resync()
        for step in range(JOBS // 2):
            if not store.knows(2 * step) and 2 * step >= store.pushed:
                store.push_run(JobRun(2 * step, b"\xc0" * 2, [1, 2], 0))
        for step in range(8, 40):
            exchange(pusher, line, step * 10**9)
            take(step * 10**9)
            line.flush(now_ns=step * 10**9)
        assert (store.done, store.in_flight) == (JOBS, 0), number
        assert {*done} == {*range(JOBS)}, number
        assert (line.reports.waiting, line.ready_count, line.reports.is_empty) == (0, 0, True)
    assert number > 30
