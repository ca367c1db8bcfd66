"""Forcing a log to the disk while it is written to, and what of it is kept in memory then."""

import errno
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from recovery.errors import SyncFailedError
from recovery.log.expiry import close_all
from recovery.log.index import SegmentIndex
from recovery.log.state import Renewal
from recovery.log.store import LogFile, LogStore

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


@dataclass(slots=True)
class PendingSync:
    """A sync that has begun."""

    store: LogStore
    parts: list[tuple[SegmentIndex, int]]
    """The segments that it brings to the disk, and the size of each."""
    names_changed: bool
    """Whether it brings the directory there, too."""
    unneeded: list[Stretch]
    """What need not be kept in memory then."""
    renewal: Renewal | None = None
    """Sequences that are reserved with it."""
    written: list[LogFile] = field(default_factory=list)
    """Files of segments that are full, to be closed."""
    former: "PendingSync | None" = None
    """One that nobody has ended, and that may have run since this one was begun."""
    missing: dict[str, OSError] = field(default_factory=dict)
    """Files that were not there, after `wait`: retention may have deleted them."""
    error: OSError | None = None
    """What went wrong, after `wait`."""
    is_over: bool = False
    """Whether `wait` has returned."""

    @property
    def byte_count(self) -> int:
        """How much it brings to the disk, in bytes."""
        return sum(max(0, size - segment.synced) for segment, size in self.parts)

    def wait(self) -> None:
        """Wait for the disk. It never raises: `LogWriter.end_sync` does."""
        try:
            close_all(self.written)
            former, self.former = self.former, None
            if former is not None and isinstance(former.error, SyncFailedError):
                self.error = former.error  # another fsync would say that all is well
            else:
                self._force()
        finally:
            self.is_over = True

    def _force(self) -> None:
        if self.renewal is not None:
            self.renewal.write()
            if self.renewal.error is not None and self.renewal.error.is_final:
                return
        try:
            for segment, _ in self.parts:
                self._sync(segment.name)
            if self.names_changed:
                self.store.sync_directory()
            for stretch in self.unneeded:
                self._uncache(stretch)
        except OSError as error:
            self.error = error

    def _uncache(self, stretch: Stretch) -> None:
        try:
            file = self.store.open(stretch.name)
        except OSError:
            return  # deleted by retention, or another time
        try:
            file.uncache(stretch.start, stretch.stop)
        except OSError:
            pass  # it was but advice
        finally:
            file.close()

    def _sync(self, name: str) -> None:
        try:
            self.store.sync_file(name)
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise
            self.missing[name] = error  # the writer knows whether retention has deleted it
