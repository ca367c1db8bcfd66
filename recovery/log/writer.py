"""Writing a log: frames in, segments out."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace

from recovery.checks import NS_PER_S
from recovery.errors import LogWriteError, SyncFailedError
from recovery.log import state as state_file
from recovery.log.config import LogConfig
from recovery.log.expiry import PendingExpiry, find_settled, find_surplus
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
from recovery.log.opening import open_log
from recovery.log.reader import LogReader
from recovery.log.state import Reservations, StateFile
from recovery.log.store import FileStore, LogFile, LogStore
from recovery.log.sync import PageCache, Part, PendingSync
from recovery.log.tail import NAME as TAIL
from recovery.log.tail import Tail, TailContent, holds_messages, make_tail, read_slots

_FILES_MAX = 16
"""Files that are kept open until a sync closes them; it opens those of other segments."""


class LogWriter:
    """The one writer of a log; not thread-safe, but see `begin_sync`.

    Args:
        config: where it is, and how it is kept.
        session: of the log's own streams, where the log is new; one that exists goes on in its own.
        now_ns: wall-clock time in ns since the epoch.
        store: where the files are; for tests. Default: `FileStore(config.directory)`.
        gathered_max: how many sequences of a stream may be in the tail file before they are
            appended, at most. Default 0.
        make_lock: makes a lock, for a `wait` that runs in another thread. Default: none, for one
            thread.
        goes_on: whether messages are to be appended. Without, a copy of another directory stays one
            for the next one that opens it. Default True.
        is_cut: whether the newest segment is known to have been longer. Default False.

    Attributes:
        session: the session of the log's own streams.
        opened: what opening it found.
        bytes: the size of all segments.
        unsynced_bytes: what is not yet forced to the disk.

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
        gathered_max: int = 0,
        goes_on: bool = True,
        is_cut: bool = False,
        make_lock: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._config = config
        self._make_lock = make_lock
        self._gathered_max = gathered_max
        self._store: LogStore = FileStore(config.directory) if store is None else store
        self._file: LogFile | None = None
        self._files: dict[SegmentIndex, LogFile] = {}
        self._sync_guard = make_lock()
        self._syncing: PendingSync | None = None
        self._expiring: PendingExpiry | None = None
        self._low: dict[Key, int] = {}
        self.unsynced_bytes = 0
        self._dirty: list[SegmentIndex] = []
        self._names_changed = False
        self._is_abandoned = self._is_closed = self._is_failed = self._must_cut = False
        self._segment_bytes = config.segment_bytes
        self._page_cache = PageCache()
        self._tail: Tail | None = None
        try:
            self._store.lock()
            try:
                self._open(session, now_ns, goes_on=goes_on, is_cut=is_cut)
            except BaseException:
                self._store.unlock()
                raise
        except LogWriteError:
            raise
        except OSError as error:
            raise LogWriteError(f"the log {config.directory} cannot be opened", error) from error

    def _open(self, session: int, now_ns: int, *, goes_on: bool, is_cut: bool) -> None:
        self._state, self._catalog, self.opened = open_log(
            self._store, self._config, session, goes_on=goes_on, is_cut=is_cut
        )
        state, catalog = self._state, self._catalog
        self.session = state.session
        tail_max = 0 if self._config.is_synced else self._gathered_max
        always = self._config.is_synced
        if state.boot and not state.clean:
            # What the last writer left may not be on the disk: its marks hold until it is.
            always, tail_max = always and state.always, max(tail_max, state.in_tail)
            self._dirty = list(catalog.segments)
        if self._store.read(TAIL) is None:
            make_tail(self._store)  # from here on one that is missing was deleted
        self._next = {key: catalog.next(key) or 0 for key in catalog.all_streams()}
        for topic, following in state.tails.items():
            key = (self.session, topic)
            self._next[key] = max(self._next.get(key, 0), following)
        reserve = state_file.RESERVE
        self._state_file = StateFile(
            self._store, state, self._make_lock(), is_copy=self.opened.copied and not goes_on
        )
        self._state_file.change(
            clean=False, boot=self._store.boot_id(), always=always, in_tail=tail_max,
            marks={t: n + reserve for t, n in self._own_next() if n > state.floor + reserve // 2},
        )  # fmt: skip
        for segment in catalog.segments:
            segment.synced = segment.size
        self.bytes = sum(segment.size for segment in catalog.segments)
        self._reservations = Reservations(self._state_file)
        self._segment: SegmentIndex | None = catalog.segments[-1] if catalog.segments else None
        if self._segment is not None:
            self._file = self._store.open(self._segment.name, create=True)
            self._files[self._segment] = self._file
            if not self._segment.size:
                self._write_header(self._file, self._segment)
                self.bytes += self._segment.size
                self.unsynced_bytes += self._segment.size
            for stream in self._segment.streams.values():
                self._reservations.set(stream)
        if state.always and self._dirty:
            self.sync()  # what a process left that died has not been sent, and may be from now on
        self.expire(now_ns)

    def next(self, session: int, topic: str) -> int:
        """Return the sequence that a stream goes on with; 0, or above what a crash may have taken.

        It is known for all streams of the log's own session, whatever retention has deleted.
        """
        following = self._next.get((session, topic))
        if following is not None:
            return following
        return self._state.floor if session == self.session else 0

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
        if session != self.session:
            return []
        if self.floor and (session, topic) not in self._next:
            return [(0, self.floor)]
        return list(self._state.skips.get(topic, ()))

    def _own_next(self) -> Iterator[tuple[str, int]]:
        """Yield topic and next sequence of the streams of the log's own session."""
        return ((key[1], n) for key, n in self._next.items() if key[0] == self.session)

    @property
    def floor(self) -> int:
        """The sequence that new streams of the log's own session begin with; 0 without a crash."""
        return self._state.floor

    def append(
        self,
        session: int,
        topic: str,
        start: int,
        count: int,
        frame: bytes | memoryview,
        *,
        timestamp_ns_max: int,
        now_ns: int,
    ) -> None:
        """Write a frame; it may be sent when this returns, or with `fsync="always"` after a sync.

        Where the log is too large, since retention does not keep up, it waits for that.

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
            if self.bytes > self._config.retention_bytes:
                self._shorten(now_ns)
        stream = segment.streams.get(key)
        stop = start + count
        if stream is None or not stream.frames:
            stream = self._name(segment, key, start, now_ns)
        if stop > stream.mark:
            self._reservations.reserve(stream, stop)
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
        self.bytes += size
        self.unsynced_bytes += size
        if self._tail is not None:
            self._tail.on_end(segment.first_record, segment.size)

    def accepted(self) -> list[TailContent]:
        """Return what a process that was killed had accepted, and had in no frame yet.

        It stays there until `begin_tail`: what is to be kept of it is appended before.
        """
        try:
            return list(read_slots(self._store))
        except ValueError:
            return []  # of a log that was closed, and so it had none

    def skip_accepted(self, topic: str) -> None:
        """Skip all that a killed process may have accepted of a stream, and had in no frame yet.

        For what `accepted` returned and cannot be read. Raises `LogWriteError`.
        """
        key = (self.session, topic)
        start = self.next(*key)
        stop = start + self._state.in_tail
        skips = {**self._state.skips, topic: [*self.skips(*key), (start, stop)]}
        self._state_file.change(skips=skips, tails={topic: stop})
        self._next[key] = stop
        skipped = (*self.opened.skipped, (self.session, topic, start, stop))
        self.opened = replace(self.opened, skipped=skipped)

    def begin_tail(self, slot_bytes: int = 0) -> Tail:
        """Note from now on, where a killed process leaves it, how far was written.

        `slot_bytes` of a stream's messages are gathered there at most, of values and of columns
        each. Default 0: none.

        Raises:
            LogWriteError: the disk is full, or the directory is gone.

        """
        try:
            self._tail = Tail(self._store, slot_bytes)
        except OSError as error:
            what = f"the log {self._store.path(TAIL)} cannot be written"
            raise LogWriteError(what, error) from error
        if self._segment is not None:
            self._tail.on_end(self._segment.first_record, self._segment.size)
        return self._tail

    def begin_sync(self) -> PendingSync:
        """Begin to force everything to the disk; call its `wait`, then `end_sync`.

        Only `wait` takes time, and it alone may run while other methods are called.

        Raises:
            LogWriteError: one that nobody has ended has failed permanently.

        """
        self._take_sync()
        segment = self._segment
        parts = [Part(one, one.size, self._files.get(one)) for one in self._dirty]
        full = [self._files.pop(one) for one in list(self._files) if one is not segment]
        pending = PendingSync(
            self._store, parts, full, self._names_changed, self._page_cache.due(self._dirty),
            self._state_file, {} if segment is None else self._reservations.due(segment),
            self._sync_guard,
        )  # fmt: skip
        # What is appended from here on is dirty again.
        self._syncing, self._names_changed, self._dirty = pending, False, []
        return pending

    def end_sync(self, pending: PendingSync) -> None:
        """Take the result of a sync.

        Raises:
            LogWriteError: it failed, permanently.

        """
        self._syncing = None
        if self._segment is not None and pending.marks:
            self._reservations.renew(self._segment)
        error = pending.error
        for segment in pending.missing:
            if not segment.is_leaving:
                error = SyncFailedError(errno.ENOENT, os.strerror(errno.ENOENT), segment.name)
        if error is None:
            for segment, size, _ in pending.parts:
                self._on_synced(segment, size)
            return
        # The system may have thrown away what it could not write: another fsync would say that all
        # is well. So this is never said to be on the disk any more.
        self._is_failed = True
        self._put_back(pending)
        for segment, size, _ in pending.parts:
            segment.synced = max(size, segment.synced)
        if isinstance(error, LogWriteError):
            raise error
        raise LogWriteError(f"the log {self._config.directory} cannot be forced to the disk", error)

    def _on_synced(self, segment: SegmentIndex, size: int) -> None:
        """Count a segment as unsynced up to `size` no more: it is on the disk, or deleted."""
        if size > segment.synced:
            self.unsynced_bytes -= size - segment.synced
            segment.synced = size

    def _put_back(self, pending: PendingSync) -> None:
        """Take again what a sync did not bring to the disk."""
        self._names_changed |= pending.names_changed
        taken = {part.segment for part in pending.parts}
        again = [segment for segment in self._catalog.segments if segment in taken]
        self._dirty = again + [segment for segment in self._dirty if segment not in taken]

    def _take_sync(self) -> None:
        """Take again what a sync should have brought to the disk that nobody has ended."""
        former = self._syncing
        if former is not None:
            with former.guard:  # it may still run
                pass
            self._put_back(former)
            self._syncing = None
            if isinstance(former.error, SyncFailedError):
                self.end_sync(former)

    def sync(self) -> None:
        """Force everything to the disk; raises `LogWriteError`."""
        pending = self.begin_sync()
        pending.wait()
        self.end_sync(pending)

    def expire(self, now_ns: int) -> None:
        """Delete the oldest segments that retention does not keep, and begin one if it is time to.

        `now_ns` is wall-clock time in ns since the epoch.

        Raises:
            LogWriteError: nothing can be deleted, or the directory is gone.

        """
        self._expire(self.begin_expire(now_ns))

    def _expire(self, pending: PendingExpiry | None) -> None:
        if pending is not None:
            pending.wait()
            self.end_expire(pending)

    def keep_from(self, session: int, topic: str, sequence: int) -> None:
        """Keep a stream from `sequence` on, until this is called again.

        For a log that keeps what is not settled: from now on retention deletes the oldest segments
        of which nothing is kept, and nothing else, whatever size and age are. A stream of which
        this was not said is kept.
        """
        self._low[session, topic] = sequence

    def truncate(self, bytes_max: float, before_ns: float) -> None:
        """Delete what `find_surplus` finds; raises `LogWriteError`."""
        self._expire(self._begin_delete(bytes_max, before_ns))

    def _shorten(self, now_ns: int) -> None:
        """Apply retention here: its thread cannot keep up. It is tried again later."""
        with suppress(LogWriteError):
            self._expire(self._begin_delete(*self._limits(now_ns)))

    def _limits(self, now_ns: int) -> tuple[float, float]:
        age_s = self._config.retention_age
        before_ns = float("-inf") if age_s is None else now_ns - age_s * NS_PER_S
        return self._config.retention_bytes, before_ns

    def begin_expire(self, now_ns: int) -> PendingExpiry | None:
        """Begin to do as `expire`: call `wait` of what is returned, then `end_expire`.

        `wait` takes the time that deleting takes, and it alone may run while other methods are
        called. None: there is nothing to do.

        Raises:
            LogWriteError: no segment can be begun where that is due.

        """
        if self._is_abandoned:
            return None
        first_ns = None if self._segment is None else self._segment.appended_ns_first
        age_ns, failure = self._config.roll_age_ns, None
        if first_ns is not None and age_ns is not None and now_ns - first_ns >= age_ns:
            try:
                self._roll()
            except LogWriteError as error:
                failure = error
        pending = self._begin_delete(*self._limits(now_ns))
        if pending is None and failure is not None:
            raise failure  # or else deleting may give it the space
        return pending

    def _begin_delete(self, bytes_max: float, before_ns: float) -> PendingExpiry | None:
        former = self._expiring
        if former is not None:
            former.wait()  # it may still run, or nobody has ended it
            with suppress(LogWriteError):
                self.end_expire(former)  # what could not be deleted is tried again
        segments = self._catalog.segments
        if self._low:
            surplus = find_settled(segments, self._low)
        else:
            surplus = find_surplus(segments, bytes_max, before_ns)
        if not surplus:
            return None
        for segment in surplus:
            segment.is_leaving = True
        self._expiring = PendingExpiry(
            self._store, surplus, self._state_file, self._tails_of(surplus), self._make_lock()
        )
        return self._expiring

    def end_expire(self, pending: PendingExpiry) -> None:
        """Forget the segments that are deleted.

        Raises:
            LogWriteError: one could not be deleted; it is tried again the next time.

        """
        if self._expiring is not pending:
            return  # another call has taken its result
        # An interrupt may come anywhere: the next call does again what is not done.
        while pending.deleted:
            segment = pending.segments[0]
            if segment in self._catalog.segments:
                self._catalog.drop_first()
            self._forget_streams(segment)
            self._files.pop(segment, None)
            self._on_synced(segment, segment.size)
            self._dirty = [other for other in self._dirty if other is not segment]
            self._names_changed = True
            pending.deleted -= 1
            del pending.segments[0]
        for segment in pending.segments:
            segment.is_leaving = False
        self.bytes = sum(segment.size for segment in self._catalog.segments)
        self._expiring = None
        if pending.error is not None:
            what = f"the log {self._config.directory} cannot be shortened"
            raise LogWriteError(what, pending.error) from pending.error

    def _tails_of(self, surplus: list[SegmentIndex]) -> dict[str, int]:
        """Return where streams go on of which no other segments than these say it."""
        tails: dict[str, int] = {}
        for key in {key for segment in surplus for key in segment.streams}:
            if key[0] != self.session or key not in self._next:
                continue
            parts = self._catalog.of_stream(key)
            gone = [part.streams[key].stop for part in parts if part in surplus]
            if not any(part.streams[key].frames for part in parts if part not in surplus):
                tails[key[1]] = self._next[key]
            elif self._state.always and gone:
                # A crash may take the others, whose frames were not sent then, and no mark holds.
                tails[key[1]] = max(gone)
        return tails

    def _forget_streams(self, oldest: SegmentIndex) -> None:
        """Forget the streams of others, and skipped ranges before all that is kept."""
        skips = self._state.skips
        for key in oldest.streams:
            if key[0] != self.session:
                if not self._catalog.of_stream(key):
                    self._next.pop(key, None)
                continue
            earliest = self._catalog.earliest(key)
            if earliest is not None and key[1] in skips:
                skips[key[1]] = [skip for skip in skips[key[1]] if skip[1] > earliest]

    def reader(self) -> LogReader:
        """Return a reader that sees every frame as soon as it is appended."""
        return LogReader.of_writer(self._store, self._catalog, self._state)

    @property
    def has_failed(self) -> bool:
        """Whether an fsync has failed: the system may have dropped what it should have written.

        Such a log is not said to be closed cleanly, since names of its files may be missing, too.
        """
        return self._is_failed or self._state_file.has_failed

    def abandon(self) -> None:
        """Write no more, and let no one go on in this session: what follows is in no log."""
        self._is_abandoned = True
        self._close_file()
        if not self._is_closed:
            self._state_file.remove()

    def release(self) -> None:
        """Let another one write, and leave everything as a killed process does."""
        self._is_closed = True
        self._state_file.let_go()
        self._close_file()
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
            if self._is_abandoned:
                self._state_file.remove()
            elif not self.has_failed:
                self._begin_delete(float("inf"), float("-inf"))  # takes one that still runs
                if self._segment_bytes < 0:
                    self._roll()  # which has failed before
                self._write_index()
                self.sync()
                if self._tail is None:
                    keeps_tail = holds_messages(self._store)
                if keeps_tail:
                    return
                self._state_file.change(
                    end=0 if self._segment is None else self._segment.stop_record, clean=True,
                    marks=dict(self._own_next()),
                )  # fmt: skip
                if self._tail is not None:
                    self._tail.remove()
        finally:
            self._close_file()
            self._store.unlock()

    def _refuse(self, key: Key, start: int, count: int, frame: bytes | memoryview) -> None:
        if len(frame) > PAYLOAD_MAX:
            raise ValueError(f"a frame has at most {PAYLOAD_MAX} bytes, not {len(frame)}")
        raise ValueError(
            f"a frame of {key[1]!r} needs start >= {self.next(*key)} and count >= 1, "
            f"not {start} and {count}"
        )

    def _write(self, segment: SegmentIndex, parts: tuple[bytes | memoryview, ...], at: int) -> None:
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
        if not self._dirty or self._dirty[-1] is not segment:
            self._dirty.append(segment)

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
            return old  # a frame larger than a segment has one of its own
        segment = SegmentIndex(first)
        self._segment_bytes = -1  # should this fail, nothing is written after the index any more
        try:
            self._write_index()
            file = self._store.open(segment.name, create=True)
            self._write_header(file, segment)
        except LogWriteError:
            raise
        except OSError as error:
            what = f"the log {self._store.path(segment.name)} cannot be written"
            raise LogWriteError(what, error) from error
        # No call, so that an interrupt comes before it all or after it: it does what Catalog.add
        # does.
        self._catalog.segments = [*self._catalog.segments, segment]
        self._file = self._files[segment] = file
        self._segment = segment
        self._segment_bytes, self._must_cut = self._config.segment_bytes, False
        self.bytes += segment.size
        self.unsynced_bytes += segment.size
        if old is not None:
            old.is_closed = True
            old.drop_entries()
        while len(self._files) > _FILES_MAX:
            del self._files[next(iter(self._files))]  # it is closed once no sync uses it
        return segment

    def _write_header(self, file: LogFile, segment: SegmentIndex) -> None:
        file.write((pack_segment_header(segment.first_record),), 0)
        segment.size = SEGMENT_HEADER.size
        self._names_changed = True
        self._dirty.append(segment)

    def _name(self, segment: SegmentIndex, key: Key, start: int, now_ns: int) -> StreamIndex:
        """Write which stream the next number means, unless an interrupt came after that."""
        session, topic = key
        stream = segment.streams.get(key)
        if stream is not None:
            self._catalog.on_stream(key, segment)
            return stream
        if self.floor and session == self.session and key not in self._next:
            if start < self.floor:
                self._refuse(key, start, 1, b"")
            skips = {**self._state.skips, topic: [(0, self.floor)]}
            self._state_file.change(skips=skips)
        payload = pack_stream(session, topic)
        at = segment.size
        number = segment.next_number
        head = pack_head(at, KIND_STREAM, payload, number, 0, 0, now_ns, 0)
        size = len(head) + len(payload)
        stream = StreamIndex(session, topic, number)
        self._reservations.set(stream)
        stream.start = stream.stop = start
        self._write(segment, (head, payload), at)
        # No call, so that an interrupt comes before it all or after it; it is what
        # SegmentIndex.add_stream does.
        segment.next_number = number + 1
        segment.by_number[number] = segment.streams[key] = stream
        segment.records += 1
        segment.size = at + size
        self._must_cut = False
        self.bytes += size
        self.unsynced_bytes += size
        self._catalog.on_stream(key, segment)
        return stream

    def _write_index(self) -> None:
        segment = self._segment
        if segment is not None:
            name = index_name(segment.first_record)
            try:
                if self._must_cut:
                    self._cut(segment.size)
                self._store.replace(name, encode_index(segment), durable=False)
            except OSError as error:
                what = f"the log {self._store.path(name)} cannot be written"
                raise LogWriteError(what, error) from error

    def _close_file(self) -> None:
        self._file = None
        for file in self._files.values():
            file.close()
        self._files.clear()
