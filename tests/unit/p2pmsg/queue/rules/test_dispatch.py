"""JobQueue, case by case; the clock is set by hand."""

import pytest

from p2pmsg.queue.rules import (
    BreakerConfig,
    BreakerState,
    DeadJob,
    Dropped,
    JobQueue,
    JobRun,
    QueueConfig,
    QueuedJob,
)
from p2pmsg.queue.rules.store import DedupWindow

MS = 1_000_000


def queue(**settings):
    return JobQueue(QueueConfig(**{"retry_delay_ms": 10, "unproven_max": 1000, **settings}))


def run(count, sequence=0):
    payload = b"".join(b"%02d" % n for n in range(sequence, sequence + count))
    return JobRun(sequence, payload, [2 * n + 2 for n in range(count)], 1)


def job(sequence, **fields):
    return QueuedJob(sequence, b"%02d" % sequence, 1, **fields)


def taken(machine, now_ns=0):
    """Hand out all that can be: (worker, payloads) a batch."""
    found = []
    while (pair := machine.take(now_ns=now_ns)) is not None:
        worker, batch = pair
        found.append((worker.id, [batch.job(n).payload for n in range(batch.count)]))
    return found


def all_taken(machine, now_ns=0):
    return [payload for _, payloads in taken(machine, now_ns) for payload in payloads]


def test_a_worker_gets_what_it_may_have_and_no_more():
    machine = queue()
    worker = machine.join(1, "w", 3, now_ns=0)
    machine.store.push_run(run(5))

    assert all_taken(machine) == [b"00", b"01", b"02"]
    machine.ack(worker, 0, 2, now_ns=1)
    assert all_taken(machine) == [b"03", b"04"]
    machine.ack(worker, 2, 5, now_ns=1)
    assert (machine.store.in_flight, machine.store.bytes, machine.store.done) == (0, 0, 5)


def test_jobs_are_shared_among_workers():
    machine = queue()
    for number in range(4):
        machine.join(number, "w", 16, now_ns=0)
    machine.store.push_run(run(16))

    shares = [len(payloads) for _, payloads in taken(machine)]
    assert sum(shares) == 16
    assert max(shares) <= 4


def with_a_busy_and_an_idle_worker():
    """A queue, and the worker 1, which has nine jobs; 2 has none."""
    machine = queue(recall_ms=2)
    busy = machine.join(1, "busy", 16, now_ns=0)
    machine.store.push_run(run(9))
    taken(machine)
    machine.join(2, "idle", 16, now_ns=0)
    return machine, busy


def test_an_idle_worker_has_jobs_asked_back_for_it():
    machine, busy = with_a_busy_and_an_idle_worker()

    assert machine.recalls(now_ns=1 * MS) == []
    assert machine.recalls(now_ns=2 * MS) == [(busy, 4)]
    assert machine.recalls(now_ns=3 * MS) == []
    machine.release(busy, [(5, 9)], now_ns=3 * MS, answer=True)
    assert taken(machine, 3 * MS)[0][0] == 2
    machine.ack(busy, 5, 6, now_ns=4 * MS)
    assert machine.refused == 1


def test_an_answer_about_jobs_taken_back_already_does_not_end_the_recalls():
    """The connection broke while it was under way: the hello behind it said what is held."""
    machine, busy = with_a_busy_and_an_idle_worker()
    assert machine.recalls(now_ns=2 * MS) == [(busy, 4)]
    machine.cut(1, now_ns=2 * MS)
    machine.join(1, "busy", 16, now_ns=3 * MS)
    machine.reconcile(busy, [(0, 5)], now_ns=3 * MS)
    assert {worker for worker, _ in taken(machine, 3 * MS)} == {2}
    machine.ack(machine.workers[2], 9, 13, now_ns=4 * MS)

    machine.release(busy, [(5, 9)], now_ns=4 * MS, answer=True)
    assert machine.recalls(now_ns=5 * MS) == [(busy, 2)]
    machine.release(busy, [], now_ns=5 * MS, answer=True)
    assert machine.recalls(now_ns=6 * MS) == []  # it has none to give


@pytest.mark.parametrize("how", ["reject", "lose"])
def test_the_next_of_a_key_waits_for_what_becomes_of_the_first(how):
    machine = queue()
    worker = machine.join(1, "w", 16, now_ns=0)
    machine.join(2, "w", 16, now_ns=0)
    for sequence in range(3):
        machine.store.push(job(sequence, key="k"), now_ns=0)
    assert all_taken(machine) == [b"00"]

    if how == "reject":
        machine.reject(worker, 0, "no", None, now_ns=0)
    else:
        machine.lose(1, "gone", now_ns=0)
    machine.handle_timer(now_ns=10 * MS)
    assert all_taken(machine, 10 * MS) == [b"00"]
    holder = next(w for w in machine.workers.values() if w.assigned.count)
    machine.ack(holder, 1, 2, now_ns=10 * MS)
    assert all_taken(machine, 10 * MS) == [b"01"]


def test_priority_goes_first_and_keys_keep_their_order():
    machine = queue()
    machine.store.push(job(0, key="k"), now_ns=0)
    machine.store.push(job(1), now_ns=0)
    machine.store.push(job(2, key="k", priority=9), now_ns=0)
    machine.store.push(job(3, priority=5), now_ns=0)
    worker = machine.join(1, "w", 16, now_ns=0)

    assert all_taken(machine) == [b"03", b"00", b"01"]
    machine.ack(worker, 1, 2, now_ns=0)
    assert all_taken(machine) == [b"02"]


def test_an_answer_to_an_earlier_delivery_is_refused():
    machine = queue()
    first = machine.join(1, "w", 1, now_ns=0)
    machine.store.push(job(0), now_ns=0)
    taken(machine)
    machine.reject(first, 0, "no", 0, now_ns=0)
    taken(machine)

    machine.ack(first, 0, 1, now_ns=0)
    assert (machine.refused, machine.store.done) == (1, 0)
    other = machine.join(2, "w", 1, now_ns=0)
    machine.ack(other, 1, 2, now_ns=0)
    assert (machine.refused, machine.store.done) == (2, 0)
    machine.ack(first, 1, 2, now_ns=0)
    assert machine.store.done == 1


def test_jobs_lost_together_are_delivered_alone():
    machine = queue(deliveries_max=2)
    machine.store.push_run(run(3))
    machine.join(1, "w", 16, now_ns=0)
    taken(machine)
    machine.lose(1, "gone", now_ns=0)

    machine.join(2, "w", 16, now_ns=0)
    assert all_taken(machine) == [b"00"]
    machine.lose(2, "gone", now_ns=0)
    machine.join(3, "w", 16, now_ns=0)
    assert all_taken(machine) == [b"00"]
    machine.lose(3, "gone", now_ns=0)
    (dead,) = machine.store.dead.list()
    assert (dead.job.sequence, dead.job.blamed, dead.job.deliveries) == (0, 2, 3)
    worker = machine.join(4, "w", 16, now_ns=0)
    assert all_taken(machine) == [b"01"]
    machine.ack(worker, 5, 6, now_ns=0)
    assert all_taken(machine) == [b"02"]


def test_a_broken_connection_has_a_grace_and_keyed_jobs_longer():
    machine = queue(grace_ms=200, ack_timeout_ms=1000)
    machine.join(1, "w", 16, now_ns=0)
    machine.store.push_run(run(1))
    machine.store.push(job(1, key="k"), now_ns=0)
    taken(machine)
    machine.cut(1, now_ns=0)
    other = machine.join(2, "w", 16, now_ns=0)

    machine.handle_timer(now_ns=199 * MS)
    assert all_taken(machine, 199 * MS) == []
    machine.handle_timer(now_ns=200 * MS)
    assert all_taken(machine, 200 * MS) == [b"00"]
    machine.heard(other, now_ns=900 * MS)
    machine.handle_timer(now_ns=1000 * MS)
    assert len(machine.workers) == 1
    machine.ack(other, 2, 3, now_ns=1000 * MS)
    assert all_taken(machine, 1000 * MS) == [b"01"]


def restored(*jobs, **settings):
    """Return a queue after a restart: jobs with whose they were."""
    machine = queue(**settings)
    for each, holder in jobs:
        machine.store.restore(each, holder, now_ns=0)
    return machine


def test_a_job_with_a_key_is_claimed_by_its_last_worker_only():
    """One who had it before may have done it; its answer would let the key's next job go."""
    machine = restored((job(0, key="k"), 2), (job(1), None))
    machine.next_delivery = 100
    former, last = (machine.join(number, "w", 16, now_ns=0) for number in (1, 2))

    assert not machine.adopt(former, 10, 0, now_ns=1)
    assert machine.adopt(last, 20, 0, now_ns=1)
    assert not machine.adopt(last, 20, 0, now_ns=1)
    # Whose a job without a key was is not written down, and nothing hangs on it.
    assert machine.adopt(former, 11, 1, now_ns=1)
    assert not machine.adopt(former, 100, 1, now_ns=1)


def test_keys_wait_for_whoever_may_have_them_after_a_crash_of_the_system():
    machine = queue(ack_timeout_ms=1000, grace_ms=100)
    machine.store.close_keys(now_ns=0)
    machine.store.restore(job(0, key="a"), None, now_ns=0)
    machine.store.restore(job(1), None, now_ns=0)
    machine.store.push(job(2, key="b"), now_ns=0)
    machine.store.push(job(3), now_ns=0)
    worker = machine.join(1, "w", 16, now_ns=0)

    def later(ms):
        machine.heard(worker, now_ns=ms * MS)
        machine.handle_timer(now_ns=ms * MS)
        return sorted(all_taken(machine, ms * MS))

    assert later(100) == [b"01", b"03"]
    assert later(999) == []
    assert later(1000) == [b"00", b"02"]


def test_dead_letters_beyond_the_bound_are_dropped_at_a_restart_too():
    machine = JobQueue(QueueConfig(dead_letters_max=2), records=True)
    for number in range(3):
        machine.store.keep_dead(DeadJob(job(number), "discarded", number))

    assert [dead.job.sequence for dead in machine.store.dead.list()] == [1, 2]
    assert machine.store.changes == [Dropped(0)]


def test_the_breaker_stops_everything_and_tries_one():
    machine = queue(
        retry_delay_ms=0, breaker=BreakerConfig(failures_max=3, pause_ms=100, pause_ceiling_ms=400)
    )
    worker = machine.join(1, "w", 16, now_ns=0)
    machine.store.push_run(run(6))
    taken(machine)
    for delivery in range(3):
        machine.reject(worker, delivery, "no", 0, now_ns=0)
    assert machine.breaker.state is BreakerState.OPEN
    assert all_taken(machine, 99 * MS) == []

    assert all_taken(machine, 100 * MS) == [b"00"]
    machine.reject(worker, 6, "no", 0, now_ns=100 * MS)
    assert all_taken(machine, 299 * MS) == []
    assert all_taken(machine, 300 * MS) == [b"00"]
    machine.ack(worker, 7, 8, now_ns=300 * MS)
    assert all_taken(machine, 300 * MS) == [b"01", b"02"]
    assert machine.breaker.trips == 1


def test_a_worker_that_fails_while_others_do_not_is_stopped():
    machine = queue(retry_delay_ms=0, breaker=BreakerConfig(worker_failures_max=3))
    bad = machine.join(1, "bad", 1, now_ns=0)
    good = machine.join(2, "good", 1, now_ns=0)
    for sequence in range(20):
        machine.store.push(job(sequence), now_ns=0)
    for _ in range(4):
        for worker_id, _ in taken(machine):
            worker = machine.workers[worker_id]
            delivery = worker.assigned.open_ranges()[0][0]
            if worker is good:
                machine.ack(good, delivery, delivery + 1, now_ns=0)
            else:
                machine.reject(bad, delivery, "no", 0, now_ns=0)

    assert bad.breaker.state is BreakerState.OPEN
    assert machine.breaker.state is BreakerState.CLOSED
    assert [worker for worker, _ in taken(machine)] == [2]


def test_dead_letters_are_bounded_and_counted():
    machine = queue(deliveries_max=1, dead_letters_max=2)
    worker = machine.join(1, "w", 16, now_ns=0)
    machine.store.push_run(run(4))
    taken(machine)
    for delivery in range(4):
        machine.discard(worker, delivery, "never", now_ns=0)

    assert [dead.job.sequence for dead in machine.store.dead.list()] == [2, 3]
    assert machine.store.dead.dropped == 2


def test_message_ids_are_remembered_for_a_time_and_not_beyond_a_number():
    window = DedupWindow(100, 2)
    window.add("a", 0, now_ns=0)
    window.add("b", 1, now_ns=50 * MS)
    assert window.find("a", now_ns=99 * MS) == 0
    assert window.find("a", now_ns=100 * MS) is None
    window.add("c", 2, now_ns=100 * MS)
    window.add("d", 3, now_ns=100 * MS)
    assert (window.find("b", now_ns=100 * MS), window.forgotten) == (None, 1)


BAD = {
    "ack_timeout_ms": 0, "grace_ms": -1, "deliveries_max": 0, "retry_delay_ms": -1,
    "retry_ceiling_ms": 1, "prefetch_max": 0, "dedup_ids_max": 0,
}  # fmt: skip


@pytest.mark.parametrize(("field", "value"), BAD.items())
def test_a_setting_out_of_its_limits_is_refused(field, value):
    with pytest.raises(ValueError, match=field):
        queue(**{field: value})
