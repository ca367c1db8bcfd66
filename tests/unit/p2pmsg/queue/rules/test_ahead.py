"""How many jobs a worker has that leaves it to the pusher: as many as it does in a moment."""

import pytest

from p2pmsg.queue.rules import JobRun
from tests.queues import job_queue

MS = 1_000_000
SECOND = 1000 * MS


class Working:
    """A queue with workers, which do what they have as the clock goes on."""

    def __init__(self, *ceilings, **settings):
        self.queue = job_queue(**{"unproven_max": 1000, **settings})
        self.workers = [
            self.queue.join(number, "w", 16, ceiling=ceiling, now_ns=0)
            for number, ceiling in enumerate(ceilings)
        ]
        self.now = SECOND
        self._sequence = 0

    def push(self, count, size=2):
        ends = [size * (n + 1) for n in range(count)]
        self.queue.store.push_run(JobRun(self._sequence, b"x" * (size * count), ends, 1))
        self._sequence += count

    def hand_out(self):
        while self.queue.take(now_ns=self.now) is not None:
            pass

    def do(self, worker, count):
        for _ in range(count):
            first = worker.assigned.open_ranges()[0][0]
            self.queue.ack(worker, first, first + 1, now_ns=self.now)

    def work(self, worker, each_ns, until_ns):
        """Have it do its jobs, so long each, with enough of them pushed."""
        while self.now < until_ns:
            self.push(10)
            self.hand_out()
            self.now += 10 * each_ns
            self.do(worker, 10)

    def limit(self, worker):
        return worker.limit(now_ns=self.now)


@pytest.mark.parametrize(
    ("each_ns", "ceiling", "limit"),
    [
        (10_000, 8192, 2000),  # what it does in 20 ms
        (10_000, 500, 500),
        (MS, 8192, 20),
        (2 * MS, 8192, 16),
        (100 * MS, 8192, 16),
        (10_000, 16, 16),
        (10_000, 0, 16),  # by a puller that named its prefetch
    ],
)
def test_a_worker_has_what_it_does_within_20_ms(each_ns, ceiling, limit):
    working = Working(ceiling)
    (worker,) = working.workers

    working.work(worker, each_ns, working.now + max(200 * MS, 30 * each_ns))

    assert working.limit(worker) == pytest.approx(limit, rel=0.01)
    working.push(5000)
    working.hand_out()
    assert worker.assigned.count == pytest.approx(limit, rel=0.01)


def test_one_that_was_idle_or_is_slow_at_once_counts_as_slow():
    working = Working(8192)
    (worker,) = working.workers
    working.work(worker, 10_000, working.now + 100 * MS)
    assert working.limit(worker) > 1900

    working.now += 89 * MS
    assert working.limit(worker) > 1900
    working.now += 12 * MS
    assert working.limit(worker) == 16
