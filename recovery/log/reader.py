"""Reading a log: by sequence, by time, and in the order in which it was written."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from recovery.errors import lacks_means
from recovery.log.catalog import (
    Catalog,
    Finding,
    Scan,
    StreamSummary,
    check_end,
    list_log,
    load,
    scan,
)
from recovery.log.format import KIND_DATA, SEGMENT_HEADER, Placed, Read, Walk
from recovery.log.index import Entries, Key, SegmentIndex
from recovery.log.store import FileStore, LogFile, LogStore
from recovery.log.tail import TailContent, known_head, read_slots
from recovery.replay_buffer import Kept

if TYPE_CHECKING:
    import os

FILES_MAX: Final = 8
"""Segments that a reader holds open; none of them is deleted by retention meanwhile."""
INDEXES_MAX: Final = 8
"""Indexes of old segments that a reader keeps; one of 64 MiB has at most some 25 KiB a stream."""
CORRUPT_MAX: Final = 1000


class Record(NamedTuple):
    """A frame in the order in which frames were written."""

    session: int
    topic: str
    start: int
    stop: int
    frame: bytes
    appended_ns: int
    timestamp_ns_max: int


class LogReader:
    """Reads a log, of this process or of another one that may be writing it.

    It is to be used by one thread at a time. A damaged frame is never given: it is passed over, and
    noted in `corrupt`. Where a file cannot be opened for lack of descriptors its frames are not
    missing: reading them raises that `OSError`, and may be tried again.

    Args:
        directory: of the log.
        store: where the files are; for tests. Default: `FileStore(directory)`.

    Attributes:
        session: the session of the log's own streams, or None where that is not known.
        corrupt: what was found damaged so far, at most 1000 places.

    Raises:
        RecoveryError: there is no log.

    """

    def __init__(
        self, directory: "str | os.PathLike[str]", *, store: LogStore | None = None
    ) -> None:
        self._store: LogStore = FileStore(directory) if store is None else store
        self._begin(Catalog(), is_shared=False)
        self.refresh()

    @classmethod
    def of_writer(cls, store: LogStore, catalog: Catalog) -> "LogReader":
        """Return a reader that sees what the writer of this process appends."""
        reader = cls.__new__(cls)
        reader._store = store
        reader._begin(catalog, is_shared=True)
        return reader

    def _begin(self, catalog: Catalog, *, is_shared: bool) -> None:
        self._catalog = catalog
        self._is_shared = is_shared
        self._files: OrderedDict[int, LogFile] = OrderedDict()
        self._used: set[int] = set()
        self._indexes: OrderedDict[int, SegmentIndex] = OrderedDict()
        self.corrupt: dict[tuple[str, int], Finding] = {}

    @property
    def session(self) -> int | None:
        """The session of the log's own streams, or None."""
        segments = self._catalog.segments
        return next((one.session for one in reversed(segments) if one.size), None)

    def streams(self) -> list[StreamSummary]:
        """Return the streams of which anything is kept."""
        summaries = (self._catalog.summary(key) for key in self._catalog.all_streams())
        return [summary for summary in summaries if summary is not None]

    def skips(self, session: int, topic: str) -> list[tuple[int, int]]:
        """Return the ranges of `topic` that were skipped after crashes of the system."""
        return self._catalog.skips((session, topic))

    def waiting(self) -> list[TailContent]:
        """Return what was accepted of each stream and is in no frame yet.

        With a publisher at work it is what it gathers just now. Where it was killed, the next one
        on this log appends it.
        """
        try:
            found = list(read_slots(self._store))
        except ValueError:
            return []  # it changes while it is read, or is damaged, which `verify` reports
        stops = {key: self._catalog.next(key) or 0 for key in self._catalog.all_streams()}
        return [one for one in found if one.first >= stops.get((one.session, one.topic), 0)]

    def find_cut(self) -> Finding | None:
        """Do as `refresh`, and return where the log ends before what was written, or None."""
        head = known_head(self._store)  # before anything else: a writer goes on
        self.refresh()
        segments = self._catalog.segments
        last = segments[-1] if segments else None
        path = self._store.path("" if last is None else last.name)
        if any(damaged == path for damaged, _ in self.corrupt):
            return None  # whether the rest was cut, too, cannot be known
        cut = None if head is None else check_end(self._store, last, head.end)
        return None if cut is None else cut[0]

    def frames(self, session: int, topic: str, start: int, stop: int, bytes_max: int) -> list[Kept]:
        """Return frames of `topic` from `start` up to, without, `stop`, in order.

        They have `bytes_max` bytes in all at most; the first is given even where it alone is
        larger. What is not kept any more, or damaged, is left out: a frame may begin after `start`.
        """
        total = 0
        result: list[Kept] = []
        for kept in self.follow(session, topic, start) if start < stop else ():
            total += len(kept.frame)
            if kept.start >= stop or (result and total > bytes_max):
                break
            result.append(kept)
            if kept.stop >= stop or total >= bytes_max:
                break
        return result

    def follow(self, session: int, topic: str, start: int, *, copy: bool = True) -> Iterator[Kept]:
        """Yield the frames of `topic` from the one that has `start` on, in order.

        It reads ahead by half a megabyte, and ends where the log did at that time. Without `copy` a
        frame is a view of what was read, all of which stays in memory for as long as the view does.
        """
        key = (session, topic)
        segments = self._catalog.from_sequence(key, start)
        for kept in self._frames_of(key, segments, lambda e: e.offset_of_sequence(start), copy):
            if kept.stop > start:
                yield kept

    def first_at_or_after(self, session: int, topic: str, timestamp_ns: int) -> Kept | None:
        """Return the first kept frame of `topic` that ends at `timestamp_ns` or later."""
        key = (session, topic)
        segments = self._catalog.from_time(key, timestamp_ns)
        frames = self._frames_of(key, segments, lambda e: e.offset_of_time(timestamp_ns), True)
        return next((kept for kept in frames if kept.timestamp_ns_max >= timestamp_ns), None)

    def records(self, *, parts: Mapping[Key, tuple[int, int]] | None = None) -> Iterator[Record]:
        """Yield all frames in the order in which they were appended.

        `parts` are the sequences that the caller looks at, by (session, topic): segments that have
        none of them are passed over. Default: all.
        """
        for segment in self._catalog.segments:
            if parts is not None and not _has_any(segment, parts):
                continue
            by_number = segment.by_number
            for placed in self._walk(segment, SEGMENT_HEADER.size, None):
                stream = by_number.get(placed.stream)
                if placed.kind != KIND_DATA or stream is None:
                    continue
                yield Record(
                    stream.session, stream.topic, placed.start, placed.start + placed.messages,
                    bytes(placed.payload), placed.appended_ns, placed.timestamp_ns_max,
                )  # fmt: skip

    def refresh(self) -> None:
        """See what another process has written, and deleted, since the last time.

        The reader of a writer's own process need not call it.

        Raises:
            RecoveryError: there is no log any more.

        """
        if self._is_shared:
            return
        _, numbers = list_log(self._store)
        for gone in self._catalog.segments:
            if gone.first_record not in numbers:
                self._catalog.drop(gone)
                self._close_file(gone.first_record)
        known = {segment.first_record: segment for segment in self._catalog.segments}
        for number in numbers:
            segment = known.get(number)
            try:
                if segment is None:
                    self._add(number, is_last=number == numbers[-1])
                elif not segment.is_closed:
                    self._scan(segment, is_last=number == numbers[-1])
            except FileNotFoundError:
                pass  # retention was faster

    def close_idle(self) -> None:
        """Let retention delete the segments that were not read since the last call."""
        for number in [number for number in self._files if number not in self._used]:
            self._close_file(number)
        self._used.clear()

    def close(self) -> None:
        """Close all files."""
        for number in list(self._files):
            self._close_file(number)

    def _add(self, number: int, *, is_last: bool) -> None:
        loaded = load(self._store, number, by_index=not is_last)
        if loaded.wrong is not None:
            self._on_corrupt(loaded.wrong)
        if loaded.scan is not None:
            self._on_scanned(loaded.scan, is_last=is_last)
        loaded.segment.is_closed = not is_last
        self._catalog.add(loaded.segment)

    def _scan(self, segment: SegmentIndex, *, is_last: bool) -> None:
        known = set(segment.streams)
        self._on_scanned(scan(self._store, segment), is_last=is_last)
        for key in segment.streams:
            if key not in known:
                self._catalog.on_stream(key, segment)
        segment.is_closed = not is_last

    def _on_scanned(self, result: Scan, *, is_last: bool) -> None:
        """Note what is damaged; the writer may be about to write the end, or the header."""
        is_header = not result.segment.size and not result.is_torn
        for finding in result.findings:
            if not is_last or finding.offset < result.segment.size or is_header:
                self._on_corrupt(finding)

    def _entries(self, segment: SegmentIndex, key: Key) -> Entries | None:
        """Return a stream's entries of a segment; None where nothing is there."""
        stream = segment.streams[key]
        if not stream.frames:
            return None
        entries = stream.entries  # the writer may drop it at any time
        if entries is not None:
            return entries
        number = segment.first_record
        index = self._indexes.get(number)
        if index is None:
            index = self._indexes[number] = self._load_index(segment)
            while len(self._indexes) > INDEXES_MAX:
                self._indexes.popitem(last=False)
        self._indexes.move_to_end(number)
        loaded = index.streams.get(key)
        return loaded.entries if loaded is not None and loaded.frames else None

    def _load_index(self, segment: SegmentIndex) -> SegmentIndex:
        try:
            return load(self._store, segment.first_record, with_entries=True).segment
        except OSError as error:
            if lacks_means(error):
                raise
            self._on_missing(segment, error)
        return SegmentIndex(segment.first_record)

    def _frames_of(
        self,
        key: Key,
        segments: list[SegmentIndex],
        offset_of: Callable[[Entries], int],
        copy: bool,
    ) -> Iterator[Kept]:
        """Yield a stream's frames in these segments, from where its entries say."""
        for segment in segments:
            entries = self._entries(segment, key)
            if entries is None:
                continue
            for placed in self._walk(segment, offset_of(entries), segment.streams[key].number):
                if placed.kind == KIND_DATA:
                    frame = bytes(placed.payload) if copy else placed.payload
                    stop = placed.start + placed.messages
                    yield Kept(placed.start, stop, frame, placed.timestamp_ns_max)

    def _walk(self, segment: SegmentIndex, at: int, stream: int | None) -> Iterator[Placed]:
        # The file is looked up each time: it may be closed while the caller thinks.
        read: Read = lambda count, offset: self._file(segment).read(count, offset)  # noqa: E731
        walk = Walk(read, at, segment.size, stream)
        try:
            self._file(segment)  # notes one that is missing, even where nothing is to be read
            yield from walk
        except OSError as error:
            if lacks_means(error):
                raise
            self._on_missing(segment, error)
        finally:  # also where the caller has enough
            path = self._store.path(segment.name)
            for offset, _, what in walk.damage:
                self._on_corrupt(Finding(path, offset, what))
            if walk.is_torn:
                self._on_corrupt(Finding(path, walk.end_valid, "the file is shorter than it was"))

    def _file(self, segment: SegmentIndex) -> LogFile:
        number = segment.first_record
        file = self._files.get(number)
        if file is None:
            file = self._store.open(segment.name)
            file.share()
            self._files[number] = file
            while len(self._files) > FILES_MAX:
                self._close_file(next(iter(self._files)))
        self._files.move_to_end(number)
        self._used.add(number)
        return file

    def _close_file(self, number: int) -> None:
        file = self._files.pop(number, None)
        self._indexes.pop(number, None)
        if file is not None:
            file.close()

    def _on_missing(self, segment: SegmentIndex, error: OSError) -> None:
        if segment.is_leaving:
            return  # retention was faster
        what = f"it cannot be read: {error.strerror or error}"
        self._on_corrupt(Finding(self._store.path(segment.name), 0, what))

    def _on_corrupt(self, finding: Finding) -> None:
        if len(self.corrupt) < CORRUPT_MAX:
            self.corrupt.setdefault((finding.path, finding.offset), finding)


def _has_any(segment: SegmentIndex, parts: Mapping[Key, tuple[int, int]]) -> bool:
    """Whether a segment has something of these ranges."""
    for key, (start, stop) in parts.items():
        stream = segment.streams.get(key)
        if stream is not None and stream.frames and stream.start < stop and start < stream.stop:
            return True
    return False
