"""How far a log had been written, to compare it with how far it goes."""

from collections.abc import Collection
from dataclasses import dataclass, field

from recovery.log import state as state_file
from recovery.log.catalog import Catalog, Finding, read_index, segments_among
from recovery.log.index import Key, SegmentIndex, first_record_of
from recovery.log.state import LogState
from recovery.log.store import LogStore
from recovery.log.tail import read_end


@dataclass(slots=True)
class Cut:
    """What is gone from the end of a log.

    Attributes:
        ranges: by stream, its sequences that the log had.
        findings: where the log ends too early and nothing says which messages it had.

    """

    ranges: dict[Key, range] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


@dataclass(slots=True)
class Written:
    """What the files around the segments say.

    Attributes:
        end: the segment that was written last and how far, where a process was killed, or is at it.
        state: the state, or None.
        ranges: by stream, its sequences in the newest segment, if that was closed.

    """

    end: tuple[int, int] | None
    state: LogState | None
    ranges: dict[Key, range]


def read_written(store: LogStore) -> Written:
    """Read it; to be called before the segments are looked at, since a writer goes on."""
    try:
        end = read_end(store)
    except ValueError:
        end = None  # the damage is found otherwise
    try:
        data = store.read(state_file.NAME)
        state = None if data is None else state_file.decode_state(data)
    except ValueError:
        state = None
    names = store.names()
    newest = max(segments_among(names), default=0)
    ranges: dict[Key, range] = {}
    for number in sorted(n for name in names if (n := first_record_of(name, "idx")) is not None):
        if number >= newest:
            _take_index(store, number, ranges)
    return Written(end, state, ranges)


def _take_index(store: LogStore, number: int, ranges: dict[Key, range]) -> None:
    try:
        index = read_index(store, number)
    except (ValueError, OSError):
        return
    for key, stream in index.streams.items() if index is not None else ():
        if stream.frames:
            known = ranges.get(key)
            ranges[key] = range(stream.start if known is None else known.start, stream.stop)


def find_cut(store: LogStore, written: Written, catalog: Catalog, damaged: Collection[str]) -> Cut:
    """Compare what was written with what is there; `damaged`: the files that have damage."""
    cut, state = Cut(), written.state
    for key, had in written.ranges.items():
        following = catalog.next(key)
        if following is None:
            cut.ranges[key] = had
        elif following < had.stop:
            cut.ranges[key] = range(following, had.stop)
    last = catalog.segments[-1] if catalog.segments else None
    path = store.path(SegmentIndex(0).name if last is None else last.name)
    if path in damaged:
        return cut  # whether the rest was cut, too, cannot be known
    wrong = check_end(store, last, written.end)
    records, size = (0, 0) if last is None else (last.stop_record, last.size)
    if wrong is not None:
        cut.findings.append(wrong)
    elif state is not None and state.clean and records < state.end and not cut.ranges:
        what = f"{state.end - records} records are missing at the end of the log"
        cut.findings.append(Finding(path, size, what))
    return cut


def check_end(
    store: LogStore, last: SegmentIndex | None, end: tuple[int, int] | None
) -> Finding | None:
    """Compare how far the last segment goes with how far its writer had come."""
    if end is None or (last is not None and (last.first_record, last.size) >= end):
        return None
    segment, size = SegmentIndex(end[0]), end[1]
    if last is None or last.first_record < segment.first_record:
        return Finding(store.path(segment.name), 0, f"it is missing, and had {size} bytes")
    what = f"it ends here, and {size} bytes of it were written: it was cut"
    return Finding(store.path(segment.name), last.size, what)
