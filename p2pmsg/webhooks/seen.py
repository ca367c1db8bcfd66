"""Which requests were taken already, over restarts: a bounded table, and a file with it."""

import errno
import hashlib
import os
import re
import struct
import time
from io import FileIO
from itertools import islice
from pathlib import Path
from typing import Final

from p2pmsg.errors import LogFailedError, LogFormatError, LogInUseError, P2PError
from p2pmsg.trouble import Rarely, Trouble
from recovery.durable import holder_of, lock_file, make_folder, replace_file, sync_path, unlock_file
from transports.own_log import own_log as _log

MAGIC: Final = b"p2seen\x00\x01"
_OTHER_RECEIVER: Final = "another `p2pmsg hook in`, or webhooks.receive"
_RECORD: Final = struct.Struct("!Q16s8s")  # seconds, digest of the id, digest of both
_AT_ONCE: Final = 128
"""How many records are written at once; so many are made in vain while the disk is full."""
_GROWTH: Final = 10_000
"""How many records are written in excess before the file is written again, or this tried again."""
_SECONDS_MAX: Final = 2**40
_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)
_NOT_ZERO: Final = re.compile(rb"[^\0]")
_CONSEQUENCE: Final = (
    "what is taken meanwhile is known in memory only: if it is sent again after a restart, it is "
    "published again"
)


class SeenIds:
    """The ids of requests that were taken.

    Not for several threads at once. What fails at the file is logged, counted and tried again; the
    ids that it does not have are kept in memory until then.

    Args:
        path: the file; None: only in memory. It is made where it is missing. One that exists is
            gone on with on a full disk, too.
        keep: how long an id is kept, in seconds.
        ids_max: how many ids are kept; the oldest is forgotten first, and counted.
        now: the time, in seconds since the epoch.

    Attributes:
        forgotten: ids that were forgotten before their time.
        failures: how often the file could not be written, or forced to the disk.

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
        self.forgotten = self.failures = 0
        self._records = self._end = 0
        self._rewrite_above = _GROWTH
        self._is_unsynced = self._is_doubtful = False
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
        make_folder(os.path.dirname(path))
        try:
            self._lock = lock_file(path + ".lock")
        except BlockingIOError as error:
            pid = holder_of(path + ".lock")
            raise LogInUseError(path, "the file", _OTHER_RECEIVER, pid) from error
        try:
            exists = self._read(path)
            self._expire(now)
            try:
                self._rewrite()
            except OSError as error:
                if not exists or error.errno not in _NO_SPACE:
                    raise
                self._go_on(path, error)
        except BaseException:
            unlock_file(self._lock)
            raise

    def _go_on(self, path: str, error: OSError) -> None:
        """Use the file as it is, since the disk has no space to write it again."""
        self.failures += 1
        self._growing.note(_reason(error), now_ns=time.monotonic_ns())
        self._rewrite_above = self._records + _GROWTH
        self._file = FileIO(path, "r+")
        self._file.truncate(self._end)

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def unwritten(self) -> int:
        """How many ids are in memory only, since the file could not be written."""
        return len(self._unwritten)

    @property
    def is_settled(self) -> bool:
        """Whether all ids are on the disk; else `sync` is to be called."""
        return not (self._unwritten or self._is_unsynced or self._is_doubtful)

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
        self._expire(int(now))
        if self._file is not None:
            self._write_out(self._file)

    def sync(self) -> None:
        """Write what is not written yet, and force what was noted to the disk."""
        file = self._file
        if file is None or self.is_settled:
            return
        try:
            if self._is_doubtful:
                self._rewrite()
                self._trouble.over()
                return
            self._write_out(file)
            if self._is_unsynced and self._file is not None:
                os.fsync(self._file.fileno())
                self._is_unsynced = False
        except OSError as error:
            # The system forgets what it could not write, so the next fsync would succeed.
            self._is_doubtful = True
            self._failed(error)

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
            return
        if not self._is_doubtful:
            self._trouble.over()
        if self._records > self._rewrite_above:
            try:
                self._rewrite()
            except OSError as error:
                self._rewrite_above = self._records + _GROWTH
                self.failures += 1
                self._growing.note(_reason(error), now_ns=time.monotonic_ns())

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
            self._is_unsynced = self._is_unsynced or count > 0
            for digest in digests[:count]:
                del self._unwritten[digest]
            if done % _RECORD.size:
                file.truncate(self._end)

    def _failed(self, error: OSError) -> None:
        self.failures += 1
        self._trouble.note(_reason(error), now_ns=time.monotonic_ns())

    def _rewrite(self) -> None:
        """Write the file again, with all ids, on the disk."""
        assert self._path is not None
        records = b"".join(_packed(taken, digest) for digest, taken in self._ids.items())
        former, self._file = self._file, replace_file(self._path, MAGIC + records)
        if former is not None:
            former.close()
        self._end, self._records = len(MAGIC) + len(records), len(self._ids)
        self._rewrite_above = 2 * self._records + _GROWTH
        self._unwritten.clear()
        self._is_unsynced, self._is_doubtful = False, True
        sync_path(os.path.dirname(self._path))
        self._is_doubtful = False
        self._growing.over()


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def _digest(request_id: str) -> bytes:
    return hashlib.blake2b(request_id.encode(errors="surrogatepass"), digest_size=16).digest()


def _check(taken: int, digest: bytes) -> bytes:
    return hashlib.blake2b(taken.to_bytes(8, "big") + digest, digest_size=8).digest()


def _packed(taken: int, digest: bytes) -> bytes:
    return _RECORD.pack(taken, digest, _check(taken, digest))
