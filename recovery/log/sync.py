"""Forcing a log to the disk while it is written to, and deleting what is kept no longer."""

from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass
from itertools import takewhile
from typing import Final, NamedTuple

from recovery.log.index import Key, SegmentIndex, StreamIndex, index_name
from recovery.log.store import LogFile, LogStore

CACHE_BYTES: Final = 16 * 2**20
"""How much of the newest the system is asked to keep in memory: what is as new, and newer, a
publisher answers from its replay buffer."""
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
    """

    def __init__(self) -> None:
        self._held: deque[tuple[SegmentIndex, int]] = deque()
        """Segments of which a part may be in memory, and where that part begins."""

    def due(self, written: Iterable[SegmentIndex]) -> list[Stretch]:
        """Take the segments that were written to, the oldest first; return what to give back."""
        for segment in written:
            if not self._held or segment.first_record > self._held[-1][0].first_record:
                self._held.append((segment, 0))
        found: list[Stretch] = []
        surplus = sum(segment.size - begin for segment, begin in self._held) - CACHE_BYTES
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


class Part(NamedTuple):
    """A segment that is forced to the disk."""

    segment: SegmentIndex
    size: int
    """Up to where it was written then."""
    file: LogFile | None
    """The file that it was written with; None: it is opened."""


@dataclass(slots=True)
class PendingSync:
    """A sync that has begun: what was written comes to the disk, and what is too old goes."""

    store: LogStore
    guard: AbstractContextManager[object]
    """Held during `wait`: one that was not ended may still run, in another thread."""
    parts: list[Part]
    full: list[LogFile]
    """Files of segments that are full, to be closed."""
    names_changed: bool
    """Whether it brings the directory there, too."""
    unneeded: list[Stretch]
    """What need not be kept in memory then."""
    marks: list[tuple[StreamIndex, int]]
    """Marks that hold then."""
    surplus: list[SegmentIndex]
    """What is to be deleted then, the oldest first; one that a reader holds stays, and the rest."""
    is_over: bool = False
    """Whether `wait` was called."""
    deleted: int = 0
    """How many of `surplus` are gone, after `wait`."""
    error: OSError | None = None
    """Why it is not on the disk, after `wait`."""
    trouble: OSError | None = None
    """Why nothing can be deleted."""

    def wait(self) -> None:
        """Wait for the disk, in any thread. It never raises: `LogWriter.end_sync` does."""
        with self.guard:
            if self.is_over:
                return
            self.is_over = True
            try:
                self._force()
            except OSError as error:
                self.error = error
            for file in self.full:
                file.close()  # which gives back what was reserved of the disk, and takes time
            try:
                if self.error is None:
                    self._delete()
            except OSError as error:
                self.trouble = error

    def _force(self) -> None:
        for segment, _, file in self.parts:
            if file is None:
                with closing(self.store.open(segment.name)) as opened:
                    opened.sync()
            else:
                file.sync()
        if self.names_changed:
            self.store.sync_directory()
        for stretch in self.unneeded:
            with suppress(OSError), closing(self.store.open(stretch.name)) as file:
                file.uncache(stretch.start, stretch.stop)  # it is but advice

    def _delete(self) -> None:
        for segment in self.surplus:
            if not self.store.remove_unshared(segment.name):
                break
            self.deleted += 1
            self.store.remove(index_name(segment.first_record))


def find_surplus(
    segments: list[SegmentIndex], bytes_max: float, before_ns: float
) -> list[SegmentIndex]:
    """Return what is too old or too much: the oldest segments, never the newest.

    Args:
        segments: all of them.
        bytes_max: how large they may be in all, in bytes.
        before_ns: those go whose newest frame was appended before, by the wall clock.

    """
    found: list[SegmentIndex] = []
    size = sum(segment.size for segment in segments)
    for oldest in segments[:-1]:
        if size <= bytes_max and oldest.appended_ns_last >= before_ns:
            break
        found.append(oldest)
        size -= oldest.size
    return found


def find_settled(segments: list[SegmentIndex], low: Mapping[Key, int]) -> list[SegmentIndex]:
    """Return the oldest segments that have nothing that is kept, never the newest.

    `low` is where what is kept of each stream begins; a stream that is not there is kept.
    """
    return list(takewhile(lambda segment: _is_settled(segment, low), segments[:-1]))


def _is_settled(segment: SegmentIndex, low: Mapping[Key, int]) -> bool:
    streams = segment.streams.items()
    return all(one.stop <= low.get(key, 0) for key, one in streams if one.frames)
