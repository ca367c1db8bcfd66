"""Forcing a log to the disk while it is written to, and what of it is kept in memory then."""

import errno
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from recovery.errors import LogWriteError
from recovery.log.index import SegmentIndex
from recovery.log.state import StateFile
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
    """A sync that has begun."""

    store: LogStore
    parts: list[Part]
    full: list[LogFile]
    """Files of segments that are full, to be closed."""
    names_changed: bool
    """Whether it brings the directory there, too."""
    unneeded: list[Stretch]
    """What need not be kept in memory then."""
    state_file: StateFile
    marks: Mapping[str, int]
    """Sequences that are reserved with it, by topic."""
    guard: AbstractContextManager[object]
    """Held during `wait`: one that was not ended may still run, in another thread."""
    missing: list[SegmentIndex] = field(default_factory=list)
    """Segments whose files were deleted, after `wait`: retention may have done it."""
    error: OSError | None = None
    """What went wrong, after `wait`."""

    def wait(self) -> None:
        """Wait for the disk, in any thread. It never raises: `LogWriter.end_sync` does."""
        with self.guard:
            try:
                self._force()
                self._reserve()
            except OSError as error:
                self.error = error
            for file in self.full:
                file.close()  # which gives back what was reserved of the disk, and takes time

    def _reserve(self) -> None:
        try:
            if self.marks:
                self.state_file.change(reserved=self.marks)
        except LogWriteError as error:
            if error.is_final:
                raise
            # Otherwise `append` does it as soon as it must, or says why not.

    def _force(self) -> None:
        for segment, _, file in self.parts:
            try:
                if file is None:
                    with closing(self.store.open(segment.name)) as opened:
                        opened.sync()
                else:
                    file.sync()
            except OSError as error:
                if error.errno != errno.ENOENT:
                    raise
                self.missing.append(segment)
        if self.names_changed:
            self.store.sync_directory()
        for stretch in self.unneeded:
            with suppress(OSError), closing(self.store.open(stretch.name)) as file:
                file.uncache(stretch.start, stretch.stop)  # it is but advice
