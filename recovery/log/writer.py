"""Writing a log: frames in, segments out."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

from recovery.errors import LogWriteError, SyncFailedError, lacks_means
from recovery.log.config import LogConfig
from recovery.log.ends import Ends, take_cut
from recovery.log.expiry import PendingExpiry, Retention, close_all
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
from recovery.log.index import Key, SegmentIndex, StreamIndex, encode_index, index_name
from recovery.log.opening import open_log, skip_tail
from recovery.log.reader import LogReader
from recovery.log.state import Reservations, StateFile, TailsUpdate
from recovery.log.store import FileStore, LogFile, LogStore
from recovery.log.sync import PageCache, PendingSync
from recovery.log.tail import NAME as TAIL
from recovery.log.tail import Tail, TailContent, holds_messages, make_tail, read_slots

_FULL_MAX = 16
"""Files of full segments that are kept open until a sync or retention closes them."""


class LogWriter:
    """The one writer of a log; not thread-safe, but see `begin_sync`.

    Args:
        config: where it is, and how it is kept.
        session: of the log's own streams, where the log is new; one that exists goes on in its own.
        now_ns: wall-clock time in ns since the epoch.
        store: where the files are; for tests. Default: `FileStore(config.directory)`.
        gathered_max: how many sequences of a stream may be given out before they are appended, at
            most. Default 0.
        make_lock: makes a lock, for a `wait` of `begin_sync` that runs in another thread. Default:
            none, for one thread.
        goes_on: whether messages are to be appended. Without, a copy of another directory stays one
            for the next one that opens it. Default True.
        is_cut: whether the newest segment is known to have been longer. Default False.

    Attributes:
        session: the session of the log's own streams.
        opened: what opening it found.
        cut: by stream of another session, the range that had been appended, and is gone from the
            end of the log.
        bytes: the size of all segments.
        unsynced_bytes: what is not yet forced to the disk.
        late_marks: why the last sync could not reserve sequences ahead, or None. `append` does it
            as soon as it must.

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
        self._store: LogStore = FileStore(config.directory, make_lock()) if store is None else store
        self._file: LogFile | None = None
        self._full: list[LogFile] = []
        """Files of full segments: closing them gives back what was reserved, which takes time."""
        self._syncing: PendingSync | None = None
        self._expiring: PendingExpiry | None = None
        self._retention = Retention(config)
        self.unsynced_bytes = 0
        self.late_marks: LogWriteError | None = None
        self._dirty: list[SegmentIndex] = []
        self._names_changed = False
        self._is_abandoned = self._is_closed = self._is_failed = self._must_cut = False
        self._segment_bytes = config.segment_bytes
        self._page_cache = PageCache(config.cache_bytes)
        self._tail: Tail | None = None
        self._left_over: list[str] = []
        """Indexes of deleted segments that could not be deleted yet."""
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
        if not state.boot or state.clean:  # a new one, or one that was closed
            state.always = self._config.is_synced
            state.reserve = self._config.reserve
            state.in_tail = 0
        else:
            # What the last writer left may not be on the disk: its marks hold until it is.
            state.always = state.always and self._config.is_synced
            state.reserve = max(state.reserve, self._config.reserve)
            self._dirty = list(catalog.segments)
        state.clean, state.boot = False, self._store.boot_id()
        # What the last one had gathered was skipped just now.
        state.gathered = self._gathered_max if self._config.acknowledge == "gathered" else 0
        if self._config.is_written:
            state.in_tail = max(state.in_tail, self._gathered_max)
        if self._store.read(TAIL) is None:
            make_tail(self._store)  # from here on one that is missing was deleted
        self._next = {key: catalog.next(key) or 0 for key in catalog.all_streams()}
        for topic, following in state.tails.items():
            key = (self.session, topic)
            self._next[key] = max(self._next.get(key, 0), following)
        half, reserve = state.floor + state.reserve // 2, state.reserve
        state.marks = {t: n + reserve for t, n in self._own_next() if n > half}
        self._state_file = StateFile(self._store, state, self._make_lock())
        self._state_file.write()
        for segment in catalog.segments:
            segment.synced = segment.size
        self.bytes = sum(segment.size for segment in catalog.segments)
        self._ends = Ends(self._store)
        self.cut = take_cut(self._ends, catalog, self._next)
        self._reservations = Reservations(self._state_file, self._config.reserve)
        self._segment: SegmentIndex | None = catalog.segments[-1] if catalog.segments else None
        if self._segment is not None:
            self._file = self._store.open(self._segment.name, create=True)
            if not self._segment.size:
                self._write_header(self._file, self._segment)
                self.bytes += self._segment.size
                self.unsynced_bytes += self._segment.size
            if self._segment.is_closed:
                self._segment_bytes = -1
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

    def end_of(self, session: int, topic: str, start: int) -> memoryview | None:
        """Return where to store, at 0, the sequence after the last one received of a stream.

        For streams of other sessions, which begin at `start` if nothing was appended yet. It
        survives the death of the process, and opening the log compares it with what the segments
        have: see `cut`. None: it cannot be noted now.
        """
        key = (session, topic)
        cell = self._ends.cell(key)
        if cell is not None and not cell[0]:
            segment = 0 if self._segment is None else self._segment.first_record
            self._ends.begin(key, segment, start)
        return cell

    def forget_end(self, session: int, topic: str) -> None:
        """Note no more how far a stream was; nothing is stored to its cell any more."""
        self._ends.forget((session, topic))

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
        if not stream.frames or at - entries.offsets[-1] >= self._config.index_bytes:
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
            self._tail.note_end(segment.first_record, segment.size)

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
        self._state.skips[topic] = self.skips(*key)
        self.opened = skip_tail(self._state, self.opened, topic, self.next(*key))
        self._next[key] = self._state.tails[topic]
        self._state_file.write()

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
            self._tail.note_end(self._segment.first_record, self._segment.size)
        return self._tail

    def begin_sync(self) -> PendingSync:
        """Begin to force everything to the disk; call its `wait`, then `end_sync`.

        Only `wait` takes time, and it alone may run while other methods are called.
        """
        self.late_marks = None
        former, segment = self._take_sync(), self._segment
        renewal = None if segment is None else self._reservations.begin_renewal(segment)
        parts = [(segment, segment.size) for segment in self._dirty]
        unneeded = self._page_cache.due(self._dirty)
        pending = PendingSync(
            self._store, parts, self._names_changed, unneeded, renewal, self._full, former
        )
        # What is appended from here on is dirty again.
        self._syncing, self._full, self._names_changed, self._dirty = pending, [], False, []
        return pending

    def end_sync(self, pending: PendingSync) -> None:
        """Take the result of a sync.

        Raises:
            LogWriteError: it failed; unless `is_final`, the next one takes what this one should.

        """
        self._syncing = None
        renewal = pending.renewal
        if renewal is not None:
            self._reservations.end_renewal(renewal, self._segment)
            if renewal.error is not None and renewal.error.is_final:
                self._put_back(pending)
                raise renewal.error
            self.late_marks = renewal.error  # what was appended goes to the disk all the same
        error = pending.error or self._missing(pending)
        if error is None:
            for segment, size in pending.parts:
                self._note_synced(segment, size)
            return
        if not isinstance(error, SyncFailedError):
            self._put_back(pending)
            raise LogWriteError("the log cannot be forced to the disk now", error)
        # The system may have thrown away what it could not write: another fsync would say that all
        # is well. So this is never said to be on the disk any more.
        self._is_failed = True
        for segment, size in pending.parts:
            segment.synced = max(size, segment.synced)
        self._put_back(pending)
        raise LogWriteError("the log cannot be forced to the disk", error)

    def _note_synced(self, segment: SegmentIndex, size: int) -> None:
        """Count a segment as unsynced up to `size` no more: it is on the disk, or deleted."""
        if size > segment.synced:
            self.unsynced_bytes -= size - segment.synced
            segment.synced = size

    def _missing(self, pending: PendingSync) -> OSError | None:
        """Return an error where a file was not there that retention has not deleted."""
        for segment in self._catalog.segments if pending.missing else ():
            error = pending.missing.get(segment.name)
            if error is not None and not segment.is_leaving:
                if isinstance(error, SyncFailedError) and segment is pending.parts[-1][0]:
                    return error
                path = self._store.path(segment.name)
                return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return None

    def _put_back(self, pending: PendingSync) -> None:
        """Take again what a sync did not bring to the disk."""
        self._names_changed |= pending.names_changed
        taken = {segment.first_record for segment, _ in pending.parts}
        again = [one for one in self._catalog.segments if one.first_record in taken]
        self._dirty = again + [segment for segment in self._dirty if segment not in again]

    def sync(self) -> None:
        """Force everything to the disk; raises `LogWriteError`."""
        pending = self.begin_sync()
        pending.wait()
        self.end_sync(pending)

    def expire(self, now_ns: int) -> None:
        """Delete the oldest segments that retention does not keep, and begin one if it is time to.

        Raises:
            LogWriteError: nothing can be deleted, or the directory is gone.

        """
        pending = self.begin_expire(now_ns)
        if pending is not None:
            pending.wait()
            self.end_expire(pending)

    @property
    def has_full(self) -> bool:
        """Whether files of full segments wait to be closed, by a sync or by retention."""
        return bool(self._full)

    @property
    def ahead_ns(self) -> int | None:
        """See `Retention`."""
        return self._retention.ahead_ns

    def begin_expire(self, now_ns: int, steady_ns: int | None = None) -> PendingExpiry | None:
        """Begin to do as `expire`: call `wait` of what is returned, then `end_expire`.

        `steady_ns` is the monotonic clock, so that what is appended while the wall clock is wrong
        is deleted, too. Default: it is not looked at.

        `wait` takes the time that deleting takes, and it alone may run while other methods are
        called, but those of a sync. None: there is nothing to do.

        Raises:
            LogWriteError: no segment can be begun where that is due.

        """
        if self._is_abandoned:
            return None
        self._take_expiry()
        if steady_ns is not None:
            self._retention.note_time(self._catalog.segments, now_ns, steady_ns)
        if self._retention.is_roll_due(self._segment, now_ns):
            try:
                self._roll()
            except LogWriteError:
                if not self._surplus(now_ns):
                    raise  # or else deleting them may give it the space
        surplus = self._surplus(now_ns)
        if not (surplus or self._left_over or self._full):
            return None
        pending = self._leave(surplus, self._tails_of(surplus), self._full)
        self._full = []
        return pending

    def _leave(
        self, surplus: list[SegmentIndex], tails: dict[str, int], written: list[LogFile]
    ) -> PendingExpiry:
        """Begin to delete segments, and to close files."""
        update = TailsUpdate(self._state_file, tails) if tails else None
        for oldest in surplus:
            oldest.is_leaving = True
        pending = PendingExpiry(
            self._store, surplus, self._left_over, update, written, self._make_lock()
        )
        self._expiring, self._left_over = pending, []
        return pending

    def shorten(self, now_ns: int, *, waits: bool = True) -> bool:
        """Apply retention now, also while the `wait` of a sync or of `begin_expire` is running.

        For a caller of `append` that fills the log faster than they come to their end, or finds no
        space. One that a reader holds stays. No new segment is begun, whatever its age. No signal
        handler must raise meanwhile.

        Args:
            now_ns: wall-clock time in ns since the epoch.
            waits: whether it may wait for the disk. Otherwise it deletes one segment at most, and
                only one that needs no new state on the disk before. Default True.

        Returns:
            Whether any space was given back.

        Raises:
            LogWriteError: nothing can be deleted.

        """
        if self._is_abandoned or self._is_closed:
            return False
        before, syncing, former = self.bytes, self._syncing, self._expiring
        if former is not None and not former.is_over:
            if waits and syncing is None:
                former.wait()
            elif not waits:
                while former.delete_next() and former.deleted == former.taken:
                    pass  # only indexes are left
                self._forget_deleted(former)
                if not former.is_over:
                    return self.bytes < before
        self._take_expiry()
        surplus = self._surplus(now_ns)
        tails = self._tails_of(surplus if waits else surplus[:1])
        if not waits:
            surplus = [] if tails else surplus[:1]
        elif tails and syncing is not None:
            self._state_file.supersede()  # what the sync writes, or has written, knows them not
        written = self._full if waits else self._full[: len(surplus)]
        self._full = self._full[len(written) :]
        had_full = bool(written)
        if syncing is not None and waits:
            close_all(syncing.written)
        if surplus or had_full:
            pending = self._leave(surplus, tails, written)
            pending.wait()
            self.end_expire(pending)
        return had_full or self.bytes < before

    def end_expire(self, pending: PendingExpiry) -> None:
        """Forget the segments that are deleted.

        Raises:
            LogWriteError: one could not be deleted; it is tried again the next time.

        """
        if self._expiring is pending:  # else another call has taken its result
            self._expiring = None
            if pending.tails is not None:
                pending.tails.end()
            self._forget_deleted(pending)
            for segment in pending.segments[pending.taken :]:
                segment.is_leaving = False
            self._left_over += pending.indexes
        pending.check(self._config.directory)

    def _forget_deleted(self, pending: PendingExpiry) -> None:
        while pending.taken < pending.deleted:
            oldest = pending.segments[pending.taken]
            pending.taken += 1
            self._catalog.drop_first()
            self._forget_streams(oldest)
            self.bytes -= oldest.size
            self._note_synced(oldest, oldest.size)
            self._dirty = [other for other in self._dirty if other is not oldest]
            self._names_changed = True

    def _surplus(self, now_ns: int) -> list[SegmentIndex]:
        return self._retention.surplus(self._catalog.segments, self.bytes, now_ns)

    def _tails_of(self, surplus: list[SegmentIndex]) -> dict[str, int]:
        """Return where streams go on of which no other segments than these say it."""
        tails: dict[str, int] = {}
        for at, oldest in enumerate(surplus):
            for key, stream in oldest.streams.items():
                if key[0] != self.session:
                    continue
                # Those that are deleted before it say nothing either when it is.
                others = (o for o in self._catalog.of_stream(key) if o not in surplus[: at + 1])
                following = self._next.get(key, 0)
                if any(other.streams[key].frames for other in others):
                    if not self._state.always:
                        continue  # should a crash take them all, the marks hold
                    following = stream.stop
                if max(self._state.tails.get(key[1], 0), tails.get(key[1], 0)) < following:
                    tails[key[1]] = following
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

    def close(self, now_ns: int, *, keeps_tail: bool = False) -> None:
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
                self._take_expiry()
                self._take_sync()
                if self._segment_bytes < 0:
                    self._roll()  # which has failed before
                self._write_index()
                self.sync()
                if self._tail is None:
                    keeps_tail = holds_messages(self._store)
                if keeps_tail:
                    return
                self._state.end = 0 if self._segment is None else self._segment.stop_record
                self._state.clean = True
                self._state.marks, self._state.reserve = dict(self._own_next()), 0
                self._state_file.write()
                if self._tail is not None:
                    self._tail.remove()
        finally:
            self._close_file()
            self._store.unlock()

    def _take_expiry(self) -> None:
        """Take the result of one that nobody has ended; what it has not deleted is begun again."""
        former = self._expiring
        if former is None:
            return
        try:
            self.end_expire(former)
        except LogWriteError:
            pass  # it is tried again

    def _take_sync(self) -> PendingSync | None:
        """Take the result of a sync that nobody has ended; return it where it may still run.

        Raises:
            LogWriteError: it failed.

        """
        former = self._syncing
        if former is not None and former.is_over:
            self.end_sync(former)
        elif former is not None:
            self._syncing = None
            self._put_back(former)
            return former
        return None

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
        file: LogFile | None = None
        self._segment_bytes = -1  # should this fail, nothing is written after the index any more
        try:
            self._write_index()
            file = self._store.open(segment.name, create=True)
            self._write_header(file, segment)
        except OSError as error:
            if file is not None:
                file.close()
            if old is not None and lacks_means(error):
                close_all(self._full)
                # The former one goes on, and becomes larger than it should be.
                self._segment_bytes = old.size + self._config.segment_bytes // 8
                return old
            if isinstance(error, LogWriteError):
                raise
            what = f"the log {self._store.path(segment.name)} cannot be written"
            raise LogWriteError(what, error) from error
        # No call, so that an interrupt comes before it all or after it: it does what Catalog.add
        # does.
        self._catalog.segments = [*self._catalog.segments, segment]
        self._file, file, self._segment = file, self._file, segment
        self._segment_bytes, self._must_cut = self._config.segment_bytes, False
        self.bytes += segment.size
        self.unsynced_bytes += segment.size
        if old is not None:
            old.is_closed = True
            old.drop_entries()
        if file is not None:
            self._full.append(file)
        while len(self._full) > _FULL_MAX:
            self._full.pop(0).close()
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
            self._catalog.note_stream(key, segment)
            return stream
        if self.floor and session == self.session and key not in self._next:
            if start < self.floor:
                self._refuse(key, start, 1, b"")
            self._state.skips[topic] = [(0, self.floor)]
            self._state_file.write()
        payload = pack_stream(session, topic)
        at = segment.size
        number = segment.next_number
        head = pack_head(at, KIND_STREAM, payload, number, 0, 0, now_ns, 0)
        size = len(head) + len(payload)
        stream = StreamIndex(session, topic, number)
        self._reservations.set(stream)
        if session != self.session:
            self._ends.begin(key, segment.first_record, start)
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
        self._catalog.note_stream(key, segment)
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
        file, self._file = self._file, None
        if file is not None:
            file.close()
        close_all(self._full)
