"""A pusher's core looks whether the processes of its workers still run."""

from p2pmsg.queue.puller_core import Process, PullerCore, PullerIdentity
from p2pmsg.queue.pusher_core import PusherCore
from p2pmsg.queue.rules import JobRun
from tests.queues import job_queue

MS = 1_000_000
HERE = Process("here", 5, 9)


class Pair:
    """A pusher, and a worker that it took on, whose process may end unseen by the connection."""

    def __init__(self, process=HERE):
        queue = job_queue(wall_offset_ns=0, first_delivery=1, records=False)
        self.ended, self.looked = set(), 0
        self.pusher = PusherCore(
            queue, name="jobs", session=7, incarnation=1, is_gone=self._is_gone
        )
        self.worker = PullerCore(PullerIdentity(1, "worker", process, 4), now_ns=0)
        for _ in range(2):
            self.exchange(0)
        assert self.worker.joined
        queue.store.push_run(JobRun(0, b"\xc0", [1], 0))
        self.exchange(0)
        assert self.store.priorities.count == 0

    @property
    def store(self):
        return self.pusher.queue.store

    def exchange(self, now_ns):
        self.worker.handle_timer(now_ns=now_ns)
        while self.worker.outbox:
            self.pusher.receive(b"a", self.worker.outbox.popleft(), now_ns=now_ns)
        self.pusher.handle_timer(now_ns=now_ns)
        while self.pusher.outbox:
            self.worker.receive(self.pusher.outbox.popleft()[1], now_ns=now_ns)

    def run(self, start_ms, stop_ms):
        """Let the pusher go by its own deadlines; return when it lost the worker, or None."""
        now_ns = start_ms * MS
        for _ in range(100):
            due_ns = self.pusher.next_deadline_ns(now_ns=now_ns)
            now_ns = stop_ms * MS if due_ns is None else max(now_ns, min(due_ns, stop_ms * MS))
            self.pusher.handle_timer(now_ns=now_ns)
            if not self.pusher.queue.workers:
                return now_ns // MS
            if now_ns >= stop_ms * MS:
                return None
        raise AssertionError("the deadline does not move")

    def _is_gone(self, host, pid, started):
        assert host
        self.looked += 1
        return Process(host, pid, started) in self.ended


def test_a_worker_that_ended_loses_its_jobs_although_its_connection_stands():
    pair = Pair()
    pair.ended.add(HERE)
    lost_ms = pair.run(0, 5000)
    assert lost_ms is not None
    assert lost_ms <= 2000
    assert pair.store.priorities.count == 1
    pair.pusher.unreachable(b"a", now_ns=6000 * MS)  # when the child has ended, too


def test_a_worker_that_is_silent_and_runs_keeps_its_jobs():
    pair = Pair()
    assert pair.run(0, 5000) is None
    assert 3 <= pair.looked <= 8


def test_a_worker_that_gives_signs_of_life_is_not_looked_for():
    pair = Pair()
    for now_ms in range(0, 3000, 100):
        pair.exchange(now_ms * MS)
    assert pair.looked == 0


def test_a_worker_of_which_the_process_is_not_known_is_waited_for():
    pair = Pair(Process())
    assert pair.run(0, 5000) is None
    assert pair.looked == 0
