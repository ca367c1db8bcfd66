"""Writing a log: frames in, segments out."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace

from recovery.checks import NS_PER_S
from recovery.errors import LogWriteError
from recovery.log import opening
from recovery.log.config import LogConfig
from recovery.log.format import (
    HEAD_BYTES,
    KIND_DATA,
    KIND_STREAM,
    PAYLOAD_MAX,
    SEGMENT_HEADER,
    pack_head,
    pack_segment_header,
    pack_stream,
)
from recovery.log.index import INDEX_BYTES, Key, SegmentIndex, StreamIndex, encode_index, index_name
from recovery.log.reader import LogReader
from recovery.log.store import FileStore, LogFile, LogStore
from recovery.log.sync import PendingSync, Syncs, find_settled, find_surplus
from recovery.log.tail import NAME as TAIL
from recovery.log.tail import State, Tail, TailContent, write_tail

Payload = bytes | memoryview
_UNLIMITED = 2**63 - 1
_AHEAD = 4
"""Syncs that a mark lasts for, at a stream's present rate; it is renewed when half are over."""


class LogWriter:
    """The one writer of a log; not thread-safe, but see `begin_sync`.

    Args:
        config: where it is, and how it is kept.
        session: of the log's own streams, where the log is new; one that exists goes on in its own.
        now_ns: wall-clock time in ns since the epoch.
        store: where the files are; for tests. Default: `FileStore(config.directory)`.
        slot_bytes: how many bytes of a stream's messages, of values and of columns each, may be in
            the tail file before they are appended. Default 0: none.
        make_lock: makes a lock, for a `wait` that runs in another thread. Default: none, for one
            thread.
        goes_on: whether messages are to be appended. Without, a copy of another directory stays one
            for the next one that opens it. Default True.
        bytes_lost: how much of the log is known to be gone. Default 0.

    Attributes:
        session: the session of the log's own streams.
        opened: what opening it found.

    Raises:
        LogLockedError: another writer has it.
        LogFormatError: a file is foreign, or of another version.
        LogWriteError: the directory cannot be made, or written.

    """

    def __init__(
        self,
        config: LogConfig,
        *,
        session: int,
        now_ns: int,
        store: LogStore | None = None,
        slot_bytes: int = 0,
        goes_on: bool = True,
        bytes_lost: int = 0,
        make_lock: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._config = config
        self._slot_bytes = 0 if config.is_synced else slot_bytes
        self._store: LogStore = FileStore(config.directory) if store is None else store
        self._file: LogFile | None = None
        self._low: dict[Key, int] = {}
        self._is_abandoned = self._is_closed = self._must_cut = False
        self._segment_bytes = config.segment_bytes
        self._tail: Tail | None = None
        try:
            self._store.lock()
            try:
                found = opening.open_log(
                    self._store, config, session, goes_on=goes_on, bytes_lost=bytes_lost
                )
                self._syncs = Syncs(self._store, found.catalog, str(config.directory), make_lock())
                self._begin(found, now_ns, goes_on=goes_on)
            except BaseException:
                self._store.unlock()
                raise
        except LogWriteError:
            raise
        except OSError as error:
            raise LogWriteError(f"the log {config.directory} cannot be opened", error) from error

    def _begin(self, found: opening.OpenedLog, now_ns: int, *, goes_on: bool) -> None:
        self.session, self._floor, self.opened = found.session, found.floor, found.report
        self._catalog, self._next, self._left = found.catalog, found.next, found.left
        self._gathered_max = found.gathered_max
        self._stays_copy = found.report.copied and not goes_on
        for segment in self._catalog.segments:
            segment.synced = segment.size
        self._segment: SegmentIndex | None = None
        if self._catalog.segments:
            self._go_on_in(self._catalog.segments[-1])
        elif goes_on and not found.is_new_start:
            self.begin_tail()  # before the first segment: one without it is taken for damaged
        if found.is_new_start:
            segment = self._roll()
            for _, topic, start, stop in self.opened.skipped:
                key, following = (self.session, topic), self._next[self.session, topic]
                if key not in segment.streams:
                    self._note(segment, key, following, following, following + opening.RESERVE)
                self._note(segment, key, stop, start)
        if not self.opened.clean:
            # What a process left that died may not be on the disk: from now on it may be sent.
            for segment in self._catalog.segments:
                self._syncs.on_written(segment)
            self.sync()
        for key in self._next:
            if (part := self._catalog.last(key)) is not None:
                part.limit, part.seen = part.mark, part.stop
        if self._tail is None and goes_on and not self._left:
            self.begin_tail()
        self.sync(now_ns)

    def _go_on_in(self, segment: SegmentIndex) -> None:
        self._segment, self._file = segment, self._store.open(segment.name, create=True)
        self._syncs.on_begun(segment, self._file)
        if not segment.size:
            self._write_header(self._file, segment)

    @property
    def bytes(self) -> int:
        """The size of all segments."""
        return sum(segment.size for segment in self._catalog.segments)

    @property
    def unsynced_bytes(self) -> int:
        """What is not known to be on the disk."""
        return self._syncs.unsynced_bytes

    def next(self, session: int, topic: str) -> int:
        """Return the sequence that a stream goes on with; 0, or above what a crash may have taken.

        It is known for all streams of the log's own session, whatever retention has deleted.
        """
        following = self._next.get((session, topic))
        if following is not None:
            return following
        return self._floor if session == self.session else 0

    def earliest(self, session: int, topic: str) -> int | None:
        """Return the first sequence kept of a stream, or None."""
        return self._catalog.earliest((session, topic))

    def streams(self) -> list[tuple[int, str]]:
        """Return (session, topic) of all streams that are known."""
        return list(self._next)

    def skips(self, session: int, topic: str) -> list[tuple[int, int]]:
        """Return the ranges of a stream that were skipped after crashes of the system.

        Of a stream that the log does not know all below `floor` is: it may have begun and be gone.
        """
        if session == self.session and self._floor and (session, topic) not in self._next:
            return [(0, self._floor)]
        return self._catalog.skips((session, topic))

    @property
    def floor(self) -> int:
        """The sequence that new streams of the log's own session begin with; 0 without a crash."""
        return self._floor

    def append(
        self,
        session: int,
        topic: str,
        start: int,
        count: int,
        frame: Payload,
        *,
        timestamp_ns_max: int,
        now_ns: int,
    ) -> None:
        """Write a frame; it may be sent when this returns, or with `fsync="always"` after a sync.

        Where the log is too large, since no sync has kept up, it makes one.

        An error, or an interrupt, leaves the log as it was, and the call may be repeated. `start`
        is the sequence of the first message, not below `next(session, topic)`; `timestamp_ns_max`
        is the newest of their timestamps, and `now_ns` wall-clock time, in ns since the epoch.

        Raises:
            ValueError: the sequences go back, or the frame is empty or above 4 GiB.
            LogWriteError: the disk is full, or the directory is gone.

        """
        key = (session, topic)
        if count < 1 or start < self._next.get(key, 0) or len(frame) > PAYLOAD_MAX:
            self._refuse(key, start, count, frame)
        segment = self._segment
        size = HEAD_BYTES + len(frame)
        if segment is None or segment.size + size > self._segment_bytes:
            segment = self._roll()
            if self.bytes > self._config.retention_bytes + self._segment_bytes:
                self._shorten(now_ns)
        stream = segment.streams.get(key)
        stop = start + count
        if stream is None or not stream.frames:
            stream = self._name(segment, key, start)
        if stop > stream.limit:
            self._reserve(segment, stream, stop)
        at = segment.size
        number = stream.number
        head = pack_head(at, KIND_DATA, frame, number, count, start, now_ns, timestamp_ns_max)
        self._write(segment, (head, frame), at)
        entries = stream.entries
        assert entries is not None
        if not stream.frames or at - entries.offsets[-1] >= INDEX_BYTES:
            entries.add(at, start, stream.timestamp_ns_max)
        # From here on no call: an interrupt comes before it all, and the next write cuts off what
        # was written, or after it. It is what StreamIndex.note does.
        if not stream.frames:
            stream.start, stream.appended_ns_first = start, now_ns
        stream.stop = stop
        stream.messages += count
        stream.bytes += size
        if timestamp_ns_max > stream.timestamp_ns_max:
            stream.timestamp_ns_max = timestamp_ns_max
        if timestamp_ns_max < stream.timestamp_ns_min:
            stream.timestamp_ns_min = timestamp_ns_max
        if now_ns > stream.appended_ns_last:
            stream.appended_ns_last = now_ns
        stream.frames += 1
        segment.records += 1
        segment.size = at + size
        self._must_cut = False
        self._next[key] = stop
        if self._tail is not None:
            self._tail.on_end(segment.first_record, segment.size)

    def accepted(self) -> list[TailContent]:
        """Return what a process that was killed had accepted, and had in no frame yet.

        It stays there until `begin_tail`: what is to be kept of it is appended before.
        """
        return self._left

    def skip_accepted(self, topic: str) -> None:
        """Skip all that a killed process may have accepted of a stream, and had in no frame yet.

        For what `accepted` returned and cannot be read. Raises `LogWriteError`.
        """
        key = (self.session, topic)
        start = self.next(*key)
        stop = start + self._gathered_max
        self._note(self._segment or self._roll(), key, stop, start)
        self._next[key] = stop
        skipped = (*self.opened.skipped, (self.session, topic, start, stop))
        self.opened = replace(self.opened, skipped=skipped)

    def begin_tail(self) -> Tail:
        """Return the tail file, which has nothing of a former process from now on.

        It was begun when the log was opened, unless there is something in `accepted`.

        Raises:
            LogWriteError: the disk is full, or the directory is gone.

        """
        if self._tail is not None:
            return self._tail
        state = State.SYNCED if self._config.is_synced else State.OPEN
        with self._writing(TAIL):
            self._tail = Tail(self._store, self._slot_bytes, self.session, state)
        self._left = []
        if self._segment is not None:
            self._tail.on_end(self._segment.first_record, self._segment.size)
        return self._tail

    def begin_sync(self, now_ns: int | None = None) -> PendingSync:
        """Begin to force everything to the disk, and to apply retention: `wait`, then `end_sync`.

        Only `wait` takes time, and it alone may run while other methods are called.

        Args:
            now_ns: wall-clock time in ns since the epoch, by which segments are begun and deleted
                that are old. Default None: nothing is deleted.

        Raises:
            LogWriteError: an fsync has failed before.

        """
        self._syncs.end_former()
        surplus, trouble = [], None
        if now_ns is not None:
            try:
                if self._is_aged(now_ns):
                    self._roll()  # so that retention can delete this one
            except LogWriteError as error:
                trouble = error  # deleting may give it the space
            surplus = self._surplus(now_ns)
        return self._begin_sync(surplus, trouble)

    def is_due(self, now_ns: int) -> bool:
        """Whether retention has something to do; see `begin_sync`."""
        return self._is_aged(now_ns) or bool(self._surplus(now_ns))

    def _is_aged(self, now_ns: int) -> bool:
        first_ns = None if self._segment is None else self._segment.appended_ns_first
        age_ns = self._config.roll_age_ns
        return first_ns is not None and age_ns is not None and now_ns - first_ns >= age_ns

    def _surplus(self, now_ns: int) -> list[SegmentIndex]:
        segments, age_s = self._catalog.segments, self._config.retention_age
        if self._low:
            return find_settled(segments, self._low)
        before_ns = float("-inf") if age_s is None else now_ns - age_s * NS_PER_S
        return find_surplus(segments, self._config.retention_bytes, before_ns)

    def _begin_sync(
        self, surplus: list[SegmentIndex], trouble: LogWriteError | None = None
    ) -> PendingSync:
        segment, marks = self._segment, []
        if not self._is_abandoned and not self._is_closed:
            failure = self._carry(surplus)
            if failure is not None:
                surplus, trouble = [], trouble or failure
            with suppress(LogWriteError):  # `append` does it as soon as it must, or says why not
                marks = [] if segment is None else self._renew(segment)
        return self._syncs.begin(segment, marks, [] if self._is_abandoned else surplus, trouble)

    def end_sync(self, pending: PendingSync) -> None:
        """Take the result of a sync.

        Raises:
            LogWriteError: it failed, permanently (`has_failed`); or all is on the disk, and what is
                too old could not be deleted, which is tried again the next time.

        """
        try:
            self._syncs.end(pending)
        finally:
            for segment in pending.deleted:
                for key in segment.streams:
                    if not self._catalog.of_stream(key):
                        self._next.pop(key, None)

    def sync(self, now_ns: int | None = None) -> None:
        """Force everything to the disk, and apply retention; see `begin_sync` and `end_sync`."""
        self._run(self.begin_sync(now_ns))

    def _run(self, pending: PendingSync) -> None:
        pending.wait()
        self.end_sync(pending)

    def keep_from(self, session: int, topic: str, sequence: int) -> None:
        """Keep a stream from `sequence` on, until this is called again.

        For a log that keeps what is not settled: from now on retention deletes the oldest segments
        of which nothing is kept, and nothing else, whatever size and age are. A stream of which
        this was not said is kept.
        """
        self._low[session, topic] = sequence

    def truncate(self, bytes_max: float, before_ns: float) -> None:
        """Delete what `find_surplus` finds; raises `LogWriteError`."""
        self._syncs.end_former()
        surplus = find_surplus(self._catalog.segments, bytes_max, before_ns)
        self._run(self._begin_sync(surplus))

    def _shorten(self, now_ns: int) -> None:
        """Apply retention here: its thread cannot keep up. It is tried again later."""
        try:
            self.sync(now_ns)
        except LogWriteError:
            if self.has_failed:
                raise

    def _carry(self, surplus: list[SegmentIndex]) -> LogWriteError | None:
        """Note in the newest segment where streams go on that are in no other than these."""
        leaving = set(surplus)
        try:
            for key in {key: None for segment in surplus for key in segment.streams}:
                parts, segment = self._catalog.of_stream(key), self._segment
                if key[0] == self.session and leaving.issuperset(parts[-1:]) and segment:
                    start = self.next(*key)
                    self._note(segment, key, start, start)
        except LogWriteError as error:
            return error
        return None

    def _renew(self, segment: SegmentIndex) -> list[tuple[StreamIndex, int]]:
        """Write new marks of streams that will reach theirs soon, so that `append` need not wait.

        They hold when they are on the disk.
        """
        renewed = []
        for stream in segment.streams.values():
            used = stream.stop - stream.seen
            if used:
                ahead = max(_AHEAD * used, opening.RESERVE)
                if stream.stop + ahead // 2 > stream.limit:
                    self._mark(segment, stream, stream.stop + ahead)
                    renewed.append((stream, stream.mark))
                stream.seen = stream.stop
        return renewed

    def _mark(self, segment: SegmentIndex, stream: StreamIndex, mark: int) -> None:
        key = (stream.session, stream.topic)
        self._note(segment, key, stream.stop, stream.stop, mark)

    def _reserve(self, segment: SegmentIndex, stream: StreamIndex, stop: int) -> None:
        """Move a stream's mark beyond `stop`, and wait for the disk."""
        self._mark(segment, stream, stop + max(_AHEAD * (stop - stream.seen), opening.RESERVE))
        stream.seen, mark = stream.stop, stream.mark
        self.sync()
        stream.limit = max(mark, stream.limit)

    def reader(self) -> LogReader:
        """Return a reader that sees every frame as soon as it is appended."""
        return LogReader.of_writer(self._store, self._catalog)

    @property
    def has_failed(self) -> bool:
        """Whether an fsync has failed: the system may have dropped what it should have written.

        Such a log is not said to be closed cleanly, since names of its files may be missing, too.
        """
        return self._syncs.failure is not None

    def abandon(self) -> None:
        """Write no more, and let no one go on in this session: what follows is in no log."""
        self._is_abandoned = True
        self._close_files()
        if self._tail is not None and not self._is_closed:
            self._tail.give_up()

    def release(self) -> None:
        """Let another one write, and leave everything as a killed process does."""
        self._is_closed = True
        self._close_files()
        self._store.unlock()

    def close(self, *, keeps_tail: bool = False) -> None:
        """Force everything to the disk and close, so that opening it again reads no segment.

        `keeps_tail` says that messages are left in the tail that were not appended: `accepted`
        returns them when the log is opened again. No crash of the system leaves them, so the log is
        not said to be closed: after one their sequences are skipped.

        Raises:
            LogWriteError: not everything could be written; it is closed all the same.

        """
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if not self._is_abandoned and not self.has_failed:
                if self._segment_bytes < 0:
                    self._roll()  # which has failed before
                self._write_index()
                self.sync()
                if not keeps_tail and not self._left:
                    self._say_closed()
        finally:
            self._close_files()
            self._store.unlock()

    def _say_closed(self) -> None:
        last, closed = self._segment, State.CLOSED
        end = (0, 0) if last is None else (last.first_record, last.size)
        with self._writing(TAIL):
            write_tail(self._store, self.session, closed, end=end, is_copy=self._stays_copy)

    @contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        """Say which file cannot be written."""
        try:
            yield
        except LogWriteError:
            raise
        except OSError as error:
            what = f"the log {self._store.path(name)} cannot be written"
            raise LogWriteError(what, error) from error

    def _refuse(self, key: Key, start: int, count: int, frame: Payload) -> None:
        if len(frame) > PAYLOAD_MAX:
            raise ValueError(f"a frame has at most {PAYLOAD_MAX} bytes, not {len(frame)}")
        raise ValueError(
            f"a frame of {key[1]!r} needs start >= {self.next(*key)} and count >= 1, "
            f"not {start} and {count}"
        )

    def _write(self, segment: SegmentIndex, parts: tuple[Payload, ...], at: int) -> None:
        if self._file is None:
            raise LogWriteError("the log is closed", OSError(9, "it was given up"))
        try:
            if self._must_cut:
                self._cut(at)
            self._must_cut = True  # until the caller has noted it
            self._file.write(parts, at)
        except OSError as error:
            try:
                self._cut(at)
            except OSError:
                pass  # it is tried again before the next write
            what = f"the log {self._store.path(segment.name)} cannot be written"
            raise LogWriteError(what, error) from error
        self._syncs.on_written(segment)

    def _cut(self, at: int) -> None:
        """Remove what a write left that failed, or was interrupted."""
        assert self._file is not None
        self._file.truncate(at)
        self._must_cut = False

    def _roll(self) -> SegmentIndex:
        """Close the segment and begin another one."""
        old = self._segment
        first = 0 if old is None else old.stop_record
        if old is not None and not old.records:
            if (old.session, old.floor) != (self.session, self._floor) and self._file is not None:
                self._write_header(self._file, old)
            return old  # a frame larger than a segment has one of its own
        segment = SegmentIndex(first)
        self._segment_bytes = -1  # should this fail, nothing is written after the index any more
        with self._writing(segment.name):
            self._write_index()
            file = self._store.open(segment.name, create=True)
            self._write_header(file, segment)
        self._syncs.on_begun(segment, file)
        # No call, so that an interrupt comes before it all or after it: it does what Catalog.add
        # does.
        self._catalog.segments = [*self._catalog.segments, segment]
        self._file, self._segment = file, segment
        self._segment_bytes, self._must_cut = self._config.segment_bytes, False
        if old is not None:
            old.is_closed = True
            old.drop_entries()
        return segment

    def _write_header(self, file: LogFile, segment: SegmentIndex) -> None:
        segment.session, segment.floor = self.session, self._floor
        header = pack_segment_header(segment.first_record, self.session, self._floor)
        file.write((header,), 0)
        segment.size = SEGMENT_HEADER.size
        self._syncs.on_written(segment)

    def _name(self, segment: SegmentIndex, key: Key, start: int) -> StreamIndex:
        """Write which stream the next number means, unless an interrupt came after that."""
        stream = segment.streams.get(key)
        if stream is not None:
            self._catalog.on_stream(key, segment)
            return stream
        lost_from = start
        if key[0] == self.session and self._floor and self._catalog.last(key) is None:
            if start < self._floor:
                self._refuse(key, start, 1, b"")
            start, lost_from = self._floor, 0  # it may have begun before, and be gone
        return self._note(segment, key, start, lost_from)

    def _note(
        self, segment: SegmentIndex, key: Key, start: int, lost_from: int, mark: int = 0
    ) -> StreamIndex:
        """Write with which sequence a stream goes on, and that it does not reach its mark.

        From `lost_from` to `start` it has no messages any more. The mark grows to `mark`.
        """
        if self._segment_bytes < 0:
            raise LogWriteError("no segment can be begun", OSError(5, "it has failed before"))
        session, topic = key
        payload = pack_stream(session, topic)
        stream, former = segment.streams.get(key), self._catalog.last(key)
        at, number = segment.size, segment.next_number
        first = self._floor + opening.RESERVE if session == self.session else _UNLIMITED
        mark = max(mark, first if former is None else former.mark)
        if stream is None:
            made = StreamIndex(session, topic, number)
            made.limit = first if former is None else former.limit
            made.seen = start
            made.go_on(start, lost_from, mark)
        else:
            made, number = stream, stream.number
        head = pack_head(at, KIND_STREAM, payload, number, 0, start, lost_from, mark)
        size = len(head) + len(payload)
        self._write(segment, (head, payload), at)
        # No call, so that an interrupt comes before it all or after it; it is what
        # SegmentIndex.add_stream does.
        if stream is None:
            segment.next_number = number + 1
            segment.by_number[number] = segment.streams[key] = made
        segment.records += 1
        segment.size = at + size
        self._must_cut = False
        if stream is None:
            self._catalog.on_stream(key, segment)
        else:
            made.go_on(start, lost_from, mark)
        if self._tail is not None:
            self._tail.on_end(segment.first_record, segment.size)
        return made

    def _write_index(self) -> None:
        segment = self._segment
        if segment is not None:
            name = index_name(segment.first_record)
            with self._writing(name):
                if self._must_cut:
                    self._cut(segment.size)
                self._store.replace(name, encode_index(segment), durable=False)

    def _close_files(self) -> None:
        self._file = None
        self._syncs.close()
