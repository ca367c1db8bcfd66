"""A queue's log, read: its segments, and the records in them.

A record is its length and CRC-32 (4 bytes each, network byte order) and a msgpack array; see
`journal`. A segment has a name with a number that only grows.
"""

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from p2pmsg.errors import LogCorruptError
from p2pmsg.queue.journal.records import JournalState

_HEADER: Final = struct.Struct("!II")


def packed(record: bytes) -> bytes:
    """Return a record as it is in a segment."""
    return _HEADER.pack(len(record), zlib.crc32(record)) + record


def segment_path(folder: Path, number: int) -> Path:
    """Return where a segment is."""
    return folder / f"queue-{number:012d}.log"


def read_log(directory: str | os.PathLike[str]) -> JournalState:
    """Return what a log says, without opening it for writing; its pusher may be at work.

    Raises:
        LogCorruptError: a record is damaged.
        OSError: there is no such directory.

    """
    folder = Path(directory)
    state = JournalState()
    paths = segments(folder)
    if not paths:
        raise FileNotFoundError(f"there is no queue's log in {str(folder)!r}")
    for path in paths:
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            continue  # emptied just now: what it had comes again further on
        apply_segment(state, path, data, is_last=path == paths[-1])
    return state


def apply_segment(state: JournalState, path: Path, data: bytes, *, is_last: bool) -> int:
    """Have `state` take a segment's records; return where they end.

    Raises:
        LogCorruptError: a record is none, or the tail of a segment other than the last is torn.

    """
    good = 0
    for record, end in read_records(data):
        try:
            state.apply(record)
        except ValueError as error:
            raise LogCorruptError(str(path), good, str(error)) from error
        good = end
    if good < len(data) and not is_last:
        raise LogCorruptError(str(path), good, "a record is cut off or damaged")
    return good


def read_records(data: bytes) -> Iterator[tuple[bytes, int]]:
    """Return the records up to the first that is cut off or damaged, each with where it ends."""
    at = 0
    while at + _HEADER.size <= len(data):
        length, crc = _HEADER.unpack_from(data, at)
        start = at + _HEADER.size
        record = data[start : start + length]
        if not length or len(record) < length or zlib.crc32(record) != crc:
            return
        at = start + length
        yield record, at


def segments(folder: Path) -> list[Path]:
    """Return the segments of a log, oldest first."""
    found = [path for path in folder.glob("queue-*.log") if path.stem[6:].isdecimal()]
    return sorted(found, key=segment_number)


def segment_number(path: Path) -> int:
    """Return a segment's number."""
    return int(path.stem[6:])
