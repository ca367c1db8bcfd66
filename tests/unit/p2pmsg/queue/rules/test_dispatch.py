"""JobQueue, case by case: dispatch, failures, and workers that ask for more than they may have."""

import pytest

from p2pmsg.queue.rules import (
    BreakerState,
    DeadJob,
    Dropped,
    End,
    JobRun,
    QueuedJob,
)
from p2pmsg.queue.rules.parts import DedupWindow
from tests.queues import job_queue

MS = 1_000_000
HOUR = 3_600_000 * MS


def queue(**settings):
    return job_queue(**{"retry_delay": 0.01, "unproven_max": 1000, **settings})


def watchful_queue(**settings):
    """Return a queue that takes jobs back after a second without an answer."""
    known = {"hold_timeout": 1.0, "ack_timeout": 100.0, "retry_delay": 0.01}
    return job_queue(**{**known, **settings})


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


def test_a_broken_connection_has_a_grace_and_keyed_jobs_longer():
    machine = queue(grace=0.2, ack_timeout=1.0)
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


def lost_and_done(**settings):
    """Return a queue, and an answer to job 0, of key `k`, by a worker that it was taken from."""
    machine = queue(ack_timeout=1.0, **settings)
    machine.join(1, "w", 16, now_ns=0)
    machine.store.push(job(0, key="k"), now_ns=0)
    assert all_taken(machine) == [b"00"]
    machine.dismiss(1, End.LOST, "silent for ack_timeout", now_ns=0)
    machine.store.push(job(1, key="k"), now_ns=0)

    def answer():
        machine.ack(machine.join(1, "w", 16, now_ns=1), 0, 1, now_ns=1)
        machine.workers.pop(1)

    return machine, answer


@pytest.mark.parametrize("is_free", [True, False])
def test_what_was_done_late_is_no_dead_letter(is_free):
    machine, answer = lost_and_done(deliveries_max=1)
    other = machine.join(2, "w", 16, now_ns=1)
    assert len(machine.store.dead) == 1
    assert all_taken(machine) == [b"01"]
    if is_free:
        machine.ack(other, 1, 2, now_ns=1)
    answer()
    assert len(machine.store.dead) == 0
    if not is_free:
        machine.ack(other, 1, 2, now_ns=1)
    assert (machine.store.done, machine.store.in_flight, machine.store.bytes) == (2, 0, 0)


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


def test_a_worker_keeps_what_it_had_before_a_restart_for_its_whole_time():
    machine = restored((job(0, key="k"), 1), hold_timeout=1.0)
    machine.next_delivery = 100
    worker = machine.join(1, "w", 16, now_ns=HOUR)
    assert machine.adopt(worker, 20, 0, now_ns=HOUR)

    assert machine.handle_timer(now_ns=HOUR + 999 * MS) == []
    assert machine.handle_timer(now_ns=HOUR + 1000 * MS) == [(worker, False)]


def test_dead_letters_beyond_the_bound_are_dropped_at_a_restart_too():
    machine = job_queue(dead_letters_max=2, records=True)
    for number in range(3):
        machine.store.keep_dead(DeadJob(job(number), "discarded", number))

    assert [dead.job.sequence for dead in machine.store.dead.list()] == [1, 2]
    assert machine.store.changes == [Dropped(0)]
    assert machine.store.dead.dropped == 1


def test_the_breaker_stops_everything_and_tries_one():
    machine = queue(retry_delay=0.0, failures_max=3, pause=0.1, pause_max=0.4)
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


def test_message_ids_are_remembered_for_a_time_and_not_beyond_a_number():
    window = DedupWindow(0.1, 2)
    window.add("a", 0, now_ns=0)
    window.add("b", 1, now_ns=50 * MS)
    assert window.find("a", now_ns=99 * MS) == 0
    assert window.find("a", now_ns=100 * MS) is None
    window.add("c", 2, now_ns=100 * MS)
    window.add("d", 3, now_ns=100 * MS)
    assert window.find("b", now_ns=100 * MS) is None


def hand_out(machine, now_ns=0):
    """Hand out all that can be; return how many jobs each worker got."""
    shares = {}
    while (pair := machine.take(now_ns=now_ns)) is not None:
        worker, batch = pair
        shares[worker.id] = shares.get(worker.id, 0) + batch.count
    return shares


def live(machine, now_ns):
    """Have all workers heard, and do what is due; return (id, whether it lost jobs)."""
    for worker in machine.workers.values():
        machine.heard(worker, now_ns=now_ns)
    return [(worker.id, lost) for worker, lost in machine.handle_timer(now_ns=now_ns)]


def test_a_worker_has_little_in_hand_before_it_has_done_anything():
    machine = watchful_queue(unproven_max=4)
    worker = machine.join(1, "w", 1000, now_ns=0)
    machine.store.push_run(run(500))
    at, most = 0, []
    for _ in range(7):
        count = hand_out(machine)[1]
        most.append(worker.assigned.count)
        machine.ack(worker, at, at + count, now_ns=0)
        at += count
    assert most == [4, 8, 16, 32, 64, 128, 248]


def test_what_a_worker_holds_for_too_long_goes_to_others_and_it_gets_ever_less():
    machine = watchful_queue(unproven_max=4, ack_timeout=0.1)
    machine.join(1, "holder", 1000, now_ns=0)
    machine.store.push_run(run(10))
    shares, now_ns = [], 0
    for _ in range(4):
        shares.append(hand_out(machine, now_ns)[1])
        assert live(machine, now_ns + 999 * MS) == []
        assert live(machine, now_ns + 1000 * MS) == [(1, False)]
        assert live(machine, now_ns + 1999 * MS) == []
        assert live(machine, now_ns + 2000 * MS) == [(1, True)]
        assert machine.assigned_count == 0
        now_ns += 2000 * MS
        assert hand_out(machine, now_ns + 999 * MS) == {}
        assert machine.next_deadline_ns(now_ns=now_ns) <= now_ns + 1000 * MS
        now_ns += 1000 * MS
        live(machine, now_ns)
    assert shares == [4, 2, 1, 1]
    assert machine.store.ended[End.TAKEN] == machine.workers[1].trust.held_back == 8
    assert [text.split(" and ")[0] for _, text in machine.warnings] == ["held 4 jobs for 2 s"]
    assert machine.store.in_flight == 10

    worker, done = machine.join(2, "w", 1000, now_ns=now_ns), 0
    while machine.store.in_flight > 1:
        hand_out(machine, now_ns)
        for batch in worker.assigned.batches():
            machine.ack(worker, batch.first, batch.first + batch.count, now_ns=now_ns)
            done += batch.count
    assert done == 9
    held = machine.workers[1].assigned.oldest()
    machine.ack(machine.workers[1], held.first, held.first + 1, now_ns=now_ns)
    assert machine.store.done == 10
    assert not machine.store.dead
    assert machine.workers[1].trust.allowance == 5  # it has done one


def test_one_that_settles_something_has_its_time_again():
    machine = watchful_queue(ack_timeout=0.1)
    worker = machine.join(1, "slow", 4, now_ns=0)
    machine.store.push_run(run(4))
    hand_out(machine)
    for number in range(3):
        assert live(machine, (number + 1) * 900 * MS) == []
        machine.ack(worker, number, number + 1, now_ns=(number + 1) * 900 * MS)
    assert live(machine, (2700 + 999) * MS) == []
    assert live(machine, (2700 + 1000) * MS) == [(1, False)]
    machine.ack(worker, 3, 4, now_ns=3750 * MS)
    assert (machine.store.ended[End.TAKEN], machine.store.done) == (0, 4)


def test_one_that_rejects_all_and_joined_first_does_not_keep_the_jobs_from_others():
    machine = watchful_queue(deliveries_max=1000)
    bad, good = (machine.join(n, name, 1, now_ns=0) for n, name in enumerate(("bad", "good")))
    machine.store.push_run(run(1))
    while (pair := machine.take(now_ns=0)) is not None and pair[0] is bad:
        assert bad.trust.failed < 3
        machine.reject(bad, pair[1].first, "no", 0, now_ns=0)
    assert pair[0] is good


def test_reasons_are_bounded():
    machine = watchful_queue(history_characters_max=10_000, deliveries_max=100)
    worker = machine.join(1, "w", 4, now_ns=0)
    machine.store.push(job(0), now_ns=0)
    for number in range(20):
        hand_out(machine, number * HOUR)
        machine.reject(worker, number, f"{number:04096d}", 0, now_ns=number * HOUR)
        live(machine, number * HOUR)
    hand_out(machine, 20 * HOUR)
    machine.discard(worker, 20, "y" * 4096, now_ns=20 * HOUR)
    (dead,) = machine.store.dead.list()
    assert [len(failure.reason) for failure in dead.job.history] == [4096, 4096]
    assert dead.job.reason == "y" * 4096
    assert machine.store.dead.bytes == dead.size > 8192
