"""Deleting the oldest segments of a log while it is written to."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from recovery.checks import NS_PER_S
from recovery.errors import LogWriteError
from recovery.log.config import LogConfig
from recovery.log.index import SegmentIndex, index_name
from recovery.log.state import TailsUpdate
from recovery.log.store import LogFile, LogStore

_AHEAD_NS = 60 * NS_PER_S
"""What is further ahead of the clock is said to be so: NTP steps a clock by less."""


class Retention:
    """Finds what is too old, or too much.

    The wall clock may be wrong for a while, and what is appended then has a wrong time. So a
    segment is also too old when it has been closed for so long by the monotonic clock.

    Args:
        config: how much is kept.

    Attributes:
        ahead_ns: the latest time of a segment that was far ahead of the clock when it was seen
            first, in ns since the epoch; None where there was none.

    """

    def __init__(self, config: LogConfig) -> None:
        self._config = config
        self._steady_ns: int | None = None
        self._begun: tuple[SegmentIndex, int] | None = None
        self.ahead_ns: int | None = None

    def note_time(self, segments: list[SegmentIndex], now_ns: int, steady_ns: int) -> None:
        """Note since when the newest segment is begun, and others are closed.

        One that is ahead of the clock was closed before what was appended later, as at a restart:
        it is as old as the oldest of these whose times are in order.
        """
        self._steady_ns = steady_ns
        since_ns, later_ns, newest = steady_ns, now_ns, segments[-1] if segments else None
        for segment in reversed(segments):
            last_ns = segment.appended_ns_last
            if segment is newest:
                if last_ns and (self._begun is None or self._begun[0] is not newest):
                    self._begun = newest, steady_ns
            elif segment.closed_ns is not None:
                break
            elif last_ns > now_ns:
                segment.closed_ns = since_ns
                if last_ns > now_ns + _AHEAD_NS:
                    self.ahead_ns = max(last_ns, self.ahead_ns or 0)
            else:
                segment.closed_ns = steady_ns
            if last_ns > later_ns:
                later_ns = 0  # so that no more are in order
            elif last_ns:
                since_ns, later_ns = steady_ns - (now_ns - last_ns), last_ns

    def is_roll_due(self, segment: SegmentIndex | None, now_ns: int) -> bool:
        """Whether the newest segment is so old that another one is to be begun."""
        first_ns = None if segment is None else segment.appended_ns_first
        age_ns, begun = self._config.roll_age_ns, self._begun
        if first_ns is None or age_ns is None:
            return False
        if begun is not None and begun[0] is segment and self._steady_ns is not None:
            first_ns = min(first_ns, now_ns - (self._steady_ns - begun[1]))
        return now_ns - first_ns >= age_ns

    def surplus(self, segments: list[SegmentIndex], size: int, now_ns: int) -> list[SegmentIndex]:
        """Return what is too old or too much: the oldest segments, never the newest."""
        found: list[SegmentIndex] = []
        for oldest in segments[:-1]:
            if size <= self._config.retention_bytes and not self._is_old(oldest, now_ns):
                break
            found.append(oldest)
            size -= oldest.size
        return found

    def _is_old(self, segment: SegmentIndex, now_ns: int) -> bool:
        if self._config.retention_age is None:
            return False
        age_ns = self._config.retention_age * NS_PER_S
        steady_ns, closed_ns = self._steady_ns, segment.closed_ns
        if steady_ns is not None and closed_ns is not None and steady_ns - closed_ns > age_ns:
            return True
        return now_ns - segment.appended_ns_last > age_ns


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
