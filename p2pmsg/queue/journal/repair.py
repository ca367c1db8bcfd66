"""Mending a queue's log: what is intact stays, and what could not be kept is named."""

import os
from dataclasses import replace
from io import FileIO
from pathlib import Path
from typing import Any, Final, NamedTuple

from p2pmsg import codec
from p2pmsg.queue.journal import records
from p2pmsg.queue.journal.file import lock_folder
from p2pmsg.queue.journal.reading import (
    apply,
    intact_records,
    packed,
    segment_number,
    segments,
)
from p2pmsg.queue.journal.records import JournalState
from p2pmsg.queue.journal.reservations import PositionFile
from p2pmsg.wire import encoder
from recovery import RangeSet
from recovery.durable import replace_file, sync_path, unlock_file

_decode: Final = codec.make_decoder(list[Any]).decode
_HEAD_FIELDS: Final = 5
"""Of a segment's first record, before where the former segment ended."""


class Unkept(NamedTuple):
    """What could not be kept.

    Attributes:
        places: file, offset, and how many bytes are unreadable there, or missing at the file's end.
        jobs: the sequences of jobs that were there, of which nothing else says that they were done.

    """

    places: list[tuple[str, int, int]]
    jobs: RangeSet


def repair(directory: str | os.PathLike[str]) -> Unkept:
    """Write each segment again without what is damaged, if anything is; return what that was.

    The next run takes the log for one that is shorter than it was: numbers are not used again, and
    jobs with keys wait until it is certain that no worker has one of them.

    Raises:
        LogFormatError: an intact record is unknown: it is of another version.
        LogInUseError: a pusher has it open.
        OSError: the operating system refuses.

    """
    folder = Path(directory)
    lock = lock_folder(folder)
    try:
        paths = segments(folder)
        unkept = _find(paths)
        if unkept.places:
            _on_longer(folder, lock)
            _rewrite(paths)
            sync_path(folder)
    finally:
        unlock_file(lock)
    return unkept


def _find(paths: list[Path]) -> Unkept:
    """Read everything, and find what is missing."""
    places, jobs, done, state, sizes = [], RangeSet(), RangeSet(), JournalState(), {}
    before = 0  # places before the latest job
    for path in paths:
        data, at = path.read_bytes(), 0
        for record, end in intact_records(data):
            start, following = end - len(packed(record)), state.next_sequence
            apply(state, record, path, start)
            if start > at:
                places.append((str(path), at, start - at))
            at, fields = end, _decode(record)
            if fields[0] == records.DONE and fields[2] > fields[1]:
                done.add(fields[1], fields[2])
            first = {records.PUSH: fields[1:2], records.HEAD: fields[2:3]}.get(fields[0], [0])[0]
            if first > following and len(places) > before and state.session is not None:
                jobs.add(following, first)
            if state.next_sequence > following:
                before = len(places)
        if at < len(data):
            places.append((str(path), at, len(data) - at))
        sizes[path] = len(data)
    for path, size in sizes.items():
        end_announced = state.ends.get(segment_number(path))
        if end_announced is not None and end_announced.size > size:
            places.append((str(path), size, end_announced.size - size))
    for start, stop in done:
        jobs.remove(start, stop)
    for sequence in (*state.open, *state.dead):
        jobs.remove(sequence, sequence + 1)
    return Unkept(places, jobs if places else RangeSet())


def _on_longer(folder: Path, lock: FileIO) -> None:
    """Let the next run know that the log had been longer."""
    position = PositionFile(folder, lock.fileno())
    position.read()
    if position.found is not None:
        position.begin(replace(position.found, segment=position.found.segment + 1))
        position.close()


def _rewrite(paths: list[Path]) -> None:
    """Write all again; where each ends now is said in the newest."""
    ends = b""
    for path in paths:
        data = bytearray(ends if path is paths[-1] else b"")
        for record, _ in intact_records(path.read_bytes()):
            fields = _decode(record)
            if fields[0] == records.HEAD:
                data += packed(encoder.encode(fields[:_HEAD_FIELDS]))
            elif fields[0] != records.END:
                data += packed(record)
        replace_file(path, bytes(data), mode=0o644).close()
        ends += packed(records.end_record(segment_number(path), len(data)))
