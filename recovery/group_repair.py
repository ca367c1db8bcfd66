"""Which repair a multicast publisher sends next, to all at once.

It is a `RetransmitScheduler` (turns, bounds and a budget for each requester) that answers a group::

    request ──▶ on its way already? ──yes──▶ ignored
                  │no
                  ▼
               queued, by the first asker ──sent──▶ lingers

A repair *lingers* for `LINGER_NS`: who asks for it meanwhile has most likely not seen it yet. But
who asks for the second time has waited for it in vain, so a range is ignored only while it was
repaired at least as often as this requester has asked.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from recovery.budget import TokenBucket
from recovery.ranges import RangeSet
from recovery.retransmit import RetransmitScheduler

LINGER_NS: Final = 10_000_000
"""Time for which a repair is not repeated without need, as in Aeron."""
_LINGERING_MAX: Final = 4096


@dataclass(slots=True)
class _Repaired:
    when_ns: int
    stream: str
    start: int
    stop: int
    times: int


class GroupRepair:
    """What the group still waits for, and whose turn it is.

    Args:
        rate_bytes_s: bytes of repairs a second, to all receivers together, at least 32; half of it
            to one. A 32nd of it may go out at once after a pause. Default 128 MiB/s, which leave
            most of a fast link to what is new, and 4 MiB: a quarter of a receive buffer.

    """

    def __init__(self, rate_bytes_s: int = 128 * 2**20) -> None:
        self._scheduler: RetransmitScheduler[str] = RetransmitScheduler(
            linger=0.0, budget_bytes_s=rate_bytes_s // 2, budget_burst_bytes=rate_bytes_s // 16
        )
        self._bucket = TokenBucket(rate_bytes_s, rate_bytes_s // 32)
        self._queued: dict[str, RangeSet] = {}
        self._recent: deque[_Repaired] = deque(maxlen=_LINGERING_MAX)

    def request(
        self,
        requester: bytes,
        stream: str,
        ranges: Iterable[tuple[int, int]],
        *,
        attempt: int = 1,
        now_ns: int,
    ) -> list[tuple[int, int]]:
        """Take a NACK; returns the ranges refused because a bound is met.

        `attempt` is how often this requester has asked for them, from 1 on.
        """
        while self._recent and self._recent[0].when_ns + LINGER_NS <= now_ns:
            self._recent.popleft()
        covered = RangeSet(
            (done.start, done.stop)
            for done in self._recent
            if done.stream == stream and done.times >= attempt
        )
        queued = self._queued.get(stream)
        new: list[tuple[int, int]] = []
        for start, stop in ranges:
            for low, high in covered.missing(start, stop):
                new += [(low, high)] if queued is None else queued.missing(low, high)
        if not new:
            return []
        refused = self._scheduler.request(requester, stream, new, now_ns=now_ns)
        wanted = self._queued.setdefault(stream, RangeSet())
        for start, stop in new:
            wanted.add(start, stop)
        for start, stop in refused:
            wanted.remove(start, stop)
        if not wanted:
            del self._queued[stream]
        return refused

    def next_job(self, *, now_ns: int) -> tuple[bytes, str, int, int] | None:
        """Return (requester, stream, start, stop) to repair now, or None; see `sent`."""
        if self._bucket.available(now_ns) < 1:
            return None
        return self._scheduler.next_job(now_ns=now_ns)

    def sent(
        self, requester: bytes, stream: str, start: int, stop: int, size: int, *, now_ns: int
    ) -> None:
        """Note that `[start, stop)` went out in `size` bytes, and charge who asked for it."""
        self._bucket.take(size, now_ns)
        self._scheduler.sent(requester, stream, start, stop, size, now_ns=now_ns)
        self._remove(stream, start, stop)
        times = 1 + max(
            (
                done.times
                for done in self._recent
                if done.stream == stream and done.start < stop and start < done.stop
            ),
            default=0,
        )
        self._recent.append(_Repaired(now_ns, stream, start, stop, times))

    def drop_range(self, requester: bytes, stream: str, start: int, stop: int) -> None:
        """Forget `[start, stop)`: it is not kept."""
        self._scheduler.drop_range(requester, stream, start, stop)
        self._remove(stream, start, stop)

    def next_deadline_ns(self, *, now_ns: int) -> int | None:
        """Return when `next_job` may have something: `now_ns` if it has, None if nothing waits."""
        due_ns = self._scheduler.next_deadline_ns(now_ns=now_ns)
        return None if due_ns is None else max(due_ns, self._bucket.ready_at_ns(now_ns))

    def _remove(self, stream: str, start: int, stop: int) -> None:
        queued = self._queued.get(stream)
        if queued is not None:
            queued.remove(start, stop)
            if not queued:
                del self._queued[stream]
