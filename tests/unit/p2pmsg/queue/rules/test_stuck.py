"""JobQueue and workers that are stuck in a job: what they do not begin goes to others."""

import pytest

from p2pmsg.queue.rules import JobRun, QueuedJob
from tests.queues import job_queue

MS = 1_000_000
SECOND = 1000 * MS


def queue(**settings):
    known = {"retry_delay": 0.1, "recall_wait": 0.002, "deliveries_max": 1000, "ack_timeout": 1e6}
    return job_queue(**{**known, **settings})


def with_workers(count, **settings):
    machine = queue(**settings)
    return machine, [machine.join(n, f"w{n}", 16, now_ns=0) for n in range(count)]


def push(machine, sequence, now_ns=0, **fields):
    machine.store.push(QueuedJob(sequence, b"x", 1, **fields), now_ns=now_ns)


def taken(machine, now_ns):
    """Hand out all that can be; return the workers that got something, each with how many."""
    machine.handle_timer(now_ns=now_ns)
    found = []
    while (pair := machine.take(now_ns=now_ns)) is not None:
        found.append((pair[0].id, pair[1].count))
    return found


def time_out(machine, worker, now_ns):
    first = worker.assigned.oldest().first
    machine.reject(worker, first, "job_timeout: ", None, timed_out=True, now_ns=now_ns)


@pytest.mark.parametrize("key", [None, "k"])
def test_a_job_that_timed_out_goes_to_another_worker(key):
    machine, (hung, _) = with_workers(2)
    push(machine, 0, key=key)
    push(machine, 1, key=key, now_ns=1)
    assert (0, 1) in taken(machine, 0)
    time_out(machine, hung, SECOND)

    if key is None:
        machine.ack(machine.workers[1], 1, 2, now_ns=SECOND)
    assert taken(machine, SECOND + 100 * MS) == [(1, 1)]
    assert machine.workers[1].assigned.oldest().job(0).sequence == 0


def test_a_worker_alone_gets_what_timed_out_there_again():
    machine, (only,) = with_workers(1, retry_max=1.0)
    push(machine, 0)
    for number in range(20):
        assert taken(machine, 2 * number * SECOND) == [(0, 1)]
        time_out(machine, only, (2 * number + 1) * SECOND)


def test_the_only_job_of_a_worker_is_asked_back_for_an_idle_one():
    machine, (slow, idle) = with_workers(2)
    push(machine, 0)
    assert taken(machine, 0) == [(0, 1)]

    assert machine.recalls(now_ns=19 * MS) == []  # mostly it was begun
    assert machine.next_deadline_ns(now_ns=19 * MS) == 20 * MS
    assert machine.recalls(now_ns=20 * MS) == [(slow, 1)]
    machine.release(slow, [(0, 1)], now_ns=20 * MS, answer=True)
    assert taken(machine, 20 * MS) == [(1, 1)]
    assert machine.recalls(now_ns=40 * MS) == [(idle, 1)]  # the other is no longer unconfirmed
    machine.release(idle, [], now_ns=41 * MS, answer=True)
    assert machine.recalls(now_ns=SECOND) == []  # it has begun it


def test_a_job_that_nobody_begins_goes_to_and_fro_ever_more_seldom():
    machine, workers = with_workers(2)
    push(machine, 0)
    now, asked = 0, 0
    taken(machine, 0)
    while now < 60 * SECOND:
        for worker, _ in machine.recalls(now_ns=now):
            asked += 1
            machine.release(worker, worker.assigned.open_ranges(), now_ns=now, answer=True)
            taken(machine, now)
        now = max(now + MS, machine.next_deadline_ns(now_ns=now))

    assert sum(worker.assigned.count for worker in workers) == 1
    assert 2 <= asked <= 30


@pytest.mark.parametrize("how", ["ack", "reject", "discard"])
def test_a_worker_that_answers_is_no_longer_unconfirmed(how):
    machine, (worker, other) = with_workers(2, unproven_max=16)
    push(machine, 0)
    assert taken(machine, 0) == [(0, 1)]
    time_out(machine, worker, SECOND)
    assert worker.is_distrusted(now_ns=SECOND)
    assert taken(machine, SECOND + 100 * MS) == [(1, 1)]
    for sequence in range(1, 17):
        push(machine, sequence)
    found = taken(machine, SECOND + 100 * MS)  # it gets what the other has no place for
    assert (sum(n for who, n in found if who == 1), other.assigned.count) == (15, 16)
    delivery = worker.assigned.oldest().first

    if how == "ack":
        machine.ack(worker, delivery, delivery + 1, now_ns=SECOND + 101 * MS)
    elif how == "reject":
        machine.reject(worker, delivery, "no", None, now_ns=SECOND + 101 * MS)
    else:
        machine.discard(worker, delivery, "no", now_ns=SECOND + 101 * MS)
    assert not worker.is_distrusted(now_ns=SECOND + 101 * MS)
    assert machine.recalls(now_ns=SECOND + 102 * MS) == [(other, 8)]


def test_one_unconfirmed_gives_all_back_that_it_has_not_begun():
    machine, (hung, other) = with_workers(2, unproven_max=3)
    machine.store.push_run(JobRun(0, b"x" * 6, [*range(1, 7)], 1))
    taken(machine, 0)
    time_out(machine, hung, SECOND)
    batch = other.assigned.oldest()
    machine.ack(other, batch.first, batch.stop, now_ns=SECOND)

    assert machine.recalls(now_ns=SECOND) == [(hung, 2)]
