"""What waits to be handed out: ten lanes by priority, and a gate for each key."""

from collections import deque
from heapq import heappop, heappush

from p2pmsg.queue.rules.config import PRIORITY_MAX
from p2pmsg.queue.rules.job import Lot, QueuedJob

Taken = Lot | list[QueuedJob]


class _Lane:
    __slots__ = ("back", "fresh")

    def __init__(self) -> None:
        self.fresh: deque[Lot | QueuedJob] = deque()
        self.back: list[tuple[int, QueuedJob]] = []
        """Those that had to wait for something, or came back, by sequence."""


class Lanes:
    """Jobs that may be handed out now, the highest priority first, then in the order of pushing.

    What came back from a worker, or waited for another job of its key, stands where its sequence
    puts it: ahead of what was pushed later, and never ahead of what was pushed before.

    Attributes:
        count: how many there are.

    """

    def __init__(self) -> None:
        self._lanes = [_Lane() for _ in range(PRIORITY_MAX + 1)]
        self.count = 0

    def append_lot(self, lot: Lot) -> None:
        """Add new jobs behind the others of priority 0."""
        self._lanes[0].fresh.append(lot)
        self.count += lot.count

    def append(self, job: QueuedJob) -> None:
        """Add a new job behind the others of its priority."""
        self._lanes[job.priority].fresh.append(job)
        self.count += 1

    def put_back(self, job: QueuedJob) -> None:
        """Add a job whose turn came late, or comes again."""
        heappush(self._lanes[job.priority].back, (job.sequence, job))
        self.count += 1

    def take(self, count_max: int, bytes_max: int) -> Taken | None:
        """Take the next jobs out: some of a lot, or some on their own; None where none is left."""
        for lane in reversed(self._lanes):
            if lane.back or lane.fresh:
                return self._take_from(lane, count_max, bytes_max)
        return None

    def _take_from(self, lane: _Lane, count_max: int, bytes_max: int) -> Taken:
        back, fresh = lane.back, lane.fresh
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


class KeyGates:
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
