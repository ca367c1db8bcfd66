"""Jobs, alone and in runs, and what a worker has in flight: each job by a delivery number."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
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


@dataclass(slots=True, eq=False, weakref_slot=True)
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
    """Not before this time (ns since the epoch), for the log; 0: at once."""

    deliveries: int = 0
    """How often it was delivered and may have been begun."""

    failures: int = 0
    """How many of these count as its failures, against `deliveries_max`."""

    first_ns: int = 0
    last_ns: int = 0
    """When it was delivered first and last, in ns since the epoch; 0: not yet."""

    quarantined: bool = False
    """It was among several jobs of a worker that was lost, or did not arrive twice, so it is
    delivered alone from now on: if that worker is lost too, this job did it."""

    history: list[Failure] = field(default_factory=list)

    frame_bytes: int = 0
    """Alone in a frame it takes so many bytes, and is to go out so, since a worker did not take its
    frame; 0: it goes out with others."""

    cuts: int = 0
    """How often its worker's connection ended before it arrived, since the pusher started."""

    ready_ns: int = 0
    """What `due_ns` says, by the monotonic clock: a step of the wall clock does not move it."""

    delivery: int = 0
    """The number of the delivery that ended last."""

    done: bool = False
    """Whether a worker has done it: what becomes of other deliveries does not matter."""

    holder: int = 0
    """Which worker may have it; 0: none has."""

    @property
    def goes_alone(self) -> bool:
        """Whether it goes to a worker that has nothing else."""
        return self.quarantined or self.frame_bytes > 0

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
        first: the sequence of the first job that was ever in.
        open: of a run that was accepted, a bit for each job that is not done, the first lowest;
            those that are kept on their own have none.

    """

    __slots__ = (
        "_at", "_begin", "_start", "_whole", "ends", "first", "open", "payload", "pushed_ns",
        "sequence",
    )  # fmt: skip

    def __init__(
        self,
        sequence: int,
        payload: bytes,
        ends: Sequence[int],
        pushed_ns: int,
        start: int = 0,
        whole: "JobRun | None" = None,
    ) -> None:
        self.sequence = self.first = sequence
        self.payload = payload
        self.ends = ends
        self.pushed_ns = pushed_ns
        self._start = self._begin = start
        self._at = 0
        self._whole = whole
        """What it was taken from; None: it was accepted so."""
        self.open = (1 << len(ends)) - 1 if whole is None else 0

    @property
    def count(self) -> int:
        """How many jobs are still in."""
        return len(self.ends) - self._at

    @property
    def size(self) -> int:
        """Bytes of the jobs that are still in."""
        return self.ends[-1] - self._start

    def take(self, count: int, bytes_max: int) -> "JobRun":
        """Take the first `count` jobs out, or as many as have `bytes_max`; at least one."""
        # The parts share the payload: cutting it is left to `values`, which has to copy it anyway.
        at, start, ends = self._at, self._start, self.ends
        if at == 0 and count >= len(ends) and self.size <= bytes_max:
            self._at = len(ends)
            return JobRun(self.sequence, self.payload, ends, self.pushed_ns, start, self)
        stop = min(at + count, len(ends))
        stop = max(at + 1, bisect_right(ends, start + bytes_max, at, stop))
        end = ends[stop - 1]
        part = JobRun(self.sequence, self.payload, ends[at:stop], self.pushed_ns, start, self)
        self.sequence += stop - at
        self._at, self._start = stop, end
        return part

    def end(self, bits: int) -> "JobRun":
        """Note that these jobs, by their bits, have left; return the run that was accepted."""
        whole = self if self._whole is None else self._whole
        whole.open &= ~(bits << (self.first - whole.first))
        return whole

    def open_jobs(self) -> "list[QueuedJob]":
        """Return the jobs, of a run that was accepted, that are not done, each on its own."""
        ends, payload, jobs = self.ends, self.payload, []
        for at in bits_of(self.open):
            start = ends[at - 1] if at else self._begin
            jobs.append(QueuedJob(self.first + at, payload[start : ends[at]], self.pushed_ns))
        return jobs

    def values(self) -> memoryview:
        """Return the packed values of the jobs that are in."""
        return memoryview(self.payload)[self._start : self.ends[-1]]

    def job(self, index: int) -> QueuedJob:
        """Return one of them on its own, counted from the first that is still in."""
        at = self._at + index
        start = self.ends[at - 1] if at else self._start
        payload = self.payload[start : self.ends[at]]
        return QueuedJob(self.sequence + index, payload, self.pushed_ns)


class DeliveryBatch:
    """Jobs that went to a worker in one frame, under consecutive delivery numbers.

    Attributes:
        first: the first delivery number.
        count: how many jobs went out.
        run: the jobs, where they are a run without keys and the like; else None.
        jobs: the jobs, where they are kept one by one; else None.
        open: a bit for each that is not ended, the first lowest.
        sent_ns: when, by the monotonic clock.
        at_ns: when, in ns since the epoch.
        size: bytes.
        is_alone: whether it is a job that goes alone.

    """

    __slots__ = ("at_ns", "count", "first", "is_alone", "jobs", "open", "run", "sent_ns", "size")

    def __init__(
        self, first: int, run: JobRun | None, jobs: list[QueuedJob] | None, sent_ns: int, at_ns: int
    ) -> None:
        self.first = first
        self.run = run
        self.jobs = jobs
        if run is not None:
            self.count, self.size = run.count, run.size
        else:
            assert jobs is not None
            self.count, self.size = len(jobs), sum(job.size for job in jobs)
        self.is_alone = jobs is not None and jobs[0].goes_alone
        self.open = (1 << self.count) - 1
        self.sent_ns = sent_ns
        self.at_ns = at_ns

    @property
    def stop(self) -> int:
        """The first delivery number after these."""
        return self.first + self.count

    def job(self, index: int) -> QueuedJob:
        """Return one of the jobs on its own."""
        if self.jobs is not None:
            return self.jobs[index]
        assert self.run is not None
        job = self.run.job(index)
        job.deliveries = 1
        job.first_ns = job.last_ns = self.at_ns
        return job


def bits_of(mask: int) -> Iterator[int]:
    """Return the positions of the bits that are set, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def runs_of(mask: int) -> Iterator[tuple[int, int]]:
    """Return the half-open runs of bits that are set, lowest first."""
    at = 0
    while mask:
        skip = (mask & -mask).bit_length() - 1
        mask >>= skip
        at += skip
        length = ((mask + 1) & -(mask + 1)).bit_length() - 1
        yield at, at + length
        mask >>= length
        at += length


class Deliveries:
    """The batches that one worker has, by delivery number.

    Attributes:
        count: jobs that are not ended. most: of these at any time.
        bytes: of the batches that have such jobs.

    """

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._batches: list[DeliveryBatch] = []
        self.count = self.bytes = self.most = 0

    def add(self, batch: DeliveryBatch) -> None:
        """Add a batch; delivery numbers may come in any order only where one is adopted."""
        at = bisect_right(self._firsts, batch.first)
        self._firsts.insert(at, batch.first)
        self._batches.insert(at, batch)
        self.count += batch.count
        self.most = max(self.most, self.count)
        self.bytes += batch.size

    def end(self, start: int, stop: int) -> list[tuple[DeliveryBatch, int]]:
        """Close the deliveries `[start, stop)`; return those that were open, as batches and bits.

        Batches with nothing open are removed.
        """
        firsts, batches = self._firsts, self._batches
        at = max(0, bisect_right(firsts, start) - 1)
        found: list[tuple[DeliveryBatch, int]] = []
        while at < len(batches) and firsts[at] < stop:
            batch = batches[at]
            low = max(0, start - batch.first)
            high = min(batch.count, stop - batch.first)
            if low < high:
                bits = batch.open & (((1 << (high - low)) - 1) << low)
                if bits:
                    batch.open ^= bits
                    self.count -= bits.bit_count()
                    found.append((batch, bits))
                    if not batch.open:
                        del firsts[at], batches[at]
                        self.bytes -= batch.size
                        continue
            at += 1
        return found

    def batches(self) -> list[DeliveryBatch]:
        """Return the batches, oldest delivery first."""
        return list(self._batches)

    @property
    def has_alone(self) -> bool:
        """Whether there is a job that goes alone."""
        return bool(self._batches) and self._batches[0].is_alone

    def oldest(self) -> DeliveryBatch | None:
        """Return the batch with the oldest delivery."""
        return self._batches[0] if self._batches else None

    def open_ranges(self) -> list[tuple[int, int]]:
        """Return the delivery numbers that are not ended."""
        return [
            (batch.first + low, batch.first + high)
            for batch in self._batches
            for low, high in runs_of(batch.open)
        ]
