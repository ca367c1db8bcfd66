"""Opening a log to write: what is there, what a crash has left of it, and where it goes on.

::

    closed cleanly ──▶ the indexes are read, no segment
    process died ──▶ the last segment is read, its torn tail cut; the next sequence is exact
    system died, or a file is damaged or cut ──▶ the same, and its streams go on at their marks
    it is a copy of another directory ──▶ a new session
"""

from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from typing import Final

from recovery.errors import LogFormatError
from recovery.log import state as state_file
from recovery.log.catalog import Catalog, Finding, Scan, look_at, read_index, scan, segments_among
from recovery.log.config import LogConfig
from recovery.log.format import HEAD_BYTES, KIND_STREAM, SEGMENT_HEADER, Walk, pack_stream
from recovery.log.index import Key, SegmentIndex, encode_index, first_record_of, index_name
from recovery.log.state import LogState
from recovery.log.store import LogStore
from recovery.log.tail import NAME as TAIL
from recovery.log.tail import find_damage, read_end, read_slots
from recovery.log.written import check_end
from recovery.ranges import RangeSet

_COPY: Final = "a copy"
"""The identity of a log that stays one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenReport:
    """What opening a log found.

    Attributes:
        clean: whether it had been closed, so that no segment was read.
        bytes_cut: the torn tail that was cut off the last segment.
        segments_scanned: how many segments were read: the last one after a crash, and those whose
            index is missing or damaged.
        os_crash: whether messages may be gone that were acknowledged: the operating system
            crashed, a file was damaged or cut, or the process was killed with
            `acknowledge="gathered"`. Where that is known of some streams only, by what the tail
            file has of them, it is False, and `skipped` has them.
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
    findings: list[Finding] = field(default_factory=list)


def open_log(
    store: LogStore, config: LogConfig, session: int, *, goes_on: bool = True, is_cut: bool = False
) -> tuple[LogState, Catalog, OpenReport]:
    """Read what is there and mend it; the state is yet to be written.

    Without `goes_on` a copy keeps the session that it has, and `state.identity` says what it is.
    `is_cut`: the newest segment is known to have been longer.

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
    is_copy = state is not None and not config.moved and _is_copy(store, state)
    if is_copy and goes_on:
        state = None  # who has later messages than the copy must not get others for them
    is_clean = state is not None and state.clean
    has_crashed = state is not None and not is_clean and state.boot != store.boot_id()
    if state is None or state.boot != store.boot_id():
        # It is another session's, or may be torn, and must not be read when this one is killed.
        store.remove(TAIL)
    found = _Found(Catalog(), has_crashed)
    for number in numbers:
        _open_segment(store, config, number, number == numbers[-1], is_clean, found, state)
    found.is_damaged |= is_cut or (not has_crashed and _is_cut(store, found.catalog))
    held, unwritten = ({}, 0) if state is None or is_clean else _in_no_frame(store, state, found)
    is_new = state is None
    if state is None:
        state = LogState(session)
    state.identity = _COPY if is_copy and not goes_on else store.identity()
    if is_clean:
        ends = [segment.stop_record for segment in found.catalog.segments[-1:]] or [0]
        found.is_damaged |= ends != [state.end]  # something is gone without a trace
    was_gathering = not is_clean and state.gathered > 0
    crashed = not is_new and (has_crashed or found.is_damaged or was_gathering)
    # What is missing in segments that had no index, as after a repair, was not known before.
    holes = _note_holes(state, found) if crashed or found.scanned > (not is_clean) else []
    skipped = [*holes, *(_skip(state, found, held, unwritten) if crashed else ())]
    if found.catalog.segments:
        _take_up_names(state, found.catalog, found.catalog.segments[-1])
    return state, found.catalog, OpenReport(
        clean=is_clean or (is_new and not numbers),
        bytes_cut=found.bytes_cut,
        segments_scanned=found.scanned,
        os_crash=crashed,
        copied=is_copy,
        skipped=tuple(skipped),
        findings=tuple(found.findings),
    )  # fmt: skip


def _is_copy(store: LogStore, state: LogState) -> bool:
    """Whether it is out of a copy, as a whole or put in place of the files that were there."""
    return (state.identity, state.file) != (store.identity(), store.identity(state_file.NAME))


def _in_no_frame(store: LogStore, state: LogState, found: _Found) -> tuple[dict[str, int], int]:
    """Return where begins by topic what a killed process had accepted and the tail file has.

    And how many messages of any other stream it may have accepted that are in no frame.
    """
    is_gone = not found.has_crashed and find_damage(store) is not None
    found.is_damaged |= is_gone
    if found.has_crashed or is_gone:
        return {}, max(state.gathered, state.in_tail)
    kept = read_slots(store)
    return {one.topic: one.first for one in kept if one.session == state.session}, state.gathered


def _is_cut(store: LogStore, catalog: Catalog) -> bool:
    """Whether a killed process had written more than there is."""
    try:
        end = read_end(store)
    except ValueError:
        return True
    last = catalog.segments[-1] if catalog.segments else None
    return check_end(store, last, end) is not None


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
    store: LogStore, config: LogConfig, number: int, is_last: bool, is_clean: bool, found: _Found,
    state: LogState | None,
) -> None:  # fmt: skip
    segment: SegmentIndex | None = None
    try:
        if not is_last or is_clean:
            segment = read_index(store, number, with_entries=is_last)
    except ValueError as error:
        found.findings.append(Finding(store.path(index_name(number)), 0, str(error)))
    if segment is not None:
        size, wrong = look_at(store, segment)
        found.is_damaged |= is_last and size < segment.size and not found.has_crashed
        if size != segment.size or (is_last and wrong):
            _keep_tails(segment, state)
            segment = None  # it was written to later, or cut, or is to be and is none
    if segment is None:
        segment = SegmentIndex(number)
        result = scan(store, segment, config.index_bytes)
        found.scanned += 1
        if not is_last and result.file_bytes < SEGMENT_HEADER.size:
            # The operating system crashed before any of it was on the disk.
            found.bytes_cut += result.file_bytes
            store.remove(segment.name)
            store.remove(index_name(number))
            return
        if is_last or segment.size:
            _mend(store, result, found, is_last=is_last)
        found.findings += result.findings
        for key, start, stop in result.holes:
            found.holes.setdefault(key, []).append((start, stop))
        if not is_last:
            segment.is_closed = True
            if segment.size:
                store.replace(index_name(number), encode_index(segment), durable=False)
    if is_last:
        # Who reads the file without the index would not know whose the next frames are.
        segment.is_closed = segment.is_closed and not _has_names(store, segment)
    found.catalog.add(segment)


def _has_names(store: LogStore, segment: SegmentIndex) -> bool:
    """Whether each stream's name is where it was written, before its first frame."""
    with closing(store.open(segment.name)) as file:
        for stream in segment.streams.values():
            if stream.entries is None or not stream.frames:
                continue
            name = pack_stream(stream.session, stream.topic)
            stop = stream.entries.offsets[0]
            walk = Walk(file.read, stop - HEAD_BYTES - len(name), stop)
            found = [(placed.kind, placed.stream, bytes(placed.payload)) for placed in walk]
            if found != [(KIND_STREAM, stream.number, name)]:
                return False
        return True


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
        catalog.note_stream(key, last)


def _note_holes(state: LogState, found: _Found) -> list[tuple[int, str, int, int]]:
    """Note what is gone of the session's streams: between frames, and before they are known to end.

    They have no holes else.
    """
    noted = []
    for session, topic in found.catalog.all_streams():
        if session != state.session:
            continue
        holes = found.catalog.holes((session, topic)) + found.holes.get((session, topic), [])
        end = found.catalog.next((session, topic)) or 0
        if not found.has_crashed:  # or else that may never have been on the disk
            holes.append((end, max(end, state.tails.get(topic, 0))))
        known = RangeSet(state.skips.get(topic, ()))
        new = [part for start, stop in holes for part in known.missing(start, stop)]
        if new:
            state.skips[topic] = sorted([*state.skips.get(topic, ()), *new])
            noted += [(session, topic, start, stop) for start, stop in sorted(new)]
    return noted


def _skip(
    state: LogState, found: _Found, held: dict[str, int], unwritten: int
) -> list[tuple[int, str, int, int]]:
    """Let the streams of the session go on at their marks, or at what is held of them.

    Returns what is skipped.
    """
    if state.always and not found.is_damaged:
        return []  # what is not on the disk was not sent
    skipped, catalog = [], found.catalog
    topics = {topic for session, topic in catalog.all_streams() if session == state.session}
    for topic in sorted(topics | set(state.tails) | set(state.marks) | set(held)):
        following = max(catalog.next((state.session, topic)) or 0, state.tails.get(topic, 0))
        mark = held.get(topic, -1)
        if mark < following:
            mark = max(state.mark(topic), following) + unwritten
        if following < mark:
            skipped.append((state.session, topic, following, mark))
            state.skips.setdefault(topic, []).append((following, mark))
        state.tails[topic] = mark
    # A stream may have begun that nothing is left of.
    state.floor += state.reserve + unwritten
    return skipped


def skip_tail(state: LogState, report: OpenReport, topic: str, start: int) -> OpenReport:
    """Let a stream go on after all that the tail file may have had of it from `start` on."""
    stop = start + state.in_tail
    state.skips[topic] = [*state.skips.get(topic, ()), (start, stop)]
    state.tails[topic] = stop
    return replace(report, skipped=(*report.skipped, (state.session, topic, start, stop)))
