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
from recovery.log.maintenance import open_once, size_of
from recovery.log.store import FileStore, LogStore
from recovery.log.tail import State, known_head

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
    head, bytes_lost = known_head(files), 0
    header = (0 if head is None else head.session, 0)
    files.lock()
    try:
        for number in numbers:
            before = size_of(files, number)
            damage, header = _rewrite(files, number, stream_of, header)
            places += damage
            says_ends = number != numbers[-1] or (head is not None and head.state is State.CLOSED)
            if damage and not (says_ends and _has_index(files, number)):
                bytes_lost += max(0, before - size_of(files, number))
    finally:
        files.unlock()
    return Unkept(places, open_once(files, directory, bytes_lost=bytes_lost).skipped)


def _has_index(files: LogStore, number: int) -> bool:
    """Whether an index says where a segment's streams went on."""
    try:
        return read_index(files, number) is not None
    except ValueError:
        return False


def _rewrite(
    files: LogStore, number: int, stream_of: Callable[[bytes], Key], header: tuple[int, int]
) -> tuple[list[Finding], tuple[int, int]]:
    """Write a segment again if anything in it is damaged; return what that was, and its header.

    `header`: what takes its place where it is damaged.
    """
    segment = SegmentIndex(number)
    found = scan(files, segment, reads_on=True)
    if segment.session:
        header = segment.session, segment.floor
    if not found.findings or not segment.records:
        return [], header  # where it has no record, opening the log decides
    path, data, segment = files.path(segment.name), bytearray(), SegmentIndex(number)
    data += pack_segment_header(number, *header)
    places = [finding for finding in found.findings if not finding.offset]

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
                at = placed.start
                put(Placed(placed.offset, KIND_STREAM, placed.stream, 0, at, at, 0, name))
            put(placed)
    places += [Finding(path, offset, what) for offset, _, what in walk.damage]
    files.replace(segment.name, bytes(data), durable=True)
    files.sync_directory()
    return sorted(places, key=lambda place: place.offset), header
