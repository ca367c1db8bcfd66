"""A queue's log, read: its segments, and the records in them.

A record is its length and CRC-32 (4 bytes each, network byte order) and a msgpack array; see
`journal`. A segment has a name with a number that only grows.

A crash of the operating system leaves the newest segment without its end. The one before it may
lack its end as well, since its fsync is not waited for when the next one begins.
"""

import os
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from p2pmsg import codec
from p2pmsg.errors import LogFormatError
from p2pmsg.queue.journal.records import HEAD, JournalState
from p2pmsg.wire import encoder

_decode: Final = codec.make_decoder(list[Any]).decode
_HEADER: Final = struct.Struct("!II")
_BEGINS: Final = re.compile(rb"[\x91-\x9f][\x01-\x0a]")
"""How a record begins: an array, and in it a type."""


@dataclass(frozen=True, slots=True)
class FoundSegment:
    """A segment that was read.

    Attributes:
        path, number: its file.
        size: of that, in bytes.
        good: where its records end.
        former_bytes: how many the segment before it had, as its first record says; 0: not known.
        left_out: how many sequences lie between the segments before it and its first record.

    """

    path: Path
    number: int
    size: int
    good: int
    former_bytes: int
    left_out: int


def packed(record: bytes) -> bytes:
    """Return a record as it is in a segment."""
    return _HEADER.pack(len(record), zlib.crc32(record)) + record


def segment_path(folder: Path, number: int) -> Path:
    """Return where a segment is."""
    return folder / f"queue-{number:012d}.log"


def read_log(directory: str | os.PathLike[str]) -> JournalState:
    """Return what a log says, without opening it for writing; its pusher may be at work.

    Raises:
        LogFormatError: a record is damaged.
        OSError: there is no such directory.

    """
    folder = Path(directory)
    state = JournalState()
    paths = segments(folder)
    if not paths:
        raise FileNotFoundError(f"there is no queue's log in {str(folder)!r}")
    found = []
    for path in paths:
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            continue  # emptied just now: what it had comes again further on
        found.append(apply_segment(state, path, data))
    check_ends(state, found)
    return state


def apply_segment(state: JournalState, path: Path, data: bytes) -> FoundSegment:
    """Have `state` take a segment's records, up to the end or where it is torn.

    Raises:
        LogFormatError: a record is none, or it is damaged and intact ones follow.

    """
    good = former_bytes = left_out = 0
    before = state.next_sequence
    for record, end in read_records(data):
        apply(state, record, path, good)
        if not good:
            former_bytes, left_out = _former_bytes(record), state.next_sequence - before
        good = end
    if next_record(data, good) is not None:
        raise _damaged(path, good, "a record is damaged, and intact ones follow")
    return FoundSegment(path, segment_number(path), len(data), good, former_bytes, left_out)


def apply(state: JournalState, record: bytes, path: Path, at: int) -> None:
    """Have `state` take a record, which is in that file, at that byte; `LogFormatError`."""
    try:
        state.apply(record)
    except ValueError as error:
        raise _damaged(path, at, str(error)) from error


def _damaged(path: Path, offset: int, reason: str) -> LogFormatError:
    """Return what is raised about a file of which a repair keeps what is intact."""
    keeps = f"`p2pmsg log repair {path.parent}` keeps what is intact"
    text = f"{path} is damaged at byte {offset}: {reason}; {keeps}"
    return LogFormatError(str(path), offset, text)


def without_former(record: bytes) -> bytes:
    """Return a record that says nothing of the segment before."""
    fields = _decode(record)
    if fields[0] != HEAD:
        return record
    fields[5] = 0
    return encoder.encode(fields)


def _former_bytes(record: bytes) -> int:
    fields = _decode(record)
    size: int = fields[5] if fields[0] == HEAD else 0
    return size


def check_ends(state: JournalState, found: list[FoundSegment], boot: str = "") -> None:
    """Find out whether a segment is damaged, or only lacks what a crash of the system took.

    The newest one may lack any part of its end; so may the one before it, where the system was
    started again and the last run did not close the log. What is missing of that is added to
    `state.missing`. The first may follow others that were emptied. A segment without a record was
    not begun: the newest is the one before.

    Args:
        state: what the segments say, all of them.
        found: the segments, oldest first.
        boot: which start of the operating system this is. Default: it is not known, so that it may
            have been started again.

    Raises:
        LogFormatError: a segment is damaged.

    """
    newest = max((at for at, segment in enumerate(found) if segment.good), default=0)
    has_crashed = not state.is_closed and (not boot or boot != state.boot)
    for at, segment in enumerate(found[:newest]):
        following = found[at + 1]
        size = following.former_bytes or segment.size
        if segment.good and segment.good == segment.size == size:
            continue
        if at < newest - 1 or not has_crashed:
            raise _damaged(segment.path, segment.good, "its end is damaged or missing")
        state.missing += following.left_out


def read_records(data: bytes, at: int = 0) -> Iterator[tuple[bytes, int]]:
    """Return the records up to the first that is cut off or damaged, each with where it ends."""
    while at + _HEADER.size <= len(data):
        length, crc = _HEADER.unpack_from(data, at)
        start = at + _HEADER.size
        record = data[start : start + length]
        if not length or len(record) < length or zlib.crc32(record) != crc:
            return
        at = start + length
        yield record, at


def next_record(data: bytes, at: int) -> int | None:
    """Return where the next intact record is after the damage at `at`; None where there is none."""
    view = memoryview(data)
    for found in _BEGINS.finditer(data, at + _HEADER.size):
        start = found.start()
        length, crc = _HEADER.unpack_from(data, start - _HEADER.size)
        record = view[start : start + length]
        if 0 < length == len(record) and zlib.crc32(record) == crc:
            return start - _HEADER.size
    return None


def intact_records(data: bytes) -> Iterator[tuple[bytes, int]]:
    """Return as `read_records` all records that are intact, also those after damage."""
    at: int | None = 0
    while at is not None:
        for record, end in read_records(data, at):
            at = end
            yield record, end
        at = next_record(data, at)


def segments(folder: Path) -> list[Path]:
    """Return the segments of a log, oldest first."""
    found = [path for path in folder.glob("queue-*.log") if path.stem[6:].isdecimal()]
    return sorted(found, key=segment_number)


def segment_number(path: Path) -> int:
    """Return a segment's number."""
    return int(path.stem[6:])
