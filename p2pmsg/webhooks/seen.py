"""Which requests were taken already, over restarts: a bounded table, and a file with it."""

import errno
import hashlib
import os
import re
import struct
import time
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from io import FileIO
from itertools import islice
from pathlib import Path
from typing import Final

from p2pmsg.errors import LogFailedError, LogFormatError, LogInUseError, P2PError
from p2pmsg.publisher.steps import Steps, run_steps
from p2pmsg.trouble import Rarely, Trouble
from recovery.durable import (
    discard_file,
    holder_of,
    lock_file,
    require_folder,
    sync_path,
    unlock_file,
    write_all,
    write_file,
)
from transports.own_log import own_log as _log

MAGIC: Final = b"p2seen\x00\x01"
_OTHER_RECEIVER: Final = "another `p2pmsg hook in`, or webhooks.receive"
_RECORD: Final = struct.Struct("!Q16s8s")  # seconds, digest of the id, digest of both
_AT_ONCE: Final = 128
"""How many records are written at once; so many are made in vain while the disk is full."""
_GROWTH: Final = 10_000
"""How many records are written in excess before the file is written again, or this tried again."""
_SECONDS_MAX: Final = 2**40
_NEW: Final = ".tmp"
_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)
_NOT_ZERO: Final = re.compile(rb"[^\0]")
_CONSEQUENCE: Final = (
    "what is taken meanwhile is known in memory only: if it is sent again after a restart, it is "
    "published again"
)


class SeenIds:
    """The ids of requests that were taken.

    For several threads, calls need a lock; `sync_steps` takes it itself, and leaves it while it
    waits for the disk. `has`, `len` and the attributes need none. What fails at the file is logged,
    counted and tried again; the ids that it does not have are kept in memory until then.

    Args:
        path: the file; None: only in memory. It is made where it is missing. One that exists is
            gone on with on a full disk, too.
        keep: how long an id is kept, in seconds.
        ids_max: how many ids are kept; the oldest is forgotten first, and counted.
        now: the time, in seconds since the epoch.

    Attributes:
        forgotten: ids that were forgotten before their time.
        failures: how often the file could not be written, or forced to the disk.
        unwritten: ids that are in memory only, since the file could not be written.

    Raises:
        LogInUseError: another process uses the file.
        LogFormatError: the file is something else.
        LogFailedError: it cannot be read or written.

    """

    def __init__(self, path: str | Path | None, keep: float, ids_max: int, now: float) -> None:
        self._keep = int(keep)
        self._ids_max = ids_max
        self._ids: dict[bytes, int] = {}
        self._unwritten: dict[bytes, None] = {}
        self._added: dict[bytes, None] | None = None  # while the file is written again
        self.forgotten = self.failures = self.unwritten = 0
        self._records = self._unsynced = self._end = 0
        self._rewrite_above = _GROWTH
        self._is_doubtful = False
        self._path = None if path is None else os.path.abspath(path)
        self._file: FileIO | None = None
        self._lock: FileIO | None = None
        place = f"the file of webhook ids {self._path}"
        self._trouble = Trouble(place, _CONSEQUENCE, Rarely())
        self._growing = Trouble(place, "what is too old stays in it meanwhile", Rarely())
        if self._path is not None:
            try:
                self._open(self._path, int(now))
            except P2PError:
                raise
            except OSError as error:
                reason = f"seen: the file {self._path} cannot be used: {error.strerror}"
                raise LogFailedError(reason, error.errno) from error

    def _open(self, path: str, now: int) -> None:
        require_folder(os.path.dirname(path))
        try:
            self._lock = lock_file(path + ".lock")
        except BlockingIOError as error:
            pid = holder_of(path + ".lock")
            raise LogInUseError(path, "the file", _OTHER_RECEIVER, pid) from error
        try:
            exists = self._read(path)
            self._expire(now)
            try:
                run_steps(self._rewrite_steps(nullcontext()))
            except OSError as error:
                if not exists or error.errno not in _NO_SPACE:
                    raise
                self._go_on(path, error)
        except BaseException:
            unlock_file(self._lock)
            raise

    def _go_on(self, path: str, error: OSError) -> None:
        """Use the file as it is, since the disk has no space to write it again."""
        self._growing_failed(error)
        self._file = FileIO(path, "r+")
        self._file.truncate(self._end)

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def is_settled(self) -> bool:
        """Whether all ids are on the disk; else `sync` is to be called."""
        return not (self._unwritten or self._unsynced or self._is_doubtful)

    def has(self, request_id: str, now: float) -> bool:
        """Whether a request with this id was taken, not longer ago than ids are kept."""
        taken = self._ids.get(_digest(request_id))
        return taken is not None and taken > now - self._keep

    def add(self, request_id: str, now: float) -> None:
        """Note that it was taken; a process that is killed afterwards does not forget it.

        Where the file cannot be written it is noted in memory, and written later.
        """
        digest = _digest(request_id)
        self._ids.pop(digest, None)
        self._ids[digest] = int(now)
        if self._file is not None:
            self._unwritten.pop(digest, None)
            self._unwritten[digest] = None
        if self._added is not None:
            self._added.pop(digest, None)
            self._added[digest] = None
        self._expire(int(now))
        if self._file is not None:
            self._write_out(self._file)

    def sync(self) -> None:
        """Do as `sync_steps`, and wait for the disk here."""
        run_steps(self.sync_steps(nullcontext()))

    def sync_steps(self, lock: AbstractContextManager[object]) -> Steps[None]:
        """Write what is not written yet, and force what was noted to the disk.

        The lock is held only before and after the waiting. Meanwhile the other methods may be
        called, except `close`; what is noted then is forced to the disk by the next call. Only one
        may be under way.
        """
        with lock:
            if self._file is None or self.is_settled:
                return
            was_doubtful = self._is_doubtful
            if not was_doubtful:
                self._write_out(self._file)
            is_large = self._records > self._rewrite_above
        if not (was_doubtful or is_large):
            yield from self._force_steps(lock)
            return
        try:
            yield from self._rewrite_steps(lock)
        except OSError as error:
            with lock:
                if was_doubtful:
                    self._failed(error)
                    return
                self._growing_failed(error)
            yield from self._force_steps(lock)
        else:
            with lock:
                self._trouble.over()

    def _force_steps(self, lock: AbstractContextManager[object]) -> Steps[None]:
        """Force to the disk what the file has."""
        with lock:
            file, count = self._file, self._unsynced
        if file is None or not count:
            return
        try:
            yield partial(os.fsync, file.fileno())
        except OSError as error:
            with lock:
                # The system forgets what it could not write, so the next fsync would succeed.
                self._is_doubtful = True
                self._failed(error)
        else:
            with lock:
                self._unsynced -= count

    def close(self) -> None:
        """Write what is not written yet, and close the file."""
        self.sync()
        if self._unwritten:
            _log.warning(
                "%s: %d ids could not be written: if their requests are sent again, they are "
                "published again", self._path, len(self._unwritten),
            )  # fmt: skip
        if self._file is not None:
            self._file.close()
        if self._lock is not None:
            unlock_file(self._lock)

    def _expire(self, now: int) -> None:
        while self._ids:
            oldest = next(iter(self._ids))
            is_old = self._ids[oldest] <= now - self._keep
            if not is_old and len(self._ids) <= self._ids_max:
                return
            self.forgotten += not is_old
            del self._ids[oldest]
            self._unwritten.pop(oldest, None)
            if self._added is not None:
                self._added.pop(oldest, None)

    def _read(self, path: str) -> bool:
        """Read the records, also after bytes that are none; returns whether the file exists."""
        try:
            data = Path(path).read_bytes()
        except FileNotFoundError:
            return False
        if data[: len(MAGIC)] != MAGIC:
            raise LogFormatError(path, 0, f"{path} is no file of webhook ids")
        at = self._end = len(MAGIC)
        while at <= len(data) - _RECORD.size:
            taken, digest, check = _RECORD.unpack_from(data, at)
            if taken >= _SECONDS_MAX or check != _check(taken, digest):
                found = _NOT_ZERO.search(data, at + 1)
                at = max(at + 1, (found.start() if found else len(data)) - _RECORD.size + 1)
                continue
            at = self._end = at + _RECORD.size
            self._records += 1
            self._ids.pop(digest, None)
            self._ids[digest] = taken
        damaged = len(data) - len(MAGIC) - self._records * _RECORD.size
        if damaged:
            _log.warning("%s: %d bytes are damaged, and left out", path, damaged)
        return True

    def _write_out(self, file: FileIO) -> None:
        """Write the ids that the file does not have; what fails is noted."""
        try:
            while self._unwritten:
                self._append(file, list(islice(self._unwritten, _AT_ONCE)))
        except OSError as error:
            self._failed(error)
        else:
            if not self._is_doubtful:
                self._trouble.over()
        finally:
            self.unwritten = len(self._unwritten)

    def _append(self, file: FileIO, digests: list[bytes]) -> None:
        """Write records at the end of those that are whole, so that none is at another place."""
        data = memoryview(b"".join(_packed(self._ids[each], each) for each in digests))
        done = 0
        try:
            while done < len(data):
                done += os.pwrite(file.fileno(), data[done:], self._end + done)
        finally:
            count = done // _RECORD.size
            self._end += count * _RECORD.size
            self._records += count
            self._unsynced += count
            for digest in digests[:count]:
                del self._unwritten[digest]
            if done % _RECORD.size:
                file.truncate(self._end)

    def _failed(self, error: OSError) -> None:
        self.failures += 1
        self._trouble.note(_reason(error), now_ns=time.monotonic_ns())

    def _growing_failed(self, error: OSError) -> None:
        self._rewrite_above = self._records + _GROWTH
        self.failures += 1
        self._growing.note(_reason(error), now_ns=time.monotonic_ns())

    def _rewrite_steps(self, lock: AbstractContextManager[object]) -> Steps[None]:
        """Write the file again, with all ids, on the disk; raises `OSError`.

        Until the new file has its name, what is noted is written to the former one, so that no
        moment to be killed in costs an id.
        """
        assert self._path is not None
        with lock:
            ids, self._added = self._ids.copy(), {}
        try:
            file = yield partial(_write_ids, self._path + _NEW, ids)
            with lock:
                self._take_over(self._path, file, len(ids))
        finally:
            with lock:
                self._added = None
        yield partial(sync_path, os.path.dirname(self._path))
        with lock:
            self._is_doubtful = False
            self._growing.over()

    def _take_over(self, path: str, file: FileIO, records: int) -> None:
        """Put a file of so many ids in the place of the former one, with those noted meanwhile."""
        added = self._added or {}
        try:
            write_all(file, b"".join(_packed(self._ids[each], each) for each in added))
            os.replace(path + _NEW, path)
        except BaseException:
            discard_file(file, path + _NEW)
            raise
        former, self._file = self._file, file
        if former is not None:
            former.close()
        self._records = records + len(added)
        self._end = len(MAGIC) + self._records * _RECORD.size
        self._rewrite_above = 2 * self._records + _GROWTH
        self._unwritten.clear()
        self.unwritten, self._unsynced = 0, len(added)
        self._is_doubtful = True  # until its name is on the disk


def _write_ids(path: str, ids: dict[bytes, int]) -> FileIO:
    """Write a file with these ids, and force it to the disk."""
    return write_file(path, MAGIC + b"".join(_packed(ids[each], each) for each in ids))


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def _digest(request_id: str) -> bytes:
    return hashlib.blake2b(request_id.encode(errors="surrogatepass"), digest_size=16).digest()


def _check(taken: int, digest: bytes) -> bytes:
    return hashlib.blake2b(taken.to_bytes(8, "big") + digest, digest_size=8).digest()


def _packed(taken: int, digest: bytes) -> bytes:
    return _RECORD.pack(taken, digest, _check(taken, digest))
