"""What a worker has in hand: parcels of jobs, each job with a delivery number of its own."""

from bisect import bisect_right
from collections.abc import Iterator

from p2pmsg.queue.rules.job import Lot, QueuedJob


class Parcel:
    """Jobs that went to a worker in one frame, under consecutive delivery numbers.

    Attributes:
        first: the first delivery number.
        count: how many jobs went out.
        lot: the jobs, where they are a run without keys and the like; else None.
        jobs: the jobs, where they are looked after one by one; else None.
        open: a bit for each that is not settled, the first lowest.
        sent_ns: when, by the monotonic clock.
        at_ns: when, in ns since the epoch.
        size: bytes.

    """

    __slots__ = ("at_ns", "count", "first", "jobs", "lot", "open", "sent_ns", "size")

    def __init__(
        self, first: int, lot: Lot | None, jobs: list[QueuedJob] | None, sent_ns: int, at_ns: int
    ) -> None:
        self.first = first
        self.lot = lot
        self.jobs = jobs
        if lot is not None:
            self.count, self.size = lot.count, lot.size
        else:
            assert jobs is not None
            self.count, self.size = len(jobs), sum(job.size for job in jobs)
        self.open = (1 << self.count) - 1
        self.sent_ns = sent_ns
        self.at_ns = at_ns

    def job(self, index: int) -> QueuedJob:
        """Return one of the jobs on its own."""
        if self.jobs is not None:
            return self.jobs[index]
        assert self.lot is not None
        job = self.lot.job(index)
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


class Hand:
    """The parcels that one worker has, by delivery number.

    Attributes:
        count: jobs that are not settled.

    """

    __slots__ = ("_firsts", "_parcels", "count")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._parcels: list[Parcel] = []
        self.count = 0

    def add(self, parcel: Parcel) -> None:
        """Add a parcel; delivery numbers may come in any order only where one is adopted."""
        at = bisect_right(self._firsts, parcel.first)
        self._firsts.insert(at, parcel.first)
        self._parcels.insert(at, parcel)
        self.count += parcel.count

    def settle(self, start: int, stop: int) -> list[tuple[Parcel, int]]:
        """Close the deliveries `[start, stop)`; return those that were open, as parcels and bits.

        Parcels with nothing open leave the hand.
        """
        firsts, parcels = self._firsts, self._parcels
        at = max(0, bisect_right(firsts, start) - 1)
        found: list[tuple[Parcel, int]] = []
        while at < len(parcels) and firsts[at] < stop:
            parcel = parcels[at]
            low = max(0, start - parcel.first)
            high = min(parcel.count, stop - parcel.first)
            if low < high:
                bits = parcel.open & (((1 << (high - low)) - 1) << low)
                if bits:
                    parcel.open ^= bits
                    self.count -= bits.bit_count()
                    found.append((parcel, bits))
                    if not parcel.open:
                        del firsts[at], parcels[at]
                        continue
            at += 1
        return found

    def parcels(self) -> list[Parcel]:
        """Return the parcels, oldest delivery first."""
        return list(self._parcels)

    def oldest(self) -> Parcel | None:
        """Return the parcel with the oldest delivery."""
        return self._parcels[0] if self._parcels else None

    def open_ranges(self) -> list[tuple[int, int]]:
        """Return the delivery numbers that are not settled."""
        return [
            (parcel.first + low, parcel.first + high)
            for parcel in self._parcels
            for low, high in runs_of(parcel.open)
        ]
