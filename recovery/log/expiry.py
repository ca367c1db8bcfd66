"""Deleting the oldest segments of a log while it is written to."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from recovery.errors import LogWriteError
from recovery.log.index import SegmentIndex, index_name
from recovery.log.state import TailsUpdate
from recovery.log.store import LogFile, LogStore


@dataclass(slots=True)
class PendingExpiry:
    """What retention has begun to delete.

    A segment is deleted when it is on the disk where its streams go on, and its index after it. Two
    threads may do it together.
    """

    store: LogStore
    segments: list[SegmentIndex]
    """What is to be deleted, the oldest first."""
    indexes: list[str]
    """Indexes of segments that are gone; after `wait`, those that could not be deleted."""
    tails: TailsUpdate | None
    """Where streams go on of which no other segment says it."""
    written: list[LogFile]
    """Files of segments that are full, to be closed."""
    guard: AbstractContextManager[object]
    """Held while a file is deleted, or the state written."""
    deleted: int = 0
    """How many of `segments` are gone."""
    taken: int = 0
    """How many of these the writer has forgotten."""
    error: OSError | None = field(default=None)
    """What went wrong, after `wait`."""
    is_ready: bool = False
    """Whether it is on the disk where the streams go on."""
    is_over: bool = False
    """Whether nothing more is deleted, since it was done or has failed."""
    _is_held: bool = False
    """Whether a reader holds the next segment."""

    def __post_init__(self) -> None:
        self.is_ready = self.tails is None

    def wait(self) -> None:
        """Wait for the disk. It never raises: `LogWriter.end_expire` does."""
        try:
            close_all(self.written)
            with self.guard:
                if not (self.is_ready or self.is_over or self.tails is None):
                    # Where another state was written meanwhile: another time.
                    self.is_ready = self.tails.write()
            while self.delete_next():
                pass
        except OSError as error:
            self.error = error
        finally:
            self.is_over = True

    def delete_next(self) -> bool:
        """Delete one file; False where there is none left, or not yet. It never raises."""
        if not self.is_ready:
            return False  # without waiting for the state
        with self.guard:
            if self.is_over:
                return False
            try:
                has_deleted = self._delete_segment() or self._delete_index()
            except OSError as error:
                self.error, has_deleted = error, False
            self.is_over = not has_deleted
            return has_deleted

    def _delete_segment(self) -> bool:
        if self._is_held or self.deleted == len(self.segments):
            return False
        segment = self.segments[self.deleted]
        if not self.store.remove_unshared(segment.name):
            self._is_held = True
            return False
        self.deleted += 1
        self.indexes.append(index_name(segment.first_record))
        return True

    def _delete_index(self) -> bool:
        if not self.indexes:
            return False
        self.store.remove(self.indexes[0])
        del self.indexes[0]
        return True

    def check(self, directory: object) -> None:
        """Raise `LogWriteError` where it failed."""
        if self.error is not None:
            what = f"the log {directory} cannot be shortened"
            raise LogWriteError(what, self.error) from self.error


def close_all(files: list[LogFile]) -> None:
    """Close files that are written to no more, which gives back what was reserved of the disk.

    Two threads may close the same ones.
    """
    while True:
        try:
            file = files.pop()
        except IndexError:
            return
        file.close()
