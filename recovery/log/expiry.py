"""Deleting the oldest segments of a log while it is written to."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import takewhile

from recovery.log.index import Key, SegmentIndex, index_name
from recovery.log.state import StateFile
from recovery.log.store import LogStore


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


@dataclass(slots=True)
class PendingExpiry:
    """Segments that are being deleted; one that a reader holds stays, and those after it."""

    store: LogStore
    segments: list[SegmentIndex]
    """What is to be deleted, the oldest first."""
    state_file: StateFile
    tails: Mapping[str, int]
    """Where streams go on of which no other segment says it; it is on the disk before."""
    guard: AbstractContextManager[object]
    """Held during `wait`."""
    deleted: int = 0
    """How many of `segments` are gone, after `wait`."""
    error: OSError | None = None
    """What went wrong, after `wait`."""
    is_over: bool = False
    """Whether `wait` was called."""

    def wait(self) -> None:
        """Wait for the disk, in any thread. It never raises: `LogWriter.end_expire` does."""
        with self.guard:
            if self.is_over:
                return
            self.is_over = True
            try:
                if self.tails:
                    self.state_file.change(tails=self.tails)
                for segment in self.segments:
                    if not self.store.remove_unshared(segment.name):
                        break
                    self.deleted += 1
                    # One that stays is deleted when the log is opened.
                    self.store.remove(index_name(segment.first_record))
            except OSError as error:
                self.error = error
