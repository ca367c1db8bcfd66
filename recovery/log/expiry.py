"""Deleting the oldest segments of a log while it is written to."""

from dataclasses import dataclass, field

from recovery.errors import LogWriteError
from recovery.log.index import SegmentIndex, index_name
from recovery.log.state import TailsUpdate
from recovery.log.store import LogFile, LogStore


@dataclass(slots=True)
class PendingExpiry:
    """What retention has begun to delete.

    A segment is deleted when it is on the disk where its streams go on, and its index after it.
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
    deleted: int = 0
    """How many of `segments` are gone, after `wait`."""
    error: OSError | None = field(default=None)
    """What went wrong, after `wait`."""
    is_over: bool = False
    """Whether `wait` has returned."""

    def wait(self) -> None:
        """Wait for the disk. It never raises: `LogWriter.end_expire` does."""
        try:
            close_all(self.written)
            self._delete()
        except OSError as error:
            self.error = error
        finally:
            self.is_over = True

    def _delete(self) -> None:
        if self.tails is not None and not self.tails.write():
            return  # another state was written meanwhile: another time
        for segment in self.segments:
            if not self.store.remove_unshared(segment.name):
                break
            self.deleted += 1
            self.indexes.append(index_name(segment.first_record))
        while self.indexes:
            self.store.remove(self.indexes[0])
            del self.indexes[0]

    def check(self, directory: object) -> None:
        """Raise `LogWriteError` where it failed."""
        if self.error is not None:
            what = f"the log {directory} cannot be shortened"
            raise LogWriteError(what, self.error) from self.error


def close_all(files: list[LogFile]) -> None:
    """Close files that are written to no more, which gives back what was reserved of the disk."""
    while files:
        files.pop().close()
