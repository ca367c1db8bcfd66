"""One job, and runs of jobs that have nothing but a value."""

from dataclasses import dataclass, field
from typing import NamedTuple


class Failure(NamedTuple):
    """One delivery that came to nothing."""

    at_ns: int
    """When, in ns since the epoch."""

    worker: str
    """Who had it."""

    reason: str
    """In the worker's words, or the queue's."""


@dataclass(slots=True, eq=False)
class QueuedJob:
    """A job that is kept on its own, not in a run."""

    sequence: int
    payload: bytes
    """The value, packed."""

    pushed_ns: int
    """When it was pushed, in ns since the epoch."""

    key: str | None = None
    priority: int = 0
    message_id: str | None = None
    headers: bytes | None = None
    """Packed."""

    due_ns: int = 0
    """Not before this time (ns since the epoch); 0: at once."""

    deliveries: int = 0
    """How often it was delivered and may have been begun."""

    failures: int = 0
    """How many of these count as its failures, against `deliveries_max`."""

    first_ns: int = 0
    last_ns: int = 0
    """When it was delivered first and last, in ns since the epoch; 0: not yet."""

    quarantined: bool = False
    """It was among several jobs of a worker that was lost, so it is delivered alone from now on: if
    that worker is lost too, this job did it."""

    history: list[Failure] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Bytes that it counts for."""
        return len(self.payload) + (len(self.headers) if self.headers else 0) + 64

    @property
    def reason(self) -> str:
        """Why the last delivery failed; empty where none did."""
        return self.history[-1].reason if self.history else ""


class JobRun:
    """Jobs with consecutive sequences that have nothing but a value, packed one after the other.

    So that what makes a queue fast costs nothing a job: they are accepted, handed out and
    acknowledged by the run, and become `QueuedJob`s only where one of them fails.

    Attributes:
        sequence: of the first job that is still in.
        payload: all values, as `ends` cuts them.
        ends: where each value ends in `payload`; the first begins at `start`.
        pushed_ns: when the first was pushed, in ns since the epoch.

    """

    __slots__ = ("_at", "_start", "ends", "payload", "pushed_ns", "sequence")

    def __init__(
        self, sequence: int, payload: bytes, ends: list[int], pushed_ns: int, start: int = 0
    ) -> None:
        self.sequence = sequence
        self.payload = payload
        self.ends = ends
        self.pushed_ns = pushed_ns
        self._start = start
        self._at = 0

    @property
    def count(self) -> int:
        """How many jobs are still in."""
        return len(self.ends) - self._at

    @property
    def size(self) -> int:
        """Bytes of the jobs that are still in."""
        return self.ends[-1] - self._start

    def take(self, count: int) -> "JobRun":
        """Take the first `count` jobs out, at least one."""
        # The parts share the payload: cutting it is left to `values`, which has to copy it anyway.
        at, start, ends = self._at, self._start, self.ends
        if at == 0 and count >= len(ends):
            self._at = len(ends)
            return JobRun(self.sequence, self.payload, ends, self.pushed_ns, start)
        stop = min(at + count, len(ends))
        end = ends[stop - 1]
        part = JobRun(self.sequence, self.payload, ends[at:stop], self.pushed_ns, start)
        self.sequence += stop - at
        self._at, self._start = stop, end
        return part

    def values(self) -> bytes:
        """Return the packed values of the jobs that are in."""
        return self.payload[self._start : self.ends[-1]]

    def job(self, index: int) -> QueuedJob:
        """Return one of them on its own, counted from the first that is still in."""
        at = self._at + index
        start = self.ends[at - 1] if at else self._start
        payload = self.payload[start : self.ends[at]]
        return QueuedJob(self.sequence + index, payload, self.pushed_ns)
