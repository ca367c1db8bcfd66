"""What a worker may ask for, and what becomes of one that asks for more, or only holds."""

import pytest

from p2pmsg.queue.rules import BreakerConfig, JobQueue, JobRun, QueueConfig, QueuedJob
from p2pmsg.queue.rules.store import DeadJobs

MS = 1_000_000
HOUR = 3_600_000 * MS


def queue(**settings):
    known = {"hold_ms": 1000, "ack_timeout_ms": 100_000, "retry_delay_ms": 10}
    return JobQueue(QueueConfig(**{**known, **settings}))


def run(count, sequence=0):
    return JobRun(sequence, b"x" * count, list(range(1, count + 1)), 1)


def job(sequence, **fields):
    return QueuedJob(sequence, b"%02d" % sequence, 1, **fields)


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
    machine = queue(unproven_max=4)
    worker = machine.join(1, "w", 1000, now_ns=0)
    machine.store.push_run(run(500))
    at, most = 0, []
    for _ in range(7):
        count = hand_out(machine)[1]
        most.append(worker.assigned.count)
        machine.ack(worker, at, at + count, now_ns=0)
        at += count
    assert most == [4, 8, 16, 32, 64, 128, 248]


def test_a_stranger_with_a_large_prefetch_is_not_preferred():
    machine = queue(unproven_max=4)
    machine.join(1, "stranger", 65_536, now_ns=0)
    machine.join(2, "w", 4, now_ns=0)
    machine.store.push_run(run(4))
    assert hand_out(machine) == {1: 2, 2: 2}


def test_what_a_worker_holds_for_too_long_goes_to_others_and_it_gets_ever_less():
    machine = queue(unproven_max=4, ack_timeout_ms=100)
    machine.join(1, "holder", 1000, now_ns=0)
    machine.store.push_run(run(10))
    shares, now_ns = [], 0
    for _ in range(4):
        shares.append(hand_out(machine, now_ns)[1])
        assert live(machine, now_ns + 999 * MS) == []
        assert live(machine, now_ns + 1000 * MS) == [(1, False)]
        assert live(machine, now_ns + 1099 * MS) == []
        assert live(machine, now_ns + 1100 * MS) == [(1, True)]
        assert machine.assigned_count == 0
        now_ns += 1100 * MS
        assert hand_out(machine, now_ns + 999 * MS) == {}
        assert machine.next_deadline_ns(now_ns=now_ns) <= now_ns + 1000 * MS
        now_ns += 1000 * MS
        live(machine, now_ns)
    assert shares == [4, 2, 1, 1]
    assert machine.held_back == machine.workers[1].held_back == 8
    assert [text.split(" and ")[0] for _, text in machine.warnings] == ["held 4 jobs for 1.1 s"]
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
    assert machine.workers[1].allowance == 5  # it has done one


def test_jobs_are_not_blamed_for_who_holds_them():
    machine = queue(deliveries_max=2, ack_timeout_ms=100)
    machine.store.push(job(0), now_ns=0)
    now_ns = 0
    for number in range(10):
        machine.join(number, "holder", 1, now_ns=now_ns)
        hand_out(machine, now_ns)
        assert live(machine, now_ns + 1000 * MS) == [(number, False)]
        assert live(machine, now_ns + 1100 * MS) == [(number, True)]
        machine.leave(number, now_ns=now_ns)
        now_ns += 2000 * MS
    assert machine.store.in_flight == 1
    assert not len(machine.store.dead)
    machine.join(99, "w", 1, now_ns=now_ns)
    _, batch = machine.take(now_ns=now_ns)
    assert batch.job(0).deliveries == 11
    assert "without an answer" in batch.job(0).reason


def test_a_job_with_a_key_stays_until_an_honest_worker_could_not_have_it():
    machine = queue(ack_timeout_ms=100)
    machine.join(1, "holder", 4, now_ns=0)
    for each in (job(0, key="k"), job(1)):
        machine.store.push(each, now_ns=0)
        hand_out(machine)
    assert live(machine, 1000 * MS) == [(1, False)]
    assert live(machine, 1100 * MS) == [(1, True)]
    assert machine.assigned_count == 1
    assert live(machine, 1999 * MS) == []
    assert live(machine, 2000 * MS) == [(1, True)]
    assert machine.assigned_count == 0


def test_one_that_connects_again_and_again_does_not_keep_them_for_ever():
    machine = queue(ack_timeout_ms=100)
    machine.join(1, "holder", 4, now_ns=0)
    machine.store.push(job(0, key="k"), now_ns=0)
    hand_out(machine)
    now_ns = 0
    while machine.assigned_count:
        now_ns += 50 * MS
        machine.join(1, "holder", 4, now_ns=now_ns)
        live(machine, now_ns)
        assert now_ns <= 5000 * MS
    assert now_ns > 2000 * MS


def test_one_that_settles_something_has_its_time_anew():
    machine = queue(ack_timeout_ms=100)
    worker = machine.join(1, "slow", 4, now_ns=0)
    machine.store.push_run(run(4))
    hand_out(machine)
    for number in range(3):
        assert live(machine, (number + 1) * 900 * MS) == []
        machine.ack(worker, number, number + 1, now_ns=(number + 1) * 900 * MS)
    assert live(machine, (2700 + 999) * MS) == []
    assert live(machine, (2700 + 1000) * MS) == [(1, False)]
    machine.ack(worker, 3, 4, now_ns=3750 * MS)
    assert (machine.held_back, machine.store.done) == (0, 4)


def test_extensions_are_given_up_to_a_limit():
    machine = queue(ack_timeout_ms=100, extend_max_ms=5000)
    worker = machine.join(1, "w", 4, now_ns=0)
    machine.store.push_run(run(1))
    hand_out(machine)
    machine.extend(worker, 3000 * MS, now_ns=500 * MS)
    assert live(machine, 3499 * MS) == []
    assert machine.extends_capped == 0
    machine.extend(worker, HOUR, now_ns=3499 * MS)
    machine.extend(worker, 10**9 * HOUR, now_ns=3499 * MS)
    assert machine.extends_capped == 2
    assert live(machine, 5999 * MS) == []
    assert live(machine, 6000 * MS) == [(1, False)]
    assert live(machine, 6100 * MS) == [(1, True)]
    assert [name for name, _ in machine.warnings] == ["w", "w"]


def test_without_a_hold_a_worker_has_them_as_long_as_it_lives():
    machine = queue(hold_ms=0, ack_timeout_ms=1000)
    worker = machine.join(1, "w", 4, now_ns=0)
    machine.store.push_run(run(1))
    hand_out(machine)
    machine.extend(worker, HOUR, now_ns=0)
    assert live(machine, 1000 * HOUR) == []
    assert (machine.assigned_count, machine.extends_capped) == (1, 0)


def test_a_delay_has_a_limit_and_the_key_goes_on():
    machine = queue(reject_delay_max_ms=60_000)
    worker = machine.join(1, "w", 4, now_ns=0)
    for sequence in range(2):
        machine.store.push(job(sequence, key="k"), now_ns=0)
    hand_out(machine)
    machine.reject(worker, 0, "", 31 * 366 * 24 * HOUR, now_ns=0)
    assert (machine.delays_capped, len(machine.warnings)) == (1, 1)
    live(machine, 59_999 * MS)
    assert hand_out(machine, 59_999 * MS) == {}
    live(machine, 60_000 * MS)
    assert hand_out(machine, 60_000 * MS) == {1: 1}
    machine.reject(worker, 1, "", HOUR, now_ns=0)
    assert (machine.delays_capped, len(machine.warnings)) == (2, 1)  # said once


@pytest.mark.parametrize("how", ["reject", "discard"])
def test_one_that_fails_at_what_others_do_is_stopped_alone(how):
    machine = queue(breaker=BreakerConfig(worker_failures_max=3), deliveries_max=100)
    bad, good = (machine.join(n, name, 1, now_ns=0) for n, name in enumerate(("bad", "good")))
    machine.store.push_run(run(100))
    failed = 0
    for _ in range(20):
        for worker, batch in list(iter(lambda: machine.take(now_ns=0), None)):
            if worker is good:
                continue
            failed += 1
            if how == "reject":
                machine.reject(worker, batch.first, "", HOUR, now_ns=0)
            else:
                machine.discard(worker, batch.first, "", now_ns=0)
        for batch in good.assigned.batches():
            machine.ack(good, batch.first, batch.first + 1, now_ns=0)
    assert failed == bad.failed == 3
    assert good.acked > 15
    assert machine.warnings[-1][0] == "bad"


def test_reasons_are_bounded():
    machine = queue(history_characters_max=10_000, deliveries_max=100)
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


def test_dead_letters_are_counted_with_what_was_said_of_them():
    dead = DeadJobs(100, 10_000)
    machine = queue(deliveries_max=1)
    worker = machine.join(1, "w", 4, now_ns=0)
    for sequence in range(4):
        machine.store.push(job(sequence), now_ns=0)
        hand_out(machine)
        machine.reject(worker, sequence, "x" * 4000, 0, now_ns=0)
    gone = [each for letter in machine.store.dead.list() for each in dead.add(letter)]
    assert len(gone) == 2
    assert dead.bytes <= 10_000
    for letter in dead.list():
        dead.remove(letter.job.sequence)
    assert dead.bytes == 0


BAD = {
    "unproven_max": {"unproven_max": 0},
    "hold_ms": {"hold_ms": -1},
    "extend_max_ms": {"extend_max_ms": -1},
    "reject_delay_max_ms": {"reject_delay_max_ms": float("nan")},
    "history_characters_max": {"history_characters_max": -1},
}


@pytest.mark.parametrize(("name", "change"), BAD.items())
def test_settings_have_limits(name, change):
    with pytest.raises(ValueError, match=name):
        QueueConfig(**change)
