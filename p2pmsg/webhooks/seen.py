"""Which requests were taken already, over restarts: a bounded table, and a file with it."""

import hashlib
import os
import struct
from io import FileIO
from pathlib import Path
from typing import Final

from p2pmsg.errors import LogFailedError, LogFormatError, LogInUseError, P2PError
from recovery.durable import holder_of, lock_file, make_folder, replace_file, sync_path, unlock_file
from transports.own_log import own_log as _log

MAGIC: Final = b"p2seen\x00\x01"
_OTHER_RECEIVER: Final = "another `p2pmsg hook in`, or webhooks.receive"
_RECORD: Final = struct.Struct("!Q16s8s")  # seconds, digest of the id, digest of both


class SeenIds:
    """The ids of requests that were taken.

    Args:
        path: the file; None: only in memory. It is made where it is missing.
        keep: how long an id is kept, in seconds.
        ids_max: how many ids are kept; the oldest is forgotten first, and counted.
        now: the time, in seconds since the epoch.

    Attributes:
        forgotten: ids that were forgotten before their time.

    Raises:
        LogInUseError: another process uses the file.
        LogFormatError: the file is something else.
        LogFailedError: it cannot be read or written.

    """

    def __init__(self, path: str | Path | None, keep: float, ids_max: int, now: float) -> None:
        self._keep = int(keep)
        self._ids_max = ids_max
        self._ids: dict[bytes, int] = {}
        self.forgotten = 0
        self._records = 0
        self._path = None if path is None else os.path.abspath(path)
        self._file: FileIO | None = None
        self._lock: FileIO | None = None
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
            self._read(path)
            self._expire(now)
            self._rewrite()
        except BaseException:
            unlock_file(self._lock)
            raise

    def __len__(self) -> int:
        return len(self._ids)

    def has(self, request_id: str, now: float) -> bool:
        """Whether a request with this id was taken, not longer ago than ids are kept."""
        taken = self._ids.get(_digest(request_id))
        return taken is not None and taken > now - self._keep

    def add(self, request_id: str, now: float) -> None:
        """Note that it was taken; a process that is killed afterwards does not forget it.

        Raises:
            OSError: the file could not be written; it is noted in memory all the same.

        """
        digest = _digest(request_id)
        self._ids.pop(digest, None)
        self._ids[digest] = int(now)
        self._expire(int(now))
        if self._file is None:
            return
        if self._records > 2 * len(self._ids) + 10_000:
            self._rewrite()
            return
        record = _packed(int(now), digest)
        if self._file.write(record) != len(record):
            self._rewrite()
            return
        self._records += 1

    def sync(self) -> None:
        """Force what was noted to the disk."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
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

    def _read(self, path: str) -> None:
        try:
            data = Path(path).read_bytes()
        except FileNotFoundError:
            return
        if data[: len(MAGIC)] != MAGIC:
            raise LogFormatError(path, 0, f"{path} is no file of webhook ids")
        damaged = 0
        body = memoryview(data)[len(MAGIC) :]
        for at in range(0, len(body) - _RECORD.size + 1, _RECORD.size):
            taken, digest, check = _RECORD.unpack_from(body, at)
            if check != _check(taken, digest):
                damaged += 1
                continue
            self._ids.pop(digest, None)
            self._ids[digest] = taken
        if damaged or len(body) % _RECORD.size:
            _log.warning("%s: %d records are damaged, and left out", path, damaged + 1)

    def _rewrite(self) -> None:
        assert self._path is not None
        data = MAGIC + b"".join(_packed(taken, digest) for digest, taken in self._ids.items())
        file = replace_file(self._path, data)
        sync_path(os.path.dirname(self._path))
        if self._file is not None:
            self._file.close()
        self._file = file
        self._records = len(self._ids)


def _digest(request_id: str) -> bytes:
    return hashlib.blake2b(request_id.encode(errors="surrogatepass"), digest_size=16).digest()


def _check(taken: int, digest: bytes) -> bytes:
    return hashlib.blake2b(taken.to_bytes(8, "big") + digest, digest_size=8).digest()


def _packed(taken: int, digest: bytes) -> bytes:
    return _RECORD.pack(taken, digest, _check(taken, digest))
