"""What a worker has in flight: batches of jobs, each job with a delivery number of its own."""

from bisect import bisect_right
from collections.abc import Iterator

from p2pmsg.queue.rules.job import JobRun, QueuedJob


class DeliveryBatch:
    """Jobs that went to a worker in one frame, under consecutive delivery numbers.

    Attributes:
        first: the first delivery number.
        count: how many jobs went out.
        run: the jobs, where they are a run without keys and the like; else None.
        jobs: the jobs, where they are kept one by one; else None.
        open: a bit for each that is not settled, the first lowest.
        sent_ns: when, by the monotonic clock.
        at_ns: when, in ns since the epoch.
        size: bytes.

    """

    __slots__ = ("at_ns", "count", "first", "jobs", "open", "run", "sent_ns", "size")

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
        count: jobs that are not settled.

    """

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._batches: list[DeliveryBatch] = []
        self.count = 0

    def add(self, batch: DeliveryBatch) -> None:
        """Add a batch; delivery numbers may come in any order only where one is adopted."""
        at = bisect_right(self._firsts, batch.first)
        self._firsts.insert(at, batch.first)
        self._batches.insert(at, batch)
        self.count += batch.count

    def settle(self, start: int, stop: int) -> list[tuple[DeliveryBatch, int]]:
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
                        continue
            at += 1
        return found

    def batches(self) -> list[DeliveryBatch]:
        """Return the batches, oldest delivery first."""
        return list(self._batches)

    def oldest(self) -> DeliveryBatch | None:
        """Return the batch with the oldest delivery."""
        return self._batches[0] if self._batches else None

    def open_ranges(self) -> list[tuple[int, int]]:
        """Return the delivery numbers that are not settled."""
        return [
            (batch.first + low, batch.first + high)
            for batch in self._batches
            for low, high in runs_of(batch.open)
        ]
