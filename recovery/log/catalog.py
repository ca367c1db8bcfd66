"""The segments of a log and which streams are in them; shared by its writer and its readers."""

from bisect import bisect_right
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise

from recovery.errors import RecoveryError
from recovery.log.format import (
    KIND_DATA,
    SEGMENT_HEADER,
    Walk,
    check_segment_header,
    unpack_segment_header,
)
from recovery.log.index import (
    Key,
    SegmentIndex,
    StreamIndex,
    decode_index,
    first_record_of,
    index_name,
)
from recovery.log.store import LogFile, LogStore
from recovery.log.tail import NAME as TAIL


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong in a log.

    Attributes:
        path: the file.
        offset: where in it, in bytes.
        what: what is wrong.

    """

    path: str
    offset: int
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSummary:
    """One stream of a log.

    Attributes:
        session, topic: the stream.
        earliest: its first sequence kept.
        next: the sequence after the last one.
        frames, messages, bytes: how many are kept, and their size on the disk.
        timestamp_ns_min, timestamp_ns_max: over the newest timestamp of each frame, in ns since
            the epoch.
        appended_ns_first, appended_ns_last: when its first kept frame was appended, and the latest
            time at which one was.

    """

    session: int
    topic: str
    earliest: int
    next: int
    frames: int
    messages: int
    bytes: int
    timestamp_ns_min: int
    timestamp_ns_max: int
    appended_ns_first: int
    appended_ns_last: int


class Catalog:
    """Segments in order, and the streams in them.

    One thread changes it, others may read at the same time: what they look at is replaced and not
    changed, or only grows.
    """

    def __init__(self) -> None:
        self.segments: list[SegmentIndex] = []
        self._of: dict[Key, list[SegmentIndex]] = {}

    def add(self, segment: SegmentIndex) -> None:
        """Take a segment in, after the others."""
        self.segments = [*self.segments, segment]
        for key in segment.streams:
            self.on_stream(key, segment)

    def on_stream(self, key: Key, segment: SegmentIndex) -> None:
        """Note that a stream is in a segment, which is the last one; it may be noted again."""
        parts = self._of.setdefault(key, [])
        if not parts or parts[-1] is not segment:
            parts.append(segment)

    def drop(self, segment: SegmentIndex) -> None:
        """Forget a segment, and the streams that are in no other; it may be forgotten again."""
        for key in segment.streams:
            rest = [other for other in self._of.get(key, ()) if other is not segment]
            if rest:
                self._of[key] = rest
            else:
                self._of.pop(key, None)
        self.segments = [other for other in self.segments if other is not segment]

    def all_streams(self) -> list[Key]:
        """Return the streams in the order in which they came."""
        return list(self._of)

    def of_stream(self, key: Key) -> list[SegmentIndex]:
        """Return the segments that a stream is in."""
        return self._of.get(key, [])

    def from_sequence(self, key: Key, sequence: int) -> list[SegmentIndex]:
        """Return the segments that may have `sequence` or what is after it."""
        segments = self._of.get(key, [])
        return segments[bisect_right(segments, sequence, key=lambda s: s.streams[key].stop) :]

    def from_time(self, key: Key, timestamp_ns: int) -> list[SegmentIndex]:
        """Return the segments from the first on that has a frame as new as that."""
        segments = self._of.get(key, [])
        for index, segment in enumerate(segments):
            if segment.streams[key].timestamp_ns_max >= timestamp_ns:
                return segments[index:]
        return []

    def earliest(self, key: Key) -> int | None:
        """Return the first sequence kept of a stream, or None."""
        return next((part.start for part in self._parts(key) if part.frames), None)

    def next(self, key: Key) -> int | None:
        """Return the sequence that a stream goes on with, or None."""
        last = self.last(key)
        return None if last is None else last.stop

    def last(self, key: Key) -> StreamIndex | None:
        """Return what the newest segment that names a stream has of it, or None."""
        segments = self._of.get(key)
        return segments[-1].streams[key] if segments else None

    def skips(self, key: Key) -> list[tuple[int, int]]:
        """Return what was skipped of a stream after crashes."""
        return [hole for part in self._parts(key) for hole in part.holes]

    def holes(self, key: Key) -> list[tuple[int, int]]:
        """Return what is missing of a stream between two segments that it is in."""
        parts = self._parts(key)
        return [(a.stop, b.start) for a, b in pairwise(parts) if a.stop < b.start]

    def summary(self, key: Key) -> StreamSummary | None:
        """Return what there is of a stream, or None where nothing is kept."""
        parts = [part for part in self._parts(key) if part.frames]
        if not parts:
            return None
        return StreamSummary(
            session=key[0],
            topic=key[1],
            earliest=parts[0].start,
            next=parts[-1].stop,
            frames=sum(part.frames for part in parts),
            messages=sum(part.messages for part in parts),
            bytes=sum(part.bytes for part in parts),
            timestamp_ns_min=min(part.timestamp_ns_min for part in parts),
            timestamp_ns_max=max(part.timestamp_ns_max for part in parts),
            appended_ns_first=parts[0].appended_ns_first,
            appended_ns_last=max(part.appended_ns_last for part in parts),
        )

    def _parts(self, key: Key) -> list[StreamIndex]:
        """Return what each segment has of a stream, if only its name."""
        return [segment.streams[key] for segment in self._of.get(key, ())]


def segments_among(names: list[str]) -> list[int]:
    """Return the numbers of the segments among the files of a log, in order."""
    return sorted(n for name in names if (n := first_record_of(name, "log")) is not None)


def list_log(store: LogStore) -> tuple[list[str], list[int]]:
    """Return the names of a log's files, and the numbers of its segments in order.

    Raises:
        RecoveryError: there is no log.

    """
    try:
        names = store.names()
    except OSError as error:
        raise RecoveryError(f"{store.path('')}: {error.strerror or error}") from error
    numbers = segments_among(names)
    if not numbers and TAIL not in names:
        raise RecoveryError(f"{store.path('')} has no log")
    return names, numbers


@dataclass(slots=True)
class Scan:
    """What reading a whole segment has shown.

    Attributes:
        segment: what is in it.
        file_bytes: the size of the file.
        is_torn: whether its last record was written half.
        findings: what is damaged.
        holes: (stream, start, stop) that is missing between two frames of a stream.
        bytes_damaged: how much of it is damaged.

    """

    segment: SegmentIndex
    file_bytes: int
    is_torn: bool
    findings: list[Finding]
    holes: list[tuple[Key, int, int]]
    bytes_damaged: int = 0


def scan(store: LogStore, segment: SegmentIndex, *, reads_on: bool = False) -> Scan:
    """Read a segment from `segment.size` on and take its records in; raises `OSError`.

    What is damaged is passed over. A file that is no segment, or of another version, has a finding
    at its first byte, and no records.

    Args:
        store: the log's files.
        segment: what is known of it.
        reads_on: whether records are taken in, too, that follow a header that is wrong.

    """
    with closing(store.open(segment.name)) as file:
        path, file_bytes = store.path(segment.name), file.size()
        findings, holes = [], []
        if not segment.size:
            header = file.read(SEGMENT_HEADER.size, 0)
            wrong = check_segment_header(header, segment.first_record)
            if wrong is not None:
                # After a crash of the system the size of a file may be there, and nothing else.
                is_torn = len(header) < SEGMENT_HEADER.size or not any(header)
                findings.append(Finding(path, 0, wrong))
                if is_torn or not reads_on or not _has_record(file, file_bytes):
                    return Scan(segment, file_bytes, is_torn, findings, [])
            else:
                segment.session, segment.floor = unpack_segment_header(header)
            segment.size = SEGMENT_HEADER.size
        walk, damaged = Walk(file.read, segment.size, file_bytes), 0
        for placed in walk:
            stream = segment.by_number.get(placed.stream)
            stop = placed.start if stream is None or placed.kind != KIND_DATA else stream.stop
            wrong = segment.take(placed)
            if wrong is not None:
                findings.append(Finding(path, placed.offset, wrong))
                damaged += placed.stop_offset - placed.offset
            elif stream is not None and stop < placed.start:
                holes.append(((stream.session, stream.topic), stop, placed.start))
        findings += [Finding(path, offset, what) for offset, _, what in walk.damage]
        findings.sort(key=lambda finding: finding.offset)
        damaged += sum(stop - start for start, stop, _ in walk.damage)
        return Scan(segment, file_bytes, walk.is_torn, findings, holes, damaged)


def _has_record(file: LogFile, file_bytes: int) -> bool:
    walk = Walk(file.read, SEGMENT_HEADER.size, file_bytes)
    return any(True for _ in walk)


def read_index(
    store: LogStore, first_record: int, *, with_entries: bool = False
) -> SegmentIndex | None:
    """Return a segment from its index file; None where there is none.

    Raises:
        ValueError: what is wrong with it.
        OSError: from the store.

    """
    data = store.read(index_name(first_record))
    if data is None:
        return None
    return decode_index(data, first_record, with_entries=with_entries)


@dataclass(slots=True)
class Loaded:
    """What is in a segment, and how that is known.

    Attributes:
        segment: what is in it.
        scan: what reading it has shown; None: its index says it all.
        former: what an index says that does not fit the segment.
        wrong: what is wrong with its index.

    """

    segment: SegmentIndex
    scan: Scan | None = None
    former: SegmentIndex | None = None
    wrong: Finding | None = None


def load(
    store: LogStore,
    first_record: int,
    *,
    by_index: bool = True,
    with_entries: bool = False,
    is_last: bool = False,
) -> Loaded:
    """Return what is in a segment: by its index where that fits it, or else by reading it whole.

    Args:
        store: the log's files.
        first_record: which segment.
        by_index: whether its index may be used.
        with_entries: whether its entries are wanted.
        is_last: whether it is the last one of a log that is opened: its header must be good.

    Raises:
        OSError: from the store.

    """
    index, found = None, Loaded(SegmentIndex(first_record))
    try:
        if by_index:
            index = read_index(store, first_record, with_entries=with_entries)
    except ValueError as error:
        found.wrong = Finding(store.path(index_name(first_record)), 0, str(error))
    if index is not None:
        with closing(store.open(index.name)) as file:
            header, size = file.read(SEGMENT_HEADER.size, 0), file.size()
        wrong = check_segment_header(header, first_record)
        if wrong is None:
            index.session, index.floor = unpack_segment_header(header)
        if size == index.size and not (is_last and wrong):
            return Loaded(index)
        found.former = index  # it was written to later, or cut
    found.scan = scan(store, found.segment)
    return found


def check_end(
    store: LogStore, last: SegmentIndex | None, end: tuple[int, int] | None
) -> tuple[Finding, int] | None:
    """Compare how far the last segment goes with how far its writer had come; see `TailHead`.

    Returns what is wrong, and how many bytes are gone.
    """
    if end is None or (last is not None and (last.first_record, last.size) >= end):
        return None
    segment, size = SegmentIndex(end[0]), end[1]
    path = store.path(segment.name)
    if last is None or last.first_record < segment.first_record:
        return Finding(path, 0, f"it is missing, and had {size} bytes"), size
    what = f"it ends here, and {size} bytes of it were written: it was cut"
    return Finding(path, last.size, what), size - last.size
