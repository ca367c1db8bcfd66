"""Mending a queue's log: what is intact stays, and what could not be kept is named."""

import os
from dataclasses import replace
from io import FileIO
from pathlib import Path
from typing import Any, Final, NamedTuple

from p2pmsg import codec
from p2pmsg.queue.journal import records
from p2pmsg.queue.journal.file import lock_folder
from p2pmsg.queue.journal.position import PositionFile
from p2pmsg.queue.journal.reading import apply, intact_records, packed, segments, without_former
from p2pmsg.queue.journal.records import JournalState
from recovery import RangeSet
from recovery.durable import replace_file, sync_path, unlock_file

_decode: Final = codec.make_decoder(list[Any]).decode


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
    places, jobs, done, state = [], RangeSet(), RangeSet(), JournalState()
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
            first = fields[1] if fields[0] == records.PUSH else 0
            if fields[0] == records.HEAD:
                first = fields[2]
            if first > following and len(places) > before and state.session is not None:
                jobs.add(following, first)
            if state.next_sequence > following:
                before = len(places)
        if at < len(data):
            places.append((str(path), at, len(data) - at))
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
    """Write all again; nothing says what the segments before had."""
    for path in paths:
        kept = (without_former(record) for record, _ in intact_records(path.read_bytes()))
        replace_file(path, b"".join(map(packed, kept)), mode=0o644).close()
