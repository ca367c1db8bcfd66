"""Mending a log: what is intact stays, and what could not be kept is named."""

from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

from recovery.log.catalog import Finding, list_log, read_index, scan
from recovery.log.format import (
    KIND_DATA,
    KIND_STREAM,
    SEGMENT_HEADER,
    Placed,
    Walk,
    pack_head,
    pack_segment_header,
    pack_stream,
)
from recovery.log.index import Key, SegmentIndex
from recovery.log.maintenance import open_once
from recovery.log.store import FileStore, LogStore

if TYPE_CHECKING:
    import os


class Unkept(NamedTuple):
    """What could not be kept.

    Attributes:
        places: what is damaged.
        messages: (session, topic, start, stop) that are in the log no more: at most those.

    """

    places: list[Finding]
    messages: tuple[tuple[int, str, int, int], ...]


def repair(
    directory: "str | os.PathLike[str]",
    stream_of: Callable[[bytes], Key],
    *,
    store: LogStore | None = None,
) -> Unkept:
    """Write each damaged segment again without its damage, then open the log and close it.

    Subscribers get what was not kept as lost (crash).

    Args:
        directory: of a log that nobody writes.
        stream_of: returns the session and topic of a frame, where only the record with its stream's
            name is damaged; raises `ValueError`.
        store: where the files are; for tests.

    Raises:
        LogLockedError: it has a writer.
        LogFormatError: the state is damaged, or a segment without an intact record.
        RecoveryError: there is no log, or it cannot be written.

    """
    files: LogStore = FileStore(directory) if store is None else store
    _, numbers = list_log(files)
    places: list[Finding] = []
    is_cut = False
    files.lock()
    try:
        for number in numbers:
            damage = _rewrite(files, number, stream_of)
            places += damage
            says_ends = number != numbers[-1] and _has_index(files, number)
            is_cut |= bool(damage) and not says_ends
    finally:
        files.unlock()
    return Unkept(places, open_once(files, directory, is_cut=is_cut).skipped)


def _has_index(files: LogStore, number: int) -> bool:
    """Whether an index says where a segment's streams went on."""
    try:
        return read_index(files, number) is not None
    except ValueError:
        return False


def _rewrite(files: LogStore, number: int, stream_of: Callable[[bytes], Key]) -> list[Finding]:
    """Write a segment again if anything in it is damaged; return what that was."""
    segment = SegmentIndex(number)
    found = scan(files, segment, reads_on=True).findings
    if not found or not segment.records:
        return []  # where it has no record, opening the log decides
    path, data, segment = files.path(segment.name), bytearray(), SegmentIndex(number)
    data += pack_segment_header(number)
    places = [finding for finding in found if not finding.offset]

    def put(placed: Placed) -> None:
        wrong = segment.take(placed)
        if wrong is not None:
            places.append(Finding(path, placed.offset, wrong))
            return
        payload = placed.payload
        data.extend(pack_head(len(data), placed.kind, payload, *placed[2:-1]))
        data.extend(payload)

    with closing(files.open(segment.name)) as file:
        walk = Walk(file.read, SEGMENT_HEADER.size, file.size())
        for placed in walk:
            if placed.kind == KIND_DATA and placed.stream not in segment.by_number:
                try:
                    name = memoryview(pack_stream(*stream_of(bytes(placed.payload))))
                except ValueError as error:
                    places.append(Finding(path, placed.offset, str(error)))
                    continue
                put(Placed(placed.offset, KIND_STREAM, placed.stream, 0, 0, 0, 0, name))
            put(placed)
    places += [Finding(path, offset, what) for offset, _, what in walk.damage]
    files.replace(segment.name, bytes(data), durable=True)
    files.sync_directory()
    return sorted(places, key=lambda place: place.offset)
