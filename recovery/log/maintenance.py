"""Checking a log byte by byte, and shortening it."""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from recovery.log.catalog import Finding, check_end, list_log, scan, segments_among
from recovery.log.config import LogConfig
from recovery.log.format import SEGMENT_HEADER
from recovery.log.index import (
    SegmentIndex,
    decode_index,
    encode_index,
    first_record_of,
    index_name,
    segment_name,
)
from recovery.log.opening import OpenReport
from recovery.log.store import FileStore, LogStore
from recovery.log.tail import NAME as TAIL
from recovery.log.tail import State, TailContent, find_damage, known_head
from recovery.log.writer import LogWriter

if TYPE_CHECKING:
    import os

_ALL = 2**62
"""Bytes: more than any log has."""


def verify(
    directory: "str | os.PathLike[str]",
    *,
    store: LogStore | None = None,
    check: Callable[[TailContent], object] | None = None,
) -> Iterator[Finding]:
    """Check every file of a log by its checksums, and the files against each other.

    What is not whole at the end of the last segment is no finding where the log was not
    closed: its writer is at work, or died.

    Args:
        directory: of the log.
        store: where the files are; for tests.
        check: called with what a killed process has left of each stream in no frame; it raises
            `ValueError` where these are no messages. Default: they are not looked at.

    Yields:
        what is wrong.

    Raises:
        RecoveryError: there is no log.

    """
    files: LogStore = FileStore(directory) if store is None else store
    head = known_head(files)  # before anything else: a writer goes on
    names, numbers = list_log(files)
    is_closed = head is not None and head.state is State.CLOSED
    for name in names:
        number = first_record_of(name, "idx")
        if number is not None and number not in numbers and numbers[:1] < [number]:
            yield Finding(files.path(name), 0, "its segment is missing")
    segment: SegmentIndex | None = None
    for index, number in enumerate(numbers):
        after = numbers[index + 1] if index + 1 < len(numbers) else None
        segment = SegmentIndex(number)
        try:
            result = scan(files, segment, reads_on=True)
        except FileNotFoundError:
            continue  # retention was faster
        except OSError as error:
            yield Finding(files.path(segment.name), 0, f"{error.strerror or error}")
            continue
        is_growing = after is None and not is_closed
        is_begun = is_growing and result.file_bytes < SEGMENT_HEADER.size
        if not is_begun:
            yield from result.findings
        if result.is_torn and segment.size and not is_growing:
            yield Finding(files.path(segment.name), segment.size, "the last record is not whole")
        last = segment.stop_record - 1
        if after is not None and not result.findings and last + 1 != after:
            what = f"it ends with record {last}, and the next segment begins with {after}"
            yield Finding(files.path(segment.name), segment.size, what)
        yield from _check_index(files, segment, bool(result.findings), is_growing)
    cut = None if head is None else check_end(files, segment, head.end)
    if cut is not None:
        yield cut[0]
    wrong = find_damage(files, check)
    if wrong is not None:
        yield Finding(files.path(TAIL), 0, wrong)


def _check_index(
    files: LogStore, segment: SegmentIndex, is_damaged: bool, is_growing: bool
) -> Iterator[Finding]:
    """Compare a segment with its index."""
    name = index_name(segment.first_record)
    path, data = files.path(name), files.read(name)
    if data is None:
        # It is deleted after its segment.
        if not is_growing and segment.name in files.names():
            yield Finding(path, 0, "it is missing")
        return
    try:
        index = decode_index(data, segment.first_record)
    except ValueError as error:
        yield Finding(path, 0, str(error))
        return
    if is_damaged or (is_growing and index.size != segment.size):
        return
    if data != encode_index(segment):
        yield Finding(path, 0, "it does not say what the segment has")


def truncate(
    directory: "str | os.PathLike[str]",
    *,
    before_ns: int | None = None,
    bytes_max: int | None = None,
    store: LogStore | None = None,
) -> int:
    """Delete the oldest segments of a log that nobody writes; return the bytes that are gone.

    Whole segments go, and the newest one stays. The newest messages cannot be cut off: subscribers
    have them, and their sequences would be used twice.

    Args:
        directory: of the log.
        before_ns: delete segments whose newest frame was appended before it, in ns since the epoch.
        bytes_max: delete segments until the log is not larger.
        store: where the files are; for tests.

    Raises:
        LogLockedError: it has a writer.
        RecoveryError: there is no log, or it cannot be written.

    """
    files: LogStore = FileStore(directory) if store is None else store
    list_log(files)
    before = sum_sizes(files)
    open_once(
        files,
        directory,
        float("inf") if bytes_max is None else bytes_max,
        float("-inf") if before_ns is None else before_ns,
    )
    return before - sum_sizes(files)


def open_once(
    files: LogStore,
    directory: "str | os.PathLike[str]",
    bytes_max: float = float("inf"),
    before_ns: float = float("-inf"),
    *,
    bytes_lost: int = 0,
) -> OpenReport:
    """Open a log as its writer does, delete what is older, and close it; see `truncate`."""
    config = LogConfig(directory, retention_bytes=_ALL, segment_bytes=_ALL)
    writer = LogWriter(
        config, session=0, now_ns=0, store=files, goes_on=False, bytes_lost=bytes_lost
    )
    try:
        writer.truncate(bytes_max, before_ns)
    finally:
        writer.close()
    return writer.opened


def sum_sizes(files: LogStore) -> int:
    """Return the bytes of all segments."""
    return sum(size_of(files, number) for number in segments_among(files.names()))


def size_of(files: LogStore, number: int) -> int:
    """Return the bytes of a segment."""
    with closing(files.open(segment_name(number))) as file:
        return file.size()
