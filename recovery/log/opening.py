"""Opening a log to write: what is there, what a crash has left of it, and where it goes on.

::

    closed cleanly ──▶ the indexes are read, no segment
    process died ──▶ the last segment is read, its torn tail cut; the next sequence is exact
    system died, or a file is damaged or cut ──▶ the same, and its streams go on at their marks
    it is a copy of another directory, or was given up ──▶ a new session
"""

from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field

from recovery.errors import LogFormatError
from recovery.log.catalog import (
    Catalog,
    Finding,
    Scan,
    check_end,
    load,
    read_index,
    segments_among,
)
from recovery.log.config import LogConfig
from recovery.log.format import SEGMENT_HEADER
from recovery.log.index import Key, SegmentIndex, encode_index, first_record_of, index_name
from recovery.log.store import LogStore
from recovery.log.tail import State, TailContent, TailHead, read_head, read_slots
from recovery.ranges import RangeSet

RESERVE = 1024
"""How many sequences of a stream are reserved at a time, at least: so many are skipped and reported
lost after a crash of the operating system, at most, where it is slow."""
_GATHERED_MAX = 2**18 + 1
"""Messages of a stream that may be in a tail file which is not there any more, or damaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenReport:
    """What opening a log found.

    Attributes:
        clean: whether it had been closed, so that no segment was read.
        copied: whether the directory is a copy of the one that was written, so that a new session
            has begun.
        skipped: (session, topic, start, stop) that no message has since the operating system
            crashed, or a file was damaged or cut: what may have been after the last one, and what
            is gone between others.
        findings: what is damaged; it is not served.

    """

    clean: bool
    copied: bool = False
    skipped: tuple[tuple[int, str, int, int], ...] = ()
    findings: tuple[Finding, ...] = ()


@dataclass(slots=True)
class OpenedLog:
    """Where a log goes on.

    Attributes:
        report: what was found.
        session: of the log's own streams.
        floor: the sequence that new ones of them begin with.
        catalog: its segments.
        next: the sequence that each stream goes on with.
        left: what a killed process had accepted of the session, and had in no frame yet.
        gathered_max: how many messages of a stream that may have been.
        is_new_start: whether a new segment is to say this session, floor, and `report.skipped`.

    """

    report: OpenReport
    session: int
    floor: int
    catalog: Catalog
    next: dict[Key, int]
    left: list[TailContent]
    gathered_max: int
    is_new_start: bool


@dataclass(slots=True)
class _Found:
    """What reading the files gives."""

    has_crashed: bool
    is_synced: bool
    """Whether what a crash took was not sent."""
    bytes_lost: int = 0
    """How much of what was written is gone: so many messages at most."""
    catalog: Catalog = field(default_factory=Catalog)
    scanned: int = 0
    holes: dict[Key, list[tuple[int, int]]] = field(default_factory=dict)
    ends: dict[Key, int] = field(default_factory=dict)
    """Where streams had ended, by the index of a segment that is gone, or shorter now."""
    known_end: tuple[int, int] = (-1, 0)
    """How far the newest of these segments went."""
    findings: list[Finding] = field(default_factory=list)

    def learn_ends(self, index: SegmentIndex | None) -> None:
        """Take in where streams ended by an index that does not fit a segment."""
        if index is None:
            return
        self.known_end = max(self.known_end, (index.first_record, index.size))
        for key, stream in index.streams.items():
            self.ends[key] = max(self.ends.get(key, 0), stream.stop)


def open_log(
    store: LogStore, config: LogConfig, session: int, *, goes_on: bool = True, bytes_lost: int = 0
) -> OpenedLog:
    """Read what is there and mend it.

    Without `goes_on` a copy keeps the session that it has. `bytes_lost`: so much of the log is
    known to be gone.

    Raises:
        LogFormatError: a file is foreign, or of another version.
        OSError: from the store.

    """
    names = store.names()
    numbers = segments_among(names)
    head, left, is_torn = _read_tail(store)
    is_new = head is None and not numbers
    is_clean = is_new or (head is not None and head.state is State.CLOSED)
    has_crashed = not is_clean and (head is None or not head.is_of_this_boot)
    found = _Found(has_crashed, head is not None and head.state is State.SYNCED, bytes_lost)
    for name in names:
        number = first_record_of(name, "idx")
        if number is not None and number not in numbers:
            with suppress(ValueError):
                found.learn_ends(read_index(store, number))
            store.remove(name)
        elif name.endswith(".tmp"):
            store.remove(name)
    for number in numbers:
        _open_segment(store, number, number == numbers[-1], is_clean, found)
    last = found.catalog.segments[-1] if found.catalog.segments else None
    cut = None if head is None else check_end(store, last, head.end)
    if head is not None and cut is not None:
        found.findings.append(cut[0])
        found.bytes_lost += cut[1] if found.known_end != head.end else 0
    copied = head is not None and head.is_copy and not config.moved
    is_given_up = head is not None and head.state is State.GIVEN_UP
    if goes_on and (is_new or copied or is_given_up):
        own, floor = session, 0  # who has later messages than a copy must not get others for them
    else:
        known = next((one for one in reversed(found.catalog.segments) if one.size), None)
        own = known.session if known is not None else session if head is None else head.session
        floor = 0 if known is None else known.floor
    jumps = bool(found.bytes_lost) or is_torn or (has_crashed and not found.is_synced)
    left = [one for one in left if one.session == own]
    gathered_max = _GATHERED_MAX if head is None else head.gathered_max
    unwritten = gathered_max if has_crashed or is_torn else 0
    following = {key: found.catalog.next(key) or 0 for key in found.catalog.all_streams()}
    skipped: dict[str, RangeSet] = {}
    if jumps or has_crashed or found.ends or found.scanned > (not is_clean):
        held = {one.topic: one.first for one in left}
        skipped = _skip(found, own, following, held, unwritten, floor, jumps=jumps)
    if jumps:  # a stream may have begun that nothing is left of
        floor += (0 if is_clean else max(RESERVE, found.bytes_lost)) + unwritten
    report = OpenReport(
        clean=is_clean,
        copied=copied,
        skipped=tuple((own, topic, *part) for topic, all_ in skipped.items() for part in all_),
        findings=tuple(found.findings),
    )
    said = (own, 0) if last is None else (last.session, last.floor)
    is_new_start = bool(skipped) or said != (own, floor)
    return OpenedLog(report, own, floor, found.catalog, following, left, gathered_max, is_new_start)


def _read_tail(store: LogStore) -> tuple[TailHead | None, list[TailContent], bool]:
    """Return what the tail file has, and whether messages may be gone that were in it."""
    head = None
    try:
        head = read_head(store)
        if head is None:
            return None, [], bool(segments_among(store.names()))
        return head, list(read_slots(store)), False
    except ValueError:
        return head, [], True


def _skip(
    found: _Found, own: int, following: dict[Key, int], held: dict[str, int], unwritten: int,
    floor: int, *, jumps: bool,
) -> dict[str, RangeSet]:  # fmt: skip
    """Let the session's streams go on at their marks, or at what is held of them.

    Returns what they have no message of and that is not said yet: what is gone between two frames,
    and what may have been after the last one.
    """
    catalog, skipped = found.catalog, {}
    own_topics = {key[1] for key in [*following, *found.ends] if key[0] == own}
    for topic in sorted(own_topics | (set(held) if jumps else set())):
        key = (own, topic)
        stop = following.get(key, 0)
        holes = [*catalog.holes(key), *found.holes.get(key, [])]
        start = max(stop, found.ends.get(key, 0))
        if jumps and held.get(topic, -1) >= start:
            start = held[topic]
        elif jumps:
            part = catalog.last(key)
            mark = floor + RESERVE if part is None else part.mark
            start = max(mark, start + found.bytes_lost) + unwritten
        known, new = RangeSet(catalog.skips(key)), RangeSet()
        for hole in [*holes, (stop, start)]:
            for part_of_it in known.missing(*hole):
                new.add(*part_of_it)
        if new:
            skipped[topic] = new
        following[key] = start
    return skipped


def _open_segment(
    store: LogStore, number: int, is_last: bool, is_clean: bool, found: _Found
) -> None:
    by_index = not is_last or is_clean
    loaded = load(store, number, by_index=by_index, with_entries=is_last, is_last=is_last)
    segment, result, former = loaded.segment, loaded.scan, loaded.former
    if loaded.wrong is not None:
        found.findings.append(loaded.wrong)
    if result is not None:
        if not (found.has_crashed and found.is_synced):
            found.learn_ends(former)  # or else what is gone was not sent
        found.scanned += 1
        for key, start, stop in [*result.holes, *_find_ends(segment, former)]:
            found.holes.setdefault(key, []).append((start, stop))
        if not is_last and result.file_bytes < SEGMENT_HEADER.size:
            # The operating system crashed before any of it was on the disk.
            store.remove(segment.name)
            store.remove(index_name(number))
            return
        if is_last or segment.size:
            _mend(store, result, found, is_last=is_last)
        found.findings += result.findings
        if not is_last:
            segment.is_closed = True
            if segment.size:
                store.replace(index_name(number), encode_index(segment), durable=False)
    if is_last:
        segment.is_closed = False
    found.catalog.add(segment)


def _mend(store: LogStore, result: Scan, found: _Found, *, is_last: bool) -> None:
    """Cut off what is after the last good record."""
    segment = result.segment
    if not segment.size:
        if not result.is_torn:
            raise LogFormatError(result.findings[0].path, 0, result.findings[0].what)
        result.findings.clear()  # its writer died before it had written the header
        if result.file_bytes >= SEGMENT_HEADER.size and not found.has_crashed:
            found.bytes_lost += result.file_bytes
    torn = result.file_bytes - segment.size
    # A record that its writer did not finish was never sent. Any other damage may have hit frames
    # that subscribers have.
    if found.is_synced or not found.has_crashed:
        found.bytes_lost += result.bytes_damaged
    if result.is_torn and not is_last and not found.has_crashed:
        found.bytes_lost += torn
    if torn:
        with closing(store.open(segment.name, create=True)) as file:
            file.truncate(segment.size)


def _find_ends(
    segment: SegmentIndex, former: SegmentIndex | None
) -> Iterator[tuple[Key, int, int]]:
    """Yield what a segment has no more at its ends, by the index of an earlier time."""
    for key, had in () if former is None else former.streams.items():
        stream = segment.streams.get(key)
        start = stop = had.stop
        if stream is not None and stream.frames:
            start, stop = stream.start, stream.stop
        for gone in ((had.start, start), (stop, had.stop)):
            if had.frames and gone[0] < gone[1]:
                yield key, *gone
