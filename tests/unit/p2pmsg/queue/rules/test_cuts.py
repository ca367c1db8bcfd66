"""JobQueue, case by case: jobs that did not arrive before their worker's connection ended."""

from p2pmsg.queue.rules import BreakerState, JobRun, QueuedJob
from tests.queues import job_queue

S = 1_000_000_000


def with_worker(count, **settings):
    """A queue, its worker, and `count` jobs that all go out in one frame."""
    machine = job_queue(**{"unproven_max": 1000, "deliveries_max": 2, **settings})
    worker = machine.join(1, "w", 1000, now_ns=0)
    payload = b"".join(b"%02d" % n for n in range(count))
    machine.store.push_run(JobRun(0, payload, [2 * n + 2 for n in range(count)], 1))
    return machine, worker


def sent(machine, now_ns=0):
    """Hand out all that can be: the sequences of each batch."""
    found = []
    while (pair := machine.take(now_ns=now_ns)) is not None:
        _, batch = pair
        found.append([batch.job(n).sequence for n in range(batch.count)])
    return found


def again(machine, worker, held=(), now_ns=0, ended=True):
    """The worker comes back, over another connection where the former one `ended`."""
    machine.cut(worker.id, now_ns=now_ns)
    machine.join(worker.id, "w", 1000, now_ns=now_ns)
    machine.reconcile(worker, held, now_ns=now_ns, ended=ended)


def done(machine, worker, now_ns=0):
    for start, stop in worker.assigned.open_ranges():
        machine.ack(worker, start, stop, now_ns=now_ns)


def test_a_connection_that_ends_once_costs_nothing():
    machine, worker = with_worker(4)
    assert sent(machine) == [[0, 1, 2, 3]]
    again(machine, worker)
    assert sent(machine) == [[0, 1, 2, 3]]
    done(machine, worker)
    assert (machine.store.done, machine.store.failed, machine.recalled) == (4, 0, 4)
    assert not machine.warnings


def test_jobs_that_did_not_arrive_twice_go_out_alone_to_find_the_one():
    machine, worker = with_worker(4)
    for _ in range(2):
        assert sent(machine) == [[0, 1, 2, 3]]
        again(machine, worker)
    for sequence in (0, 1):
        assert sent(machine) == [[sequence]]
        done(machine, worker)
    assert sent(machine) == [[2]]
    again(machine, worker)  # it is the one: the others are done before it is tried again
    assert sent(machine) == [[3]]
    done(machine, worker)
    machine.handle_timer(now_ns=S - 1)
    assert sent(machine, S - 1) == []
    machine.handle_timer(now_ns=S)
    assert sent(machine, S) == [[2]]
    again(machine, worker, now_ns=S)
    (dead,) = machine.store.dead.list()
    assert (dead.job.sequence, dead.why) == (2, "deliveries_max")
    assert "its worker's connection ended 4 times when it came" in dead.job.reason
    assert (machine.store.done, machine.store.in_flight, machine.store.bytes) == (3, 0, 0)
    assert machine.breaker.state is worker.breaker.state is BreakerState.CLOSED


def test_what_was_not_alone_or_arrived_does_not_fail():
    machine, worker = with_worker(1, deliveries_max=1)
    for _ in range(2):
        sent(machine)
        again(machine, worker)
    assert sent(machine) == [[0]]
    again(machine, worker, worker.assigned.open_ranges())  # it arrived
    assert worker.assigned.count == 1
    again(machine, worker, ended=False)  # it was given back over the same connection
    assert sent(machine) == [[0]]
    assert machine.store.failed == 0
    again(machine, worker)
    assert machine.store.died == 1


def test_jobs_of_a_frame_that_arrived_are_not_unconfirmed():
    machine, worker = with_worker(4)
    for _ in range(3):
        sent(machine)
        (first, *_) = worker.assigned.open_ranges()
        again(machine, worker, [(first[0], first[0] + 1)])
        done(machine, worker)
    assert sent(machine) == [[3]]
    assert machine.store.quarantined == 0
    assert not worker.alone


def test_a_worker_gets_fewer_jobs_until_it_does_some():
    machine, worker = with_worker(40, unproven_max=4)
    worker.allowance = 1000
    assert [len(batch) for batch in sent(machine)] == [40]
    again(machine, worker)
    assert sum(len(batch) for batch in sent(machine)) == 20
    done(machine, worker)
    assert worker.allowance > 20


def test_the_next_of_a_key_waits_for_what_becomes_of_the_one():
    machine, worker = with_worker(1, deliveries_max=1)
    sent(machine)
    done(machine, worker)
    for sequence in (1, 2):
        machine.store.push(QueuedJob(sequence, b"x", 0, key="k"), now_ns=0)
    for _ in range(3):
        assert sent(machine) == [[1]]
        again(machine, worker)
    assert sent(machine) == [[2]]


def test_a_dead_letter_that_is_tried_again_is_unconfirmed_again():
    machine, worker = with_worker(1, deliveries_max=1)
    for _ in range(3):
        sent(machine)
        again(machine, worker)
    machine.store.act_on_dead("retry", None, now_ns=0)
    for _ in range(2):
        assert sent(machine) == [[0]]
        again(machine, worker)
    assert machine.store.in_flight == 1


def test_it_is_said_once_a_minute():
    machine, worker = with_worker(2, deliveries_max=1000, retry_max=1.0)
    for second in range(61):
        machine.handle_timer(now_ns=second * S)
        machine.heard(worker, now_ns=second * S)
        sent(machine, second * S)
        again(machine, worker, now_ns=second * S)
    several, alone = (text for _, text in machine.warnings)
    assert "twice or more, since its connection ended (jobs: 2)" in several
    assert "which was sent alone" in alone
    machine.warnings.clear()
    for second in range(61, 70):
        machine.handle_timer(now_ns=second * S)
        machine.heard(worker, now_ns=second * S)
        sent(machine, second * S)
        again(machine, worker, now_ns=second * S)
    ((name, text),) = machine.warnings
    assert (name, "which was sent alone" in text) == ("w", True)
