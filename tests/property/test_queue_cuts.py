"""The work queue where large jobs end the connection of each worker to which they are sent."""

from hypothesis import given
from hypothesis import strategies as st

from p2pmsg.queue.rules import QueuedJob
from p2pmsg.queue.rules.dispatch import FRAME_BYTES_MIN
from tests.queues import job_queue

WORKERS = (1, 2)
CUTS_MAX = 12
"""More than a job has deliveries: small ones do not count them."""
CONFIG = {"deliveries_max": 4, "unproven_max": 3, "retry_delay": 0.0, "retry_max": 0.0}
KEYS = st.sampled_from((None, None, "a", "b"))


class World:
    """Workers whose connections end at some jobs, and by themselves a few times."""

    def __init__(self, keys, poison, cuts):
        self.queue, self.poison, self.cuts = job_queue(**CONFIG), poison, cuts
        self.under_way = {number: [] for number in WORKERS}
        self.begun = []
        for number in WORKERS:
            self.queue.join(number, "w", 8, now_ns=0)
        for sequence, key in enumerate(keys):
            payload = b"x" * (FRAME_BYTES_MIN if sequence in poison else 1)
            self.queue.store.push(QueuedJob(sequence, payload, 0, key=key), now_ns=0)

    def run(self):
        """Go on until nothing is in flight; it ends soon, or never."""
        for _ in range(400):
            self.queue.handle_timer(now_ns=0)
            while (found := self.queue.take(now_ns=0)) is not None:
                worker, batch = found
                jobs = [batch.job(index) for index in range(batch.count)]
                assert not (any(job.quarantined for job in jobs) and worker.assigned.count > 1)
                self.under_way[worker.id].append((batch, jobs))
            for number in WORKERS:
                self.arrive(number)

    def arrive(self, number):
        """What is sent arrives in order, up to where the connection ends."""
        frames, self.under_way[number] = self.under_way[number], []
        held = []
        cut = self.cuts.pop() if frames and self.cuts else None
        for at, (batch, jobs) in enumerate(frames):
            if at == cut or self.poison & {job.sequence for job in jobs}:
                self.come_back(number, held)
                break
            held.append((batch.first, batch.stop))
            self.begun += [(job.key, job.sequence) for job in jobs]
        for start, stop in held:
            self.queue.ack(self.queue.workers[number], start, stop, now_ns=0)

    def come_back(self, number, held):
        self.queue.cut(number, now_ns=0)
        worker = self.queue.join(number, "w", 8, now_ns=0)
        assert self.queue.reconcile(worker, held, now_ns=0, ended=True) == []


@given(
    st.lists(KEYS, min_size=1, max_size=24),
    st.sets(st.integers(0, 23), max_size=3),
    st.lists(st.integers(0, 2), max_size=CUTS_MAX),
)
def test_jobs_that_end_connections_are_found_and_no_other_fails(keys, poison, cuts):
    world = World(keys, poison, cuts)
    world.run()

    store = world.queue.store
    dead = {letter.job.sequence: letter.job for letter in store.dead.list()}
    assert dead.keys() == poison & set(range(len(keys)))
    assert all("connection ended" in job.reason for job in dead.values())
    assert sorted(n for _, n in world.begun) == [n for n in range(len(keys)) if n not in poison]
    for key in ("a", "b"):
        order = [sequence for other, sequence in world.begun if other == key]
        assert order == sorted(order)
    assert (store.in_flight, store.bytes) == (0, 0)
