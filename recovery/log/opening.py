"""Opening a log to write: what is there, what a crash has left of it, and where it goes on.

::

    closed cleanly ──▶ the indexes are read, no segment
    process died ──▶ the last segment is read, its torn tail cut; the next sequence is exact
    system died, or a file is damaged or cut ──▶ the same, and its streams go on at their marks
    it is a copy of another directory ──▶ a new session
"""

from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field

from recovery.errors import LogFormatError
from recovery.log import state as state_file
from recovery.log.catalog import (
    Catalog,
    Finding,
    Scan,
    check_end,
    look_at,
    read_index,
    scan,
    segments_among,
)
from recovery.log.config import LogConfig
from recovery.log.format import SEGMENT_HEADER
from recovery.log.index import Key, SegmentIndex, encode_index, first_record_of, index_name
from recovery.log.state import LogState
from recovery.log.store import LogStore
from recovery.log.tail import NAME as TAIL
from recovery.log.tail import find_damage, read_end, read_slots
from recovery.ranges import RangeSet


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenReport:
    """What opening a log found.

    Attributes:
        clean: whether it had been closed, so that no segment was read.
        bytes_cut: the torn tail that was cut off the last segment.
        segments_scanned: how many segments were read: the last one after a crash, and those whose
            index is missing or damaged.
        os_crash: whether messages may be gone that were acknowledged: the operating system
            crashed, or a file was damaged or cut. Where that is known of some streams only, by what
            the tail file has of them, it is False, and `skipped` has them.
        copied: whether the directory is a copy of the one that was written, so that a new session
            has begun.
        skipped: (session, topic, start, stop) that no message has because of that: what may have
            been after the last one, and what is gone between others.
        findings: what is damaged; it is not served.

    """

    clean: bool
    bytes_cut: int = 0
    segments_scanned: int = 0
    os_crash: bool = False
    copied: bool = False
    skipped: tuple[tuple[int, str, int, int], ...] = ()
    findings: tuple[Finding, ...] = ()


@dataclass(slots=True)
class _Found:
    """What reading the files gives."""

    catalog: Catalog
    has_crashed: bool
    scanned: int = 0
    bytes_cut: int = 0
    is_damaged: bool = False
    holes: dict[Key, list[tuple[int, int]]] = field(default_factory=dict)
    skipped: dict[str, RangeSet] = field(default_factory=dict)

    def skip(self, topic: str, start: int, stop: int) -> None:
        """Note what no message has, or none any more."""
        if start < stop:
            self.skipped.setdefault(topic, RangeSet()).add(start, stop)

    findings: list[Finding] = field(default_factory=list)


def open_log(
    store: LogStore, config: LogConfig, session: int, *, goes_on: bool = True, is_cut: bool = False
) -> tuple[LogState, Catalog, OpenReport]:
    """Read what is there and mend it; the state is yet to be written.

    Without `goes_on` a copy keeps the session that it has. `is_cut`: the newest segment is known to
    have been longer.

    Raises:
        LogFormatError: a file is foreign, of another version, or the state is damaged.
        OSError: from the store.

    """
    names = store.names()
    state = read_state(store)
    numbers = segments_among(names)
    for name in names:
        number = first_record_of(name, "idx")
        if number is not None and number not in numbers:
            with suppress(ValueError):
                _keep_tails(read_index(store, number), state)
        if name.endswith(".tmp") or (number is not None and number not in numbers):
            store.remove(name)
    is_copy = (
        state is not None and not config.moved
        and state.identity != store.identity(state_file.NAME)
    )  # fmt: skip
    if is_copy and goes_on:
        state = None  # who has later messages than the copy must not get others for them
    is_clean = state is not None and state.clean
    has_crashed = state is not None and not is_clean and state.boot != store.boot_id()
    if state is None or state.boot != store.boot_id():
        # It is another session's, or may be torn, and must not be read when this one is killed.
        store.remove(TAIL)
    found = _Found(Catalog(), has_crashed)
    for number in numbers:
        _open_segment(store, number, number == numbers[-1], is_clean, found, state)
    found.is_damaged |= is_cut
    if not has_crashed:
        _check_end(store, found)
    held, unwritten = ({}, 0) if state is None or is_clean else _in_no_frame(store, state, found)
    is_new = state is None
    if state is None:
        state = LogState(session)
    if is_clean:
        ends = [segment.stop_record for segment in found.catalog.segments[-1:]] or [0]
        found.is_damaged |= ends != [state.end]  # something is gone without a trace
    crashed = not is_new and (has_crashed or found.is_damaged)
    # What is missing in segments that had no index, as after a repair, was not known before.
    if crashed or found.scanned > (not is_clean):
        _find_holes(state, found)
    if crashed and not (state.always and not found.is_damaged):  # what is not there was not sent
        _skip(state, found, held, unwritten)
    skipped = found.skipped
    for topic, ranges in skipped.items():
        state.skips[topic] = sorted([*state.skips.get(topic, ()), *ranges])
    if found.catalog.segments:
        _take_up_names(state, found.catalog, found.catalog.segments[-1])
    return state, found.catalog, OpenReport(
        clean=is_clean or (is_new and not numbers),
        bytes_cut=found.bytes_cut,
        segments_scanned=found.scanned,
        os_crash=crashed,
        copied=is_copy,
        skipped=tuple(
            (state.session, topic, *part) for topic, parts in skipped.items() for part in parts
        ),
        findings=tuple(found.findings),
    )  # fmt: skip


def _in_no_frame(store: LogStore, state: LogState, found: _Found) -> tuple[dict[str, int], int]:
    """Return where begins by topic what a killed process had accepted and the tail file has.

    And how many messages of any other stream it may have accepted that are in no frame.
    """
    is_gone = not found.has_crashed and find_damage(store) is not None
    found.is_damaged |= is_gone
    if found.has_crashed or is_gone:
        return {}, state.in_tail
    kept = read_slots(store)
    return {one.topic: one.first for one in kept if one.session == state.session}, 0


def _check_end(store: LogStore, found: _Found) -> None:
    """Find out whether a killed process had written more than there is."""
    try:
        end = read_end(store)
    except ValueError:
        found.is_damaged = True
        return
    last = found.catalog.segments[-1] if found.catalog.segments else None
    cut = check_end(store, last, end)
    if cut is not None:
        found.is_damaged = True
        found.findings.append(cut)


def read_state(store: LogStore) -> LogState | None:
    """Return the state, or None where there is no file; raises `LogFormatError`."""
    data = store.read(state_file.NAME)
    if data is None:
        return None
    try:
        return state_file.decode_state(data)
    except ValueError as error:
        what = f"{error}; delete the file to go on under a new session"
        raise LogFormatError(store.path(state_file.NAME), 0, what) from None


def _open_segment(
    store: LogStore, number: int, is_last: bool, is_clean: bool, found: _Found,
    state: LogState | None,
) -> None:  # fmt: skip
    segment = former = None
    try:
        if not is_last or is_clean:
            segment = read_index(store, number, with_entries=is_last)
    except ValueError as error:
        found.findings.append(Finding(store.path(index_name(number)), 0, str(error)))
    if segment is not None:
        size, wrong = look_at(store, segment)
        found.is_damaged |= is_last and size < segment.size and not found.has_crashed
        if size != segment.size or (is_last and wrong):
            # It was written to later, or cut, or is to be and is none.
            if not (found.has_crashed and state is not None and state.always):
                _keep_tails(segment, state)  # or else what is gone was not sent
                former = segment
            segment = None
    if segment is None:
        segment = SegmentIndex(number)
        result = scan(store, segment)
        found.scanned += 1
        for key, start, stop in [*result.holes, *_find_ends(segment, former)]:
            found.holes.setdefault(key, []).append((start, stop))
        if not is_last and result.file_bytes < SEGMENT_HEADER.size:
            # The operating system crashed before any of it was on the disk.
            found.bytes_cut += result.file_bytes
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
        found.is_damaged |= result.file_bytes >= SEGMENT_HEADER.size and not found.has_crashed
        result.findings.clear()  # its writer died before it had written the header
    torn = result.file_bytes - segment.size
    # A record that its writer did not finish was never sent. Any other damage may have hit frames
    # that subscribers have.
    found.is_damaged |= bool(result.findings)
    found.is_damaged |= result.is_torn and not is_last and not found.has_crashed
    if torn:
        found.bytes_cut += torn
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


def _keep_tails(index: SegmentIndex | None, state: LogState | None) -> None:
    """Learn from an index whose segment is gone, or is another one, where streams go on."""
    for (session, topic), stream in index.streams.items() if index is not None else ():
        if state is not None and session == state.session:
            state.tails[topic] = max(state.tails.get(topic, 0), stream.stop)


def _take_up_names(state: LogState, catalog: Catalog, last: SegmentIndex) -> None:
    """Let streams go on whose writer died between their name and their first frame."""
    for key, stream in last.streams.items():
        if stream.frames:
            continue
        following, topic = catalog.next(key) or 0, key[1]
        if key[0] == state.session:
            if state.floor and not catalog.of_stream(key) and topic not in state.tails:
                state.tails[topic] = state.floor
                state.skips[topic] = [(0, state.floor)]
            following = max(following, state.tails.get(topic, 0))
        stream.start = stream.stop = following
        catalog.on_stream(key, last)


def _find_holes(state: LogState, found: _Found) -> None:
    """Find what is gone of the session's streams: between frames, and before they are known to end.

    They have no holes else.
    """
    for session, topic in dict.fromkeys([*found.catalog.all_streams(), *found.holes]):
        if session != state.session:
            continue
        holes = found.catalog.holes((session, topic)) + found.holes.get((session, topic), [])
        end = found.catalog.next((session, topic)) or 0
        if not found.has_crashed:  # or else that may never have been on the disk
            holes.append((end, max(end, state.tails.get(topic, 0))))
        known = RangeSet(state.skips.get(topic, ()))
        for hole in holes:
            for part in known.missing(*hole):
                found.skip(topic, *part)


def _skip(state: LogState, found: _Found, held: dict[str, int], unwritten: int) -> None:
    """Let the streams of the session go on at their marks, or at what is held of them."""
    catalog = found.catalog
    topics = {topic for session, topic in catalog.all_streams() if session == state.session}
    for topic in sorted(topics | set(state.tails) | set(state.marks) | set(held)):
        following = max(catalog.next((state.session, topic)) or 0, state.tails.get(topic, 0))
        mark = held.get(topic, -1)
        if mark < following:
            mark = max(state.mark(topic), following) + unwritten
        found.skip(topic, following, mark)
        state.tails[topic] = mark
    # A stream may have begun that nothing is left of.
    state.floor += (0 if state.clean else state_file.RESERVE) + unwritten
