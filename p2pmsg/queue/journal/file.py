"""A queue's log on disk: segments of records, of which the oldest is emptied into the newest.

What is of use in the oldest one is appended to the newest before it is deleted, so the log takes
about twice what it has to keep, and no copy is ever long. `reading` has the files' format.
"""

import errno
import os
import secrets
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from io import FileIO
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from p2pmsg import codec
from p2pmsg.checks import check, check_fields
from p2pmsg.errors import ConfigError, LogFailedError, LogInUseError
from p2pmsg.queue.frames import Process
from p2pmsg.queue.journal import records as records
from p2pmsg.queue.journal.position import Position, PositionFile
from p2pmsg.queue.journal.reading import (
    FoundSegment,
    apply_segment,
    check_ends,
    packed,
    read_records,
    segment_path,
    segments,
    without_former,
)
from p2pmsg.queue.journal.records import JournalState
from p2pmsg.queue.rules import DEDUP_WINDOW_S, DeadJob, QueuedJob
from recovery import platform
from recovery.checks import to_ns
from recovery.durable import holder_of, lock_file, make_folder, replace_file, sync_path, unlock_file
from transports.own_log import own_log as _log

_decode: Final = codec.make_decoder(list[Any]).decode
_LOCK: Final = "queue.lock"
SKIPPED: Final = 2**24
"""How many numbers are left out after a crash of the system, which may have been used: with
50,000 jobs a second those of 5 min, longer than any system keeps what was written."""
FSYNC_INTERVAL_S: Final = 0.1
"""How much of the last pushes a crash of the operating system may cost with `interval`."""
_NEVER_NS: Final = 2**63


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLogConfig:
    """How a queue's log is kept. `ConfigError` for a value out of its limits."""

    directory: str | os.PathLike[str] = field(kw_only=False)
    """Made where it is missing; one queue each."""

    fsync: Literal["interval", "always", "never"] = "interval"
    """When what was written is forced to the disk. A killed process loses nothing with any of them;
    this is about the operating system. `interval` may cost the pushes of the last 100 ms. With
    `always` it is on the disk when `push` returns, before a worker gets it and before an
    acknowledgement is confirmed; threads that push at once share one fsync. `never` leaves it to
    the system, except for a segment that is full."""

    segment_bytes: int = 16 * 2**20
    """Size of a segment. 16 MiB are copied in some 50 ms at worst."""

    def __post_init__(self) -> None:
        check_fields(self, segment_bytes=4096)
        check("directory", self.directory, bool(os.fspath(self.directory)), "a directory")


def log_settings(log: Any) -> QueueLogConfig | None:
    """Return the settings that a user's `log=` means: a directory, or settings."""
    if log is None or isinstance(log, QueueLogConfig):
        return log
    if isinstance(log, str | os.PathLike):
        return QueueLogConfig(directory=log)
    raise ConfigError("log", "a directory, QueueLogConfig or None", log)


def lock_folder(folder: Path) -> FileIO:
    """Lock a log; `LogInUseError` where another process, or object, has it."""
    try:
        return lock_file(folder / _LOCK)
    except BlockingIOError as error:
        raise LogInUseError(str(folder), pid=holder_of(folder / _LOCK)) from error


class FileJournal:
    """An open log; `state` gets what it has.

    Args:
        settings: how it is kept.
        state: empty.
        boot: distinguishes starts of the operating system; empty where it is not known.
        fsync_interval: how much of the last pushes a crash of the system may cost, in seconds.
        dedup_window: how long the `message_id` of a job that is done is kept, in seconds.

    Raises:
        LogInUseError: another process has it open.
        LogFormatError: a segment is damaged, and not only without the end that a crash may take.
        OSError: the operating system refuses.

    Attributes:
        is_always: whether `fsync` is `always`: after an append, `sync` or `begin_sync` is called
            before anything is said of it.
        written, synced: how many bytes were appended by this run, and how many of them are on the
            disk for certain.
        broken: why nothing can be brought to the disk any more; None while it can.

    While it is open it does not wait for the disk: its owner begins a sync when that is due, and
    empties old segments while `has_to_empty`.

    """

    def __init__(
        self,
        settings: QueueLogConfig,
        state: JournalState,
        *,
        boot: str,
        dedup_window: float = DEDUP_WINDOW_S,
        fsync_interval: float = FSYNC_INTERVAL_S,
    ) -> None:
        self._settings = settings
        self._dedup_window = dedup_window
        self._fsync_interval = fsync_interval
        self._boot = boot
        self._folder = Path(settings.directory)
        make_folder(self._folder)
        self._lock = lock_folder(self._folder)
        self._fd = -1
        self.is_always = settings.fsync == "always"
        self.written = self.synced = 0
        self.broken: str | None = None
        self._position = PositionFile(self._folder, self._lock.fileno())
        self._sizes: dict[int, int] = {}
        self._dead: set[int] = set()
        self._live_bytes = self._number = self._size = 0
        self._segments: list[tuple[Path, int]] = []
        self._former: _Former | None = None
        self._disk = _Disk()
        self._must_cut = False
        self._path = self._folder
        self._synced_ns = time.monotonic_ns()
        try:
            self._position.read()
            self._replay(state)
            start = state.next_sequence
            self._compare(state)
            self._warn_of_missing(state, start)
            if state.session is None:
                state.session = secrets.randbits(64)
            self._session = state.session
            self._next_sequence, self._next_delivery = state.next_sequence, state.deliveries
            self._learn(state.open.values(), state.dead.values())
            self._begin_segment()
            self.sync()
            self._position.begin(
                Position(self._number, self._size, self._next_sequence, self._next_delivery)
            )
        except BaseException:
            self._let_go()
            raise

    def append(self, record: bytes) -> None:
        """Write a record; `OSError` where that fails, and then nothing of it is left."""
        self._check_usable()
        if self._size >= self._settings.segment_bytes and self._former is None:
            if self._must_cut:
                self._cut()
            self._begin_segment()
        self._write(record)
        self._note(record)
        self._on_position()

    def allow_deliveries(self, stop: int) -> None:
        """Note that no later run is to use a delivery number below `stop`."""
        if stop != self._next_delivery:
            self._next_delivery = stop
            self._on_position()

    @property
    def due_ns(self) -> int:
        """When the next sync is due, of the monotonic clock; far away where none is.

        The former segment goes to the disk at once, whatever `fsync` says: only the last two may
        lack their ends.
        """
        if self.broken is not None:
            return _NEVER_NS
        waits = self.written > self.synced
        if self._former is not None or (waits and self.is_always):
            return 0
        if waits and self._settings.fsync == "interval":
            return self._synced_ns + to_ns(self._fsync_interval)
        return _NEVER_NS

    def sync(self) -> None:
        """Force to the disk what was written; `LogFailedError` where that fails, now or before."""
        self._check_usable()
        if self.written > self.synced or self._former is not None:
            pending = self._pending(self._unsynced_fds())
            pending.wait()
            self.end_sync(pending)

    def begin_sync(self) -> "PendingSync":
        """Begin to force to the disk what was written; then call its `wait`, then `end_sync`.

        Only `wait` takes time, and during it other methods may be called.
        """
        self._check_usable()
        fds = self._unsynced_fds()
        owned: list[int] = []
        try:
            owned.extend(os.dup(fd) if fd >= 0 else fd for fd in fds)
        except OSError:  # no descriptor is left: do it now, while these cannot be closed
            _close_all(owned)
            pending = self._pending(fds)
            pending.wait()
        else:
            pending = self._pending(owned, owns=True)
        return pending

    def _unsynced_fds(self) -> list[int]:
        """Return what a sync forces to the disk: the former segment, the folder, the segment."""
        return [*((-1, -1) if self._former is None else self._former.fds), self._fd]

    def _pending(self, fds: list[int], *, owns: bool = False) -> "PendingSync":
        pending = PendingSync(self._disk, fds, self.written, owns=owns)
        pending.segment = self._number
        return pending

    def end_sync(self, pending: "PendingSync") -> None:
        """Take the result of a sync; `LogFailedError` where it failed.

        That is final: the system has forgotten what it could not write, and another fsync would
        succeed without it.
        """
        if pending.error is not None:
            self.broken = f"what was written could not be forced to the disk: {pending.error}"
            raise LogFailedError(self.broken, pending.error.errno) from pending.error
        self.synced = max(self.synced, pending.stop)
        self._synced_ns = time.monotonic_ns()
        former = self._former
        if former is not None and former.number < pending.segment:
            self._former = None
            _close_all(former.fds)

    def resync(self, jobs: Iterable[QueuedJob], dead: Iterable[DeadJob]) -> None:
        """Put all right after an exception; `jobs` and `dead` are what is to be kept.

        A record whose writing was cut short is removed, whether it was complete or not.
        """
        self._must_cut = self._fd >= 0
        self._sizes, self._dead, self._live_bytes = {}, set(), 0
        self._learn(jobs, dead)

    def close(self) -> None:
        """Let go of the log; it may be called again."""
        try:
            if self._fd >= 0 and self.broken is None:
                if self._former is not None:
                    self.sync()  # before anything says that it was closed
                self._write(records.closed_record())
                self._on_position()
                if self._settings.fsync != "never":
                    self.sync()
        except LogFailedError:
            raise
        except OSError as error:
            raise self.failed(error) from error
        finally:
            self._let_go()

    def failed(self, error: OSError) -> LogFailedError:
        """Return what is raised where a write failed."""
        what = f"the queue's log {self._folder} cannot be written: {error.strerror or error}"
        return LogFailedError(what, error.errno)

    def forget(self) -> None:
        """Close the files and nothing else, as a forked child does: the log is its parent's."""
        former, self._former = self._former, None
        _close_all([*(() if former is None else former.fds), self._fd])
        self._fd = -1
        self._lock.close()
        self._position.close()

    def _let_go(self) -> None:
        unlock_file(self._lock)
        self.forget()

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        return sum(size for _, size in self._segments) + self._size

    # -------------------------------------------------------------------------------- opening

    def _replay(self, state: JournalState) -> None:
        """Read the segments, and cut off what a crash has torn."""
        paths = segments(self._folder)
        found = [apply_segment(state, path, path.read_bytes()) for path in paths]
        check_ends(state, found, self._boot)
        end = (found[-1].number, found[-1].good) if found else (0, 0)
        while found and not found[-1].good:
            found.pop().path.unlink()  # it was not begun
        if len(found) > 1 and found[-1].former_bytes not in (0, found[-2].good):
            found = [*found[:-2], *_accepted(*found[-2:])]
        for each in found:
            if each.good < each.size:
                _log.warning(
                    "%s: %d bytes that were not written to the end are cut off",
                    each.path, each.size - each.good,
                )  # fmt: skip
                os.truncate(each.path, each.good)
        for each in found[-2:]:
            sync_path(each.path)  # an earlier run's last records, or what is cut off now
        self._segments = [(each.path, each.good) for each in found]
        self._number, self._size = end
        is_same_boot = self._boot != "" and self._boot == state.boot
        if state.session is not None:
            state.has_crashed = not (state.is_closed or state.is_synced or is_same_boot)

    def _compare(self, state: JournalState) -> None:
        """Compare what is there with where earlier runs were, so that no number is used twice."""
        start, found = state.next_sequence, self._position.found
        if state.has_crashed:
            state.next_sequence += SKIPPED
            state.deliveries += SKIPPED
        if found is not None:
            is_shorter = Position(self._number, self._size, 0, 0).end < found.end
            state.is_short = is_shorter and not state.has_crashed
            state.next_sequence = max(state.next_sequence, found.sequence)
            state.deliveries = max(state.deliveries, found.delivery)
        elif self._segments:
            state.is_copy = True
            state.session = None
        state.missing += state.next_sequence - start

    def _warn_of_missing(self, state: JournalState, start: int) -> None:
        if state.is_copy:
            why = "this log was restored from a copy, and goes on as a new session"
        elif state.has_crashed:
            why = "the operating system crashed"
        elif state.is_short:
            why = "the log is shorter than its last process left it"
        else:
            return
        stop = state.next_sequence
        left_out = (
            f": sequences {start} to {stop - 1} are left out, and jobs of these that were not done "
            "are lost"
        )
        _log.warning(
            "%s: %s: what was pushed or done last may be missing, and no sequence is used twice%s",
            self._folder, why, left_out if stop > start else "",
        )  # fmt: skip

    def _learn(self, jobs: Iterable[QueuedJob], dead: Iterable[DeadJob]) -> None:
        """Note what is of use, so that compaction knows; sizes are about right."""
        for job in jobs:
            self._keep(job.sequence, job.size)
        for one in dead:
            self._keep(one.job.sequence, one.job.size)
            self._dead.add(one.job.sequence)

    def _begin_segment(self) -> None:
        """Go on in a new segment; where that fails, the former one stays what it is.

        What was not on the disk of the former one goes there with the next sync.
        """
        former_fd, former_size, written = self._fd, self._size, self.written
        former_number, former_path, folder_fd = self._number, self._path, -1
        number = former_number + 1
        path = segment_path(self._folder, number)
        # One that is there already was begun before, and could be neither written nor deleted.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        fd = os.open(path, flags, 0o644)
        former_bytes = former_size
        if former_fd < 0 and self._segments:
            former_bytes = self._segments[-1][1]
        head = records.head_record(
            self._session, self._next_sequence, self._boot, self.is_always, former_bytes
        )
        try:
            self._fd, self._size = fd, 0
            self._write(head)
            folder_fd = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
            self._path, self._number = path, number
        except BaseException:
            self._fd, self._size, self._must_cut = former_fd, former_size, False
            self._path, self._number, self.written = former_path, former_number, written
            os.close(fd)
            with suppress(OSError):  # the next try writes over it
                path.unlink(missing_ok=True)
            raise
        self._former = _Former(former_number, former_fd, folder_fd)
        if former_fd >= 0:
            self._segments.append((former_path, former_size))

    # -------------------------------------------------------------------------------- writing

    def _write(self, record: bytes) -> None:
        data = packed(record)
        if self._must_cut:
            self._cut()
        try:
            written = os.write(self._fd, data)
            while written < len(data):
                written += os.write(self._fd, data[written:])
        except BaseException:  # also Ctrl-C: its caller does not learn that it was written
            self._must_cut = True
            with suppress(OSError):  # it is tried again before the next record is written
                self._cut()
            raise
        self._size += len(data)
        self.written += len(data)

    def _cut(self) -> None:
        """Remove what a failed write left; nothing after it would be found again."""
        os.ftruncate(self._fd, self._size)
        self._must_cut = False

    def _on_position(self) -> None:
        self._position.note(self._number, self._size, self._next_sequence, self._next_delivery)

    def _check_usable(self) -> None:
        if self.broken is not None:
            raise LogFailedError(self.broken)

    def _note(self, record: bytes) -> None:
        """Keep account of what is of use."""
        fields = _decode(record)
        kind = fields[0]
        if kind == records.PUSH:
            self._keep(fields[1], len(record))
            self._next_sequence = max(self._next_sequence, fields[1] + 1)
        elif kind == records.DONE:
            for sequence in range(fields[1], fields[2]):
                self._drop(sequence)
        elif kind == records.DEAD:
            self._keep(fields[4], len(record))
            self._dead.add(fields[4])
        elif kind == records.DROPPED:
            self._drop(fields[1])
        elif kind == records.RETRIED:
            self._dead.discard(fields[2])
            self._keep(fields[2], len(record))

    def _keep(self, sequence: int, size: int) -> None:
        self._live_bytes += size - self._sizes.get(sequence, 0)
        self._sizes[sequence] = size

    def _drop(self, sequence: int) -> None:
        self._live_bytes -= self._sizes.pop(sequence, 0)
        self._dead.discard(sequence)

    # The owner calls these one by one: `read_oldest`, `copy` in pieces, and `delete_oldest` when
    # what was copied is on the disk. It may append in between: copies may come late.

    @property
    def has_to_empty(self) -> bool:
        """Whether the oldest segment is to be emptied into the newest, and deleted."""
        limit = 2 * self._live_bytes + 2 * self._settings.segment_bytes
        return bool(self._segments) and self.size > limit

    def read_oldest(self) -> list[bytes]:
        """Return the records of the oldest segment; any thread may call this.

        Raises `OSError` where it cannot be read as a whole, and then it must stay.
        """
        path, size = self._segments[0]
        found = list(read_records(path.read_bytes()))
        if size and (not found or found[-1][1] < size):
            raise OSError(errno.EIO, "it was damaged while it was in use", str(path))
        return [record for record, _ in found]

    def copy(self, found: list[bytes]) -> None:
        """Write again what of these records is still to be kept."""
        for record in found:
            for copy in self._of_use(record):
                self._write(copy)

    def delete_oldest(self) -> None:
        """Delete the oldest segment; any thread may call this."""
        self._segments[0][0].unlink(missing_ok=True)
        del self._segments[0]  # whatever comes next: it would not be found again
        sync_path(self._folder)

    def _of_use(self, record: bytes) -> Iterator[bytes]:
        """Return what of a record is still to be kept."""
        fields = _decode(record)
        kind = fields[0]
        if kind == records.PUSH:
            sequence, pushed_ns, message_id = fields[1], fields[2], fields[5]
            if self._is_open(sequence):
                yield record
            elif message_id is not None and self._in_window(pushed_ns):
                yield records.seen_record(message_id, sequence, pushed_ns)
        elif (
            (kind == records.SEEN and self._in_window(fields[3]))
            or (kind == records.FAILED and self._is_open(fields[1]))
            or (kind == records.DEAD and fields[4] in self._dead)
            or (kind == records.RETRIED and self._is_open(fields[2]))
        ):
            yield record
        elif kind == records.GIVEN:
            open_ones = [sequence for sequence in fields[3] if self._is_open(sequence)]
            if open_ones:
                yield records.given_record(fields[1], fields[2], open_ones, Process(*fields[4:7]))

    def _is_open(self, sequence: int) -> bool:
        return sequence in self._sizes and sequence not in self._dead

    def _in_window(self, pushed_ns: int) -> bool:
        return time.time_ns() - pushed_ns < self._dedup_window * 1e9


def _accepted(before: FoundSegment, newest: FoundSegment) -> list[FoundSegment]:
    """Have it no longer said what a crash took of the segment before the newest."""
    data = newest.path.read_bytes()[: newest.good]
    kept = b"".join(packed(without_former(record)) for record, _ in read_records(data))
    replace_file(newest.path, kept, mode=0o644).close()
    newest = replace(newest, size=len(kept), good=len(kept))
    if before.good:
        return [before, newest]
    before.path.unlink()
    return [newest]


class _Former(NamedTuple):
    """The segment before the newest one, until it is on the disk."""

    number: int
    fd: int
    """-1: there is none, or it is on the disk."""
    folder_fd: int
    """Of the folder, which has the newest one's name."""

    @property
    def fds(self) -> tuple[int, int]:
        """What is to be forced to the disk."""
        return self.fd, self.folder_fd


class _Disk:
    """Lets one sync at a time happen, and none after one that failed.

    Of two at once on a file, the system informs only one that it could not write something.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.error: OSError | None = None


class PendingSync:
    """A sync that is under way: `wait` does it, with no lock held.

    The former segment goes to the disk before the newest one, where it is not there yet.

    Attributes:
        stop: up to where it goes, as `FileJournal.written` counts.
        error: why it failed; None where all is well.
        segment: the newest one, which says so.

    """

    __slots__ = ("_disk", "_fds", "_owns", "error", "segment", "stop")

    def __init__(self, disk: _Disk, fds: list[int], stop: int, *, owns: bool = False) -> None:
        self._disk = disk
        self._fds = fds
        self._owns = owns
        self.stop = stop
        self.error: OSError | None = None
        self.segment = 0

    def wait(self) -> None:
        """Wait for the disk, once."""
        fds, self._fds = self._fds, []
        if not fds:
            return
        try:
            with self._disk.lock:
                if self._disk.error is None:
                    self._force(*fds)
                self.error = self._disk.error
        finally:
            if self._owns:
                _close_all(fds)

    def _force(self, former: int, folder: int, newest: int) -> None:
        try:
            if former >= 0:
                platform.sync_data(former)
            if folder >= 0:
                os.fsync(folder)
            platform.sync_data(newest)
        except OSError as error:
            self._disk.error = error


def _close_all(fds: Iterable[int]) -> None:
    for fd in fds:
        if fd >= 0:
            os.close(fd)
