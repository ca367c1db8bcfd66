"""Forcing a log to the disk while it is written to, and deleting what is kept no longer."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final, NamedTuple

from recovery.errors import LogWriteError
from recovery.log.catalog import Catalog
from recovery.log.index import Key, SegmentIndex, StreamIndex, index_name
from recovery.log.store import LogFile, LogStore

_FILES_MAX: Final = 16
"""Files that are kept open until a sync closes them; it opens those of other segments."""


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
    marks: list[tuple[StreamIndex, int]]
    """Marks that hold then."""
    surplus: list[SegmentIndex]
    """What is to be deleted then, the oldest first; one that a reader holds stays, and the rest."""
    trouble: OSError | None = None
    """Why nothing can be deleted."""
    is_over: bool = False
    """Whether `wait` was called."""
    deleted: list[SegmentIndex] = field(default_factory=list)
    """What of `surplus` is gone, after `wait`."""
    error: OSError | None = None
    """Why it is not on the disk, after `wait`."""

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

    def _delete(self) -> None:
        for segment in self.surplus:
            if not self.store.remove_unshared(segment.name):
                break
            self.deleted.append(segment)
            self.store.remove(index_name(segment.first_record))


class Syncs:
    """What of a log is not on the disk yet, and the sync that brings it there.

    Args:
        store: the log's files.
        catalog: its segments.
        place: where it is, for people.
        guard: a lock, where `PendingSync.wait` runs in another thread.

    Attributes:
        files: the files that segments were written with, those that were begun last.
        names_changed: whether the directory has names that are not on the disk.
        failure: the fsync that failed, or None.

    """

    def __init__(
        self, store: LogStore, catalog: Catalog, place: str, guard: AbstractContextManager[object]
    ) -> None:
        self._store, self._catalog, self._place, self._guard = store, catalog, place, guard
        self.files: dict[SegmentIndex, LogFile] = {}
        self.names_changed = False
        self.failure: OSError | None = None
        self._dirty: list[SegmentIndex] = []
        self._pending: PendingSync | None = None

    def on_written(self, segment: SegmentIndex) -> None:
        """Note that a segment has something that is not on the disk."""
        if not self._dirty or self._dirty[-1] is not segment:
            self._dirty.append(segment)

    def on_begun(self, segment: SegmentIndex, file: LogFile) -> None:
        """Note that a file is written to from now on, and its name is not on the disk."""
        self.files[segment] = file
        self.names_changed = True
        while len(self.files) > _FILES_MAX:
            del self.files[next(iter(self.files))]  # it is closed once no sync uses it

    @property
    def unsynced_bytes(self) -> int:
        """What is not known to be on the disk."""
        pending = () if self._pending is None else self._pending.parts
        segments = {*self._dirty, *(part.segment for part in pending)}
        return sum(segment.size - segment.synced for segment in segments)

    def begin(
        self,
        newest: SegmentIndex | None,
        marks: list[tuple[StreamIndex, int]],
        surplus: list[SegmentIndex],
        trouble: OSError | None,
    ) -> PendingSync:
        """Begin a sync; what is appended from here on is for the next one."""
        for one in surplus:
            one.is_leaving = True
        parts = [Part(one, one.size, self.files.get(one)) for one in self._dirty]
        full = [self.files.pop(one) for one in list(self.files) if one is not newest]
        pending = PendingSync(
            self._store, self._guard, parts, full, self.names_changed, marks, surplus, trouble
        )
        self._pending, self.names_changed, self._dirty = pending, False, []
        return pending

    def end_former(self) -> None:
        """End a sync that nobody has ended, as where an exception came in between.

        Raises:
            LogWriteError: an fsync has failed, that one or one before.

        """
        former = self._pending
        if former is not None:
            former.wait()  # it may still run, or never have begun
            try:
                self.end(former)
            except LogWriteError:
                if former.error is not None:
                    raise
        if self.failure is not None:
            raise self._as_write_error("forced to the disk", self.failure)

    def end(self, pending: PendingSync) -> None:
        """Take the result of a sync; see `LogWriter.end_sync`."""
        if pending is self._pending:
            self._take_result(pending)
            self._pending = None
        error = pending.error or pending.trouble
        if isinstance(error, LogWriteError):
            raise error
        if error is not None:
            could = "forced to the disk" if error is pending.error else "shortened"
            raise self._as_write_error(could, error)

    def _as_write_error(self, could: str, error: OSError) -> LogWriteError:
        return LogWriteError(f"the log {self._place} cannot be {could}", error)

    def _take_result(self, pending: PendingSync) -> None:
        """Note what a sync has done; after an interrupt it is called again."""
        # The system may have thrown away what it could not write: another fsync would say that all
        # is well. So after one that failed there is no other.
        self.failure = self.failure or pending.error
        if self.failure is None:
            for segment, size, _ in pending.parts:
                segment.synced = max(size, segment.synced)
            for stream, mark in pending.marks:
                stream.limit = max(mark, stream.limit)
        else:
            self._dirty += [part.segment for part in pending.parts]
        for segment in pending.surplus:
            segment.is_leaving = segment in pending.deleted
        for segment in pending.deleted:
            self._catalog.drop(segment)
            self.files.pop(segment, None)
        self._dirty = [one for one in self._dirty if one not in pending.deleted]

    def close(self) -> None:
        """Close all files."""
        for file in self.files.values():
            file.close()
        self.files.clear()


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
