"""A queue's log on disk: segments of records, of which the oldest is emptied into the newest.

A record is its length and CRC-32 (4 bytes each, network byte order) and a msgpack array; see
`journal`. A segment has a name with a number that only grows. What is of use in the oldest one is
copied behind the newest before it is deleted, so the log takes about twice what it has to keep, and
no copy is ever long.
"""

import fcntl
import logging
import os
import secrets
import struct
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from p2pmsg.config import at_least, check, whole
from p2pmsg.errors import LogCorruptError, LogInUseError
from p2pmsg.queue import journal as records
from p2pmsg.queue.journal import JournalState

_HEADER: Final = struct.Struct("!II")
_decode: Final = msgspec.msgpack.Decoder(list[Any]).decode
_log = logging.getLogger("p2pmsg")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """How a queue's log is kept. `ConfigError` for a value out of its limits."""

    directory: str | os.PathLike[str]
    """Made where it is missing; one queue each."""

    fsync: Literal["interval", "always", "never"] = "interval"
    """When what was written is forced to the disk. A killed process loses nothing with any of them;
    this is about the operating system. `always` takes as long as the disk does, for each job."""

    fsync_interval_ms: float = 100.0
    """How much of the last pushes a crash of the operating system may cost."""

    segment_bytes: int = 16 * 2**20
    """Size of a segment. 16 MiB are copied in some 50 ms at worst."""

    dedup_window_ms: float = 600_000.0
    """How long the `message_id` of a job that is done is kept."""

    def __post_init__(self) -> None:
        check("log", self.directory, bool(os.fspath(self.directory)), "a directory")
        check("fsync", self.fsync, self.fsync in ("interval", "always", "never"),
              'one of "interval", "always", "never"')  # fmt: skip
        at_least("fsync_interval_ms", self.fsync_interval_ms, 0)
        whole("segment_bytes", self.segment_bytes, 4096)


def log_settings(log: Any) -> LogSettings | None:
    """Return the settings that a user's `log=` means: a directory, or an object with settings."""
    if log is None or isinstance(log, LogSettings):
        return log
    if isinstance(log, str | os.PathLike):
        return LogSettings(directory=log)
    known = {
        name: getattr(log, name)
        for name in ("directory", "fsync", "fsync_interval_ms", "segment_bytes")
        if hasattr(log, name)
    }
    check("log", log, "directory" in known, "a directory, LogSettings or None")
    return LogSettings(**known)


class FileJournal:
    """An open log; `state` gets what it has.

    Raises:
        LogInUseError: another process has it open.
        LogCorruptError: a segment other than the last has a record that is none.
        OSError: the operating system refuses.

    """

    def __init__(self, settings: LogSettings, state: JournalState) -> None:
        self._settings = settings
        self._folder = Path(settings.directory)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._lock_fd = _lock(self._folder)
        self._fd = -1
        try:
            self._sizes: dict[int, int] = {}
            self._dead: set[int] = set()
            self._live_bytes = 0
            self._segments: list[tuple[Path, int]] = []
            self._unsynced = False
            self._synced_at = time.monotonic()
            self._replay(state)
            if state.session is None:
                state.session = secrets.randbits(64)
            self._session = state.session
            self._next_sequence = state.next_sequence
            self._learn(state)
            self._begin_segment()
        except BaseException:
            self.close()
            raise

    def append(self, record: bytes) -> None:
        """Write a record; `OSError` where that fails, and then nothing of it is left."""
        self._write(record)
        self._note(record)
        if self._size >= self._settings.segment_bytes:
            self._roll()

    def tick(self) -> None:
        """Force to the disk what waits for it longer than `fsync_interval_ms`."""
        if self._unsynced and self._settings.fsync == "interval":
            waited_ms = (time.monotonic() - self._synced_at) * 1000
            if waited_ms >= self._settings.fsync_interval_ms:
                self.sync()

    def sync(self) -> None:
        """Force to the disk what was written."""
        if self._unsynced:
            os.fdatasync(self._fd)
            self._unsynced = False
            self._synced_at = time.monotonic()

    def close(self) -> None:
        """Let go of the log; it may be called again."""
        if self._fd >= 0:
            if self._settings.fsync != "never":
                self.sync()
            os.close(self._fd)
            self._fd = -1
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        return sum(size for _, size in self._segments) + self._size

    # -------------------------------------------------------------------------------- opening

    def _replay(self, state: JournalState) -> None:
        paths = segments(self._folder)
        for path in paths:
            good = 0
            data = path.read_bytes()
            for record, end in read_records(data):
                try:
                    state.apply(record)
                except ValueError as error:
                    raise LogCorruptError(str(path), good, str(error)) from error
                good = end
            if good < len(data):
                if path != paths[-1]:
                    raise LogCorruptError(str(path), good, "a record is cut off or damaged")
                _log.warning(
                    "%s: %d bytes that were not written to the end are cut off",
                    path, len(data) - good,
                )  # fmt: skip
                os.truncate(path, good)
            self._segments.append((path, good))

    def _learn(self, state: JournalState) -> None:
        """Note what is of use, so that compaction knows; sizes are about right."""
        for sequence, job in state.open.items():
            self._keep(sequence, job.size)
        for sequence, dead in state.dead.items():
            self._keep(sequence, dead.job.size)
            self._dead.add(sequence)

    def _begin_segment(self) -> None:
        last = _number(self._segments[-1][0]) if self._segments else 0
        self._path = self._folder / f"queue-{last + 1:012d}.log"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(self._path, flags, 0o644)
        self._size = 0
        _sync_folder(self._folder)
        self._write(records.head_record(self._session, self._next_sequence))

    # -------------------------------------------------------------------------------- writing

    def _write(self, record: bytes) -> None:
        data = _HEADER.pack(len(record), zlib.crc32(record)) + record
        before = self._size
        try:
            written = os.write(self._fd, data)
            while written < len(data):
                written += os.write(self._fd, data[written:])
            if self._settings.fsync == "always":
                os.fdatasync(self._fd)
        except OSError:
            os.ftruncate(self._fd, before)
            raise
        self._size = before + len(data)
        self._unsynced = self._settings.fsync != "always"

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

    def _roll(self) -> None:
        """Go on in a new segment, and empty old ones where too much in them is of no use."""
        if self._settings.fsync != "never":
            self.sync()
        os.close(self._fd)
        self._fd = -1
        self._segments.append((self._path, self._size))
        self._begin_segment()
        limit = 2 * self._live_bytes + 2 * self._settings.segment_bytes
        while self._segments and self.size > limit:
            self._empty_oldest()

    def _empty_oldest(self) -> None:
        path, _ = self._segments[0]
        for record, _ in read_records(path.read_bytes()):
            for copy in self._of_use(record):
                self._write(copy)
        if self._settings.fsync != "never":
            os.fdatasync(self._fd)
        path.unlink()
        del self._segments[0]

    def _of_use(self, record: bytes) -> Iterator[bytes]:
        """Return what of a record is still to be kept."""
        fields = _decode(record)
        kind = fields[0]
        sizes, dead = self._sizes, self._dead
        if kind == records.PUSH:
            sequence, pushed_ns, message_id = fields[1], fields[2], fields[5]
            if sequence in sizes and sequence not in dead:
                yield record
            elif message_id is not None and self._in_window(pushed_ns):
                yield records.seen_record(message_id, sequence, pushed_ns)
        elif kind == records.SEEN:
            if self._in_window(fields[3]):
                yield record
        elif kind == records.FAILED:
            if fields[1] in sizes and fields[1] not in dead:
                yield record
        elif kind == records.DEAD:
            if fields[4] in dead:
                yield record
        elif kind == records.RETRIED:
            if fields[2] in sizes and fields[2] not in dead:
                yield record
        elif kind == records.GIVEN:
            open_ones = [s for s in fields[3] if s in sizes and s not in dead]
            if open_ones:
                process = (fields[4], fields[5], fields[6])
                yield records.given_record(fields[1], fields[2], open_ones, process)

    def _in_window(self, pushed_ns: int) -> bool:
        return time.time_ns() - pushed_ns < self._settings.dedup_window_ms * 1e6


def read_log(directory: str | os.PathLike[str]) -> JournalState:
    """Return what a log says, without opening it for writing; its pusher may be at work.

    Raises:
        LogCorruptError: a record is damaged.
        OSError: there is no such directory.

    """
    folder = Path(directory)
    state = JournalState()
    paths = segments(folder)
    if not paths:
        raise FileNotFoundError(f"there is no queue's log in {str(folder)!r}")
    for path in paths:
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            continue  # emptied just now: what it had comes again further on
        good = 0
        for record, end in read_records(data):
            try:
                state.apply(record)
            except ValueError as error:
                raise LogCorruptError(str(path), good, str(error)) from error
            good = end
        if good < len(data) and path != paths[-1]:
            raise LogCorruptError(str(path), good, "a record is cut off or damaged")
    return state


def read_records(data: bytes) -> Iterator[tuple[bytes, int]]:
    """Return the records up to the first that is cut off or damaged, each with where it ends."""
    at = 0
    while at + _HEADER.size <= len(data):
        length, crc = _HEADER.unpack_from(data, at)
        start = at + _HEADER.size
        record = data[start : start + length]
        if not length or len(record) < length or zlib.crc32(record) != crc:
            return
        at = start + length
        yield record, at


def segments(folder: Path) -> list[Path]:
    """Return the segments of a log, oldest first."""
    found = [path for path in folder.glob("queue-*.log") if path.stem[6:].isdecimal()]
    return sorted(found, key=_number)


def _number(path: Path) -> int:
    return int(path.stem[6:])


def _lock(folder: Path) -> int:
    fd = os.open(folder / "queue.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise LogInUseError(str(folder)) from error
    return fd


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
