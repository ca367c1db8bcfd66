"""Many deadlines, of which only the earliest matters."""

from collections.abc import Hashable
from heapq import heapify, heappop, heappush, heapreplace
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_SLACK = 64


class DeadlineHeap(Generic[K]):
    """Keys with one deadline each; `first()` is the earliest.

    Moving a deadline out, which happens with every repaired frame, costs two dictionary
    operations: the heap's entry stays where it is and is put right when it comes to the top. Stale
    entries are swept away before they outnumber the living, so memory follows the number of keys.

    Attributes:
        times: the deadline of each key; to be read only.

    """

    __slots__ = ("_heap", "_queued", "_serial", "times")

    def __init__(self) -> None:
        self.times: dict[K, int] = {}
        self._queued: dict[K, int] = {}  # the time of the key's one valid entry in the heap
        self._heap: list[tuple[int, int, K]] = []
        self._serial = 0  # breaks ties, so that keys need no order

    def set(self, key: K, time_ns: int) -> None:
        """Give `key` the deadline `time_ns`, in place of any it had."""
        self.times[key] = time_ns
        queued = self._queued.get(key)
        if queued is None or time_ns < queued:
            self._queued[key] = time_ns
            self._serial += 1
            heappush(self._heap, (time_ns, self._serial, key))
            if len(self._heap) > 2 * len(self.times) + _SLACK:
                self._sweep()

    def get(self, key: K) -> int | None:
        """Return the deadline of `key`, or None."""
        return self.times.get(key)

    def discard(self, key: K) -> None:
        """Forget `key`, if it is known."""
        if self.times.pop(key, None) is not None:
            del self._queued[key]

    def clear(self) -> None:
        """Forget every key."""
        self.times.clear()
        self._queued.clear()
        self._heap.clear()

    def first(self) -> tuple[int, K] | None:
        """Return the earliest deadline and its key, or None."""
        heap = self._heap
        while heap:
            queued, _, key = heap[0]
            if self._queued.get(key) != queued:
                heappop(heap)
                continue
            time_ns = self.times[key]
            if time_ns == queued:
                return time_ns, key
            self._queued[key] = time_ns
            self._serial += 1
            heapreplace(heap, (time_ns, self._serial, key))
        return None

    def pop_due(self, now_ns: int) -> K | None:
        """Forget and return the key with the earliest deadline, if that is not after `now_ns`."""
        if not self._heap:
            return None
        first = self.first()
        if first is None or first[0] > now_ns:
            return None
        self.discard(first[1])
        heappop(self._heap)
        return first[1]

    def __contains__(self, key: K) -> bool:
        return key in self.times

    def __len__(self) -> int:
        return len(self.times)

    def _sweep(self) -> None:
        self._heap = [
            (time_ns, serial, key) for serial, (key, time_ns) in enumerate(self.times.items())
        ]
        self._queued = dict(self.times)
        self._serial = len(self._heap)
        heapify(self._heap)
