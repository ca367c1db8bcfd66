"""Which of what was written the operating system is asked to keep in memory no longer."""

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from recovery.log.index import SegmentIndex

STEP_BYTES: Final = 4 * 2**20
"""What is given up at a time begins and ends at a multiple of this: whole large pages."""


class Stretch(NamedTuple):
    """Bytes of a file."""

    name: str
    start: int
    stop: int


class PageCache:
    """Keeps the newest of a log in the page cache, and gives the rest back.

    A page that was given back is the next one to be written to. Without that each frame goes to
    memory never used before, which takes several times as long to get where the machine is a
    virtual one; and the log would push out what other programs read.

    Args:
        keep_bytes: how much is kept; None: everything.

    """

    def __init__(self, keep_bytes: int | None) -> None:
        self._keep_bytes = keep_bytes
        self._held: deque[tuple[SegmentIndex, int]] = deque()
        """Segments of which a part may be in memory, and where that part begins."""

    def due(self, written: Iterable[SegmentIndex]) -> list[Stretch]:
        """Take the segments that were written to, the oldest first; return what to give back."""
        if self._keep_bytes is None:
            return []
        for segment in written:
            if not self._held or segment.first_record > self._held[-1][0].first_record:
                self._held.append((segment, 0))
        found: list[Stretch] = []
        surplus = sum(segment.size - begin for segment, begin in self._held) - self._keep_bytes
        while surplus >= STEP_BYTES or (surplus > 0 and len(self._held) > 1):
            segment, begin = self._held[0]
            is_last = len(self._held) == 1
            stop = min(segment.size, begin + surplus)
            if is_last or stop < segment.size:
                stop -= stop % STEP_BYTES
            if stop > begin:
                found.append(Stretch(segment.name, begin, stop))
            surplus -= stop - begin
            if is_last or stop < segment.size:
                self._held[0] = (segment, max(begin, stop))
                break
            self._held.popleft()
        return found
