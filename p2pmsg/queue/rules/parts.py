"""Parts of the job store: what may go out, the order of keys, dead letters, message ids."""

from collections import OrderedDict, deque
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any

from p2pmsg.queue.rules.config import PRIORITY_MAX
from p2pmsg.queue.rules.in_flight import JobRun, QueuedJob
from recovery.checks import to_ns

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
        """Add new jobs after the others of priority 0."""
        self._queues[0].fresh.append(run)
        self.count += run.count

    def append(self, job: QueuedJob) -> None:
        """Add a new job after the others of its priority."""
        self._queues[job.priority].fresh.append(job)
        self.count += 1

    def put_back(self, job: QueuedJob) -> None:
        """Add a job that had to wait for something, or came back."""
        heappush(self._queues[job.priority].back, (job.sequence, job))
        self.count += 1

    def remove(self, job: QueuedJob) -> bool:
        """Take a job out that came back; whether it was here."""
        found = remove_from(self._queues[job.priority].back, job)
        self.count -= found
        return found

    def take(self, count_max: int, bytes_max: int) -> Taken | None:
        """Take the next jobs out: some of a run, or some on their own; None where none is left.

        They have at most `bytes_max`, except for one that alone has more.
        """
        for queue in reversed(self._queues):
            if queue.back or queue.fresh:
                return self._take_from(queue, count_max, bytes_max)
        return None

    def _take_from(self, queue: _PriorityQueue, count_max: int, bytes_max: int) -> Taken:
        back, fresh = queue.back, queue.fresh
        jobs: list[QueuedJob] = []
        size = 0
        while len(jobs) < count_max:
            first = fresh[0] if fresh else None
            came_back = back and (first is None or back[0][0] < first.sequence)
            job = back[0][1] if came_back else first
            if job is None or (jobs and (isinstance(job, JobRun) or size + job.size > bytes_max)):
                break
            if isinstance(job, JobRun):
                part = job.take(count_max, bytes_max)
                if not job.count:
                    fresh.popleft()
                self.count -= part.count
                return part
            if came_back:
                heappop(back)
            else:
                fresh.popleft()
            jobs.append(job)
            size += job.size
        self.count -= len(jobs)
        return jobs


class KeyOrder:
    """Lets one job of each key through at a time, in the order of pushing.

    One at a time, and not several to the same worker: if the first of several fails, or its worker
    falls silent, the others must not be begun before it, wherever they are.

    Attributes:
        waiting: how many jobs wait for another of their key.

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
        """Remove a job that is done or dead; return the next of its key, if there is one."""
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


@dataclass(frozen=True, slots=True)
class DeadJob:
    """A job that is a dead letter."""

    job: QueuedJob
    why: str
    """`deliveries_max` or `discarded`."""
    at_ns: int
    """Since when, in ns since the epoch."""

    @property
    def size(self) -> int:
        """Bytes that it counts for, with its history."""
        history = sum(len(failure.reason) + len(failure.worker) for failure in self.job.history)
        return self.job.size + history


class DeadJobs:
    """Dead letters by sequence, bounded by number and bytes.

    Attributes:
        bytes: how many they take.
        dropped: how many were dropped because the bounds were reached, the oldest first.

    """

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._jobs: OrderedDict[int, DeadJob] = OrderedDict()
        self.bytes = 0
        self.dropped = 0

    def add(self, dead: DeadJob) -> list[DeadJob]:
        """Keep a dead letter; return those that were dropped for it."""
        self._jobs[dead.job.sequence] = dead
        self.bytes += dead.size
        gone = []
        while len(self._jobs) > self._count_max or (
            self.bytes > self._bytes_max and len(self._jobs) > 1
        ):
            oldest = self._jobs.popitem(last=False)[1]
            self.bytes -= oldest.size
            self.dropped += 1
            gone.append(oldest)
        return gone

    def get(self, sequence: int) -> DeadJob | None:
        """Return one, or None."""
        return self._jobs.get(sequence)

    def resync(self) -> None:
        """Count the bytes again."""
        self.bytes = sum(dead.size for dead in self._jobs.values())

    def remove(self, sequence: int) -> DeadJob | None:
        """Take one out, or return None."""
        dead = self._jobs.pop(sequence, None)
        if dead is not None:
            self.bytes -= dead.size
        return dead

    def list(self) -> list[DeadJob]:
        """Return all, oldest first."""
        return [*self._jobs.values()]

    def __len__(self) -> int:
        return len(self._jobs)


class DedupWindow:
    """Remembers message ids for a time, and not more of them than a number."""

    def __init__(self, window: float, ids_max: int) -> None:
        self._window_ns = to_ns(window)
        self._ids_max = ids_max
        self._ids: OrderedDict[str, tuple[int, int]] = OrderedDict()

    def find(self, message_id: str, *, now_ns: int) -> int | None:
        """Return the sequence under which the id was seen, or None."""
        self.expire(now_ns=now_ns)
        seen = self._ids.get(message_id)
        return seen[0] if seen is not None else None

    def seen_at_ns(self, message_id: str, sequence: int) -> int | None:
        """Return when the id was seen with that sequence, or None."""
        seen = self._ids.get(message_id)
        return seen[1] if seen is not None and seen[0] == sequence else None

    def add(self, message_id: str, sequence: int, *, now_ns: int) -> None:
        """Remember an id that was not known."""
        if len(self._ids) >= self._ids_max:
            self._ids.popitem(last=False)
        self._ids[message_id] = (sequence, now_ns)

    def expire(self, *, now_ns: int) -> None:
        """Forget ids that are older than the window."""
        ids = self._ids
        while ids:
            message_id = next(iter(ids))
            if now_ns - ids[message_id][1] < self._window_ns:
                return
            del ids[message_id]


def remove_from(heap: list[Any], job: QueuedJob) -> bool:
    """Take a job out of a heap whose entries end with jobs; whether it was there."""
    for at, entry in enumerate(heap):
        if entry[-1] is job:
            del heap[at]
            heapify(heap)
            return True
    return False
