"""Jobs that nobody could do, kept to be looked at, tried again or thrown away."""

from collections import OrderedDict
from dataclasses import dataclass

from p2pmsg.queue.rules.job import QueuedJob


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
        """Bytes that it counts for, with what workers said about it."""
        words = sum(len(failure.reason) + len(failure.worker) for failure in self.job.history)
        return self.job.size + words


class DeadJobs:
    """Dead letters by sequence, bounded by number and bytes.

    Attributes:
        bytes: how many they take.
        dropped: how many were dropped for want of room, the oldest first.

    """

    __slots__ = ("_bytes_max", "_count_max", "_jobs", "bytes", "dropped")

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._jobs: OrderedDict[int, DeadJob] = OrderedDict()
        self.bytes = 0
        self.dropped = 0

    def add(self, dead: DeadJob) -> list[DeadJob]:
        """Keep a dead letter; return those that had to go for it."""
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

    def remove(self, sequence: int) -> DeadJob | None:
        """Take one out, or return None."""
        dead = self._jobs.pop(sequence, None)
        if dead is not None:
            self.bytes -= dead.size
        return dead

    def get(self, sequence: int) -> DeadJob | None:
        """Return one, or None."""
        return self._jobs.get(sequence)

    def list(self) -> list[DeadJob]:
        """Return all, oldest first."""
        return [*self._jobs.values()]

    def __len__(self) -> int:
        return len(self._jobs)
