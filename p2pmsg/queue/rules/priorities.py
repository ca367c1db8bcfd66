"""What waits to be handed out: ten queues by priority, and the order of each key."""

from collections import deque
from heapq import heappop, heappush

from p2pmsg.queue.rules.config import PRIORITY_MAX
from p2pmsg.queue.rules.job import JobRun, QueuedJob

Taken = JobRun | list[QueuedJob]


class _PriorityQueue:
    __slots__ = ("back", "fresh")

    def __init__(self) -> None:
        self.fresh: deque[JobRun | QueuedJob] = deque()
        self.back: list[tuple[int, QueuedJob]] = []
        """Those that had to wait for something, or came back, by sequence."""


class PriorityQueues:
    """Jobs that may be handed out now, the highest priority first, then in the order of pushing.

    What came back from a worker, or waited for another job of its key, stands where its sequence
    puts it: ahead of what was pushed later, and never ahead of what was pushed before.

    Attributes:
        count: how many there are.

    """

    def __init__(self) -> None:
        self._queues = [_PriorityQueue() for _ in range(PRIORITY_MAX + 1)]
        self.count = 0

    def append_run(self, run: JobRun) -> None:
        """Add new jobs behind the others of priority 0."""
        self._queues[0].fresh.append(run)
        self.count += run.count

    def append(self, job: QueuedJob) -> None:
        """Add a new job behind the others of its priority."""
        self._queues[job.priority].fresh.append(job)
        self.count += 1

    def put_back(self, job: QueuedJob) -> None:
        """Add a job whose turn came late, or comes again."""
        heappush(self._queues[job.priority].back, (job.sequence, job))
        self.count += 1

    def take(self, count_max: int, bytes_max: int) -> Taken | None:
        """Take the next jobs out: some of a run, or some on their own; None where none is left."""
        for queue in reversed(self._queues):
            if queue.back or queue.fresh:
                return self._take_from(queue, count_max, bytes_max)
        return None

    def _take_from(self, queue: _PriorityQueue, count_max: int, bytes_max: int) -> Taken:
        back, fresh = queue.back, queue.fresh
        jobs: list[QueuedJob] = []
        size = 0
        while len(jobs) < count_max and size < bytes_max:
            first = fresh[0] if fresh else None
            if back and (first is None or back[0][0] < first.sequence):
                job = heappop(back)[1]
            elif isinstance(first, QueuedJob):
                job = first
                fresh.popleft()
            elif first is None or jobs:
                break
            else:
                part = first.take(count_max)
                if not first.count:
                    fresh.popleft()
                self.count -= part.count
                return part
            jobs.append(job)
            size += job.size
        self.count -= len(jobs)
        return jobs


class KeyOrder:
    """Lets one job of each key through at a time, in the order of pushing.

    One at a time, and not several to the same worker: if the first of several fails, or its worker
    falls silent, the others must not be begun before it, wherever they are.

    Attributes:
        waiting: how many jobs wait behind another of their key.

    """

    def __init__(self) -> None:
        self._ahead: dict[str, int] = {}
        self._queues: dict[str, list[tuple[int, QueuedJob]]] = {}
        self.waiting = 0

    def enter(self, job: QueuedJob) -> bool:
        """Whether a job with a key may go ahead; otherwise it waits here."""
        assert job.key is not None
        if job.key not in self._ahead:
            self._ahead[job.key] = job.sequence
            return True
        heappush(self._queues.setdefault(job.key, []), (job.sequence, job))
        self.waiting += 1
        return False

    def leave(self, job: QueuedJob) -> QueuedJob | None:
        """Note that a job is done with for good; return the next of its key, if there is one."""
        assert job.key is not None
        assert self._ahead[job.key] == job.sequence
        queue = self._queues.get(job.key)
        if not queue:
            del self._ahead[job.key]
            return None
        sequence, following = heappop(queue)
        if not queue:
            del self._queues[job.key]
        self._ahead[job.key] = sequence
        self.waiting -= 1
        return following

    def __len__(self) -> int:
        return len(self._ahead)
