"""JobQueue and workers that are stuck in a job: what they do not begin goes to others."""

from p2pmsg.queue.rules import QueuedJob
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


def test_a_worker_alone_gets_what_timed_out_there_again():
    machine, (only,) = with_workers(1, retry_max=1.0)
    push(machine, 0)
    for number in range(20):
        assert taken(machine, 2 * number * SECOND) == [(0, 1)]
        time_out(machine, only, (2 * number + 1) * SECOND)


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
