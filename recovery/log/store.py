"""Where a log's files are: the one place of `recovery` that knows the operating system."""

import errno
import fcntl
import os
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from mmap import mmap
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable
from weakref import WeakSet

from recovery import platform
from recovery.durable import make_folder, replace_file
from recovery.errors import LogLockedError, SyncFailedError

if TYPE_CHECKING:
    from recovery.store import Store

_LOCK: Final = "lock"
_TEMPORARY: Final = ".tmp"
_RESERVE_FROM: Final = 1024 * 1024
_RESERVE_BYTES: Final = 16 * 1024 * 1024
_ZEROS_BYTES: Final = 64 * 1024


class LogFile(Protocol):
    """An open file of a log. Its methods raise `OSError`."""

    def write(self, parts: Sequence[bytes | memoryview], offset: int) -> None:
        """Write all of `parts` at `offset`."""

    def read(self, byte_count: int, offset: int) -> bytes:
        """Return the bytes at `offset`, fewer where the file ends."""

    def size(self) -> int:
        """Return the file's size in bytes."""

    def sync(self) -> None:
        """Force what was written to the disk.

        Raises:
            SyncFailedError: that failed, or the file has been deleted.

        """

    def truncate(self, byte_count: int) -> None:
        """Cut the file."""

    def share(self) -> None:
        """Keep the file from being removed until it is closed."""

    def close(self) -> None:
        """Close it; it may be called again."""


@runtime_checkable
class LogStore(Protocol):
    """The files of one log, by their names in its directory. Its methods raise `OSError`."""

    def lock(self) -> None:
        """Become the writer; raises `LogLockedError`. It ends with the process, or `unlock`."""

    def unlock(self) -> None:
        """Let another one write."""

    def names(self) -> list[str]:
        """Return the names of all files; `FileNotFoundError` where there is no directory."""

    def open(self, name: str, *, create: bool = False) -> LogFile:
        """Open a file to read, or with `create` to write, too."""

    def read(self, name: str) -> bytes | None:
        """Return a file's content, or None where there is none."""

    def map(self, name: str, start: int, byte_count: int) -> mmap:
        """Return a part of a file as shared memory, filled with zeros where it was not there.

        It has its place on the disk, so that storing to it cannot fail.
        """

    def open_store(self, name: str, tables: str) -> "Store":
        """Open a file of SQLite; see `recovery.store.open_store`."""

    def identity(self, name: str) -> str:
        """Return what no copy of a file has."""

    def replace(self, name: str, data: bytes | Callable[[str], bytes], *, durable: bool) -> None:
        """Replace a file: after a crash it is the old one or the new one, if `durable`.

        A callable is given the identity that the file will have, and returns its content.
        """

    def remove(self, name: str) -> None:
        """Delete a file, if it is there."""

    def remove_unshared(self, name: str) -> bool:
        """Delete a file unless somebody reads it; return whether it is gone."""

    def sync_directory(self) -> None:
        """Force the names to the disk; raises `SyncFailedError` as `LogFile.sync`."""

    def boot_id(self) -> str:
        """Return what is another one after each start of the operating system."""

    def path(self, name: str) -> str:
        """Return what a file is called in a message."""


class _File:
    """A file of the operating system."""

    __slots__ = ("__weakref__", "_fd", "_reserved")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._reserved = _RESERVE_FROM
        _open_files.add(self)

    def write(self, parts: Sequence[bytes | memoryview], offset: int) -> None:
        wanted = sum(map(len, parts))
        if offset + wanted > self._reserved:
            self._reserve(offset)
        written = os.pwritev(self._fd, parts, offset)
        if written != wanted:
            rest = b"".join(parts)
            while written < wanted:
                written += os.pwrite(self._fd, rest[written:], offset + written)

    def _reserve(self, offset: int) -> None:
        """Let the disk find space for many writes at once, which takes a fifth off each."""
        self._reserved = offset + _RESERVE_BYTES
        if platform.fallocate is not None:
            platform.fallocate(self._fd, platform.KEEP_SIZE, offset, _RESERVE_BYTES)  # as a hint

    def read(self, byte_count: int, offset: int) -> bytes:
        return os.pread(self._fd, byte_count, offset)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def sync(self) -> None:
        _forced(platform.sync_data, self._fd)
        if os.fstat(self._fd).st_nlink == 0:
            raise SyncFailedError(errno.ENOENT, "the file was deleted")

    def truncate(self, byte_count: int) -> None:
        os.ftruncate(self._fd, byte_count)

    def share(self) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_SH)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            try:
                if self._reserved > _RESERVE_FROM:
                    os.ftruncate(fd, os.fstat(fd).st_size)  # gives back what was reserved
            except OSError:
                pass
            os.close(fd)

    def forget(self) -> None:
        """Close it in a child whose parent goes on writing."""
        self._reserved = 0
        self.close()

    def __del__(self) -> None:
        self.close()


def _forced(sync: Callable[[int], None], fd: int) -> None:
    """Call fsync or fdatasync; that it fails is final."""
    try:
        sync(fd)
    except OSError as error:
        raise SyncFailedError(error.errno, error.strerror) from error


def allocate(fd: int, start: int, byte_count: int) -> None:
    """Give a part of a file its place on the disk, so that storing to it cannot fail.

    A store to a mapped page that finds no place kills the process with SIGBUS. Where the system
    cannot reserve it (musl says so, macOS has no such call; glibc writes to each block), zeros are
    written to what the file does not have yet. A file system that compresses, or writes each time
    to another place (ZFS), promises nothing by either.

    Raises:
        OSError: there is no space; the file is as long as it was.

    """
    size, stop = os.fstat(fd).st_size, start + byte_count
    try:
        if not platform.has_reserved(fd, start, byte_count):
            at = size
            while at < stop:
                at += os.pwrite(fd, bytes(min(stop - at, _ZEROS_BYTES)), at)
    except OSError:
        os.ftruncate(fd, size)
        raise


def _lock_directory(fd: int) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        pass  # a file system that locks what is opened for writing only, as NFS


_open_files: WeakSet[_File] = WeakSet()


def _close_in_child() -> None:
    """Close everything: a child would keep the lock of a log whose writer has died."""
    for file in list(_open_files):
        file.forget()


os.register_at_fork(after_in_child=_close_in_child)


class FileStore:
    """A directory of the operating system; `lock` makes it."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = Path(directory)
        self._lock: _File | None = None
        self._opened_directory: _File | None = None

    def lock(self) -> None:
        """Become the writer, by an flock, which ends with the process.

        The directory is locked as well, where its file system can: the file may be deleted.
        """
        make_folder(self._directory)
        directory, lock = _File(os.open(self._directory, os.O_RDONLY | os.O_CLOEXEC)), None
        try:
            _lock_directory(directory._fd)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            lock = _File(os.open(self._directory / _LOCK, flags, 0o644))
            fcntl.flock(lock._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            directory.close()
            if lock is not None:
                lock.close()
            if not isinstance(error, BlockingIOError):
                raise
            raise LogLockedError(str(self._directory)) from None
        self._lock, self._opened_directory = lock, directory

    def unlock(self) -> None:
        """Let another one write."""
        for file in (self._opened_directory, self._lock):
            if file is not None and file._fd >= 0:
                with suppress(OSError):
                    # A child that was forked just now may not have closed its own copy yet.
                    fcntl.flock(file._fd, fcntl.LOCK_UN)
                file.close()
        self._lock = self._opened_directory = None

    def _check_owner(self) -> None:
        if self._lock is not None and self._lock._fd < 0:
            raise OSError(errno.EBADF, "a forked child cannot write its parent's log")

    def names(self) -> list[str]:
        """Return the names of all files."""
        return os.listdir(self._directory)

    def open(self, name: str, *, create: bool = False) -> _File:
        """Open a file."""
        flags = os.O_RDWR | os.O_CREAT if create else os.O_RDONLY
        return _File(os.open(self._directory / name, flags | os.O_CLOEXEC, 0o644))

    def read(self, name: str) -> bytes | None:
        """Return a file's content, or None."""
        try:
            return (self._directory / name).read_bytes()
        except FileNotFoundError:
            return None

    def map(self, name: str, start: int, byte_count: int) -> mmap:
        """Map a part of a file, which is given its place on the disk first."""
        self._check_owner()
        fd = os.open(self._directory / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            allocate(fd, start, byte_count)
            return mmap(fd, byte_count, offset=start)
        finally:
            os.close(fd)

    def open_store(self, name: str, tables: str) -> "Store":
        """Open a file of SQLite in the directory."""
        from recovery.store import open_store  # most logs have none

        return open_store(self._directory / name, tables)

    def identity(self, name: str) -> str:
        """Return what distinguishes a file from its copy; see `platform.identity_of`."""
        with closing(self.open(name)) as file:
            return platform.identity_of(file._fd)

    def replace(self, name: str, data: bytes | Callable[[str], bytes], *, durable: bool) -> None:
        """Replace a file, by renaming."""
        self._check_owner()
        # That its content cannot be forced there is not final: nobody relies on the new file.
        replace_file(
            self._directory / name,
            data if isinstance(data, bytes) else lambda fd: data(platform.identity_of(fd)),
            suffix=_TEMPORARY,
            durable=durable,
            mode=0o644,
        )
        if durable:
            self.sync_directory()

    def remove(self, name: str) -> None:
        """Delete a file, if it is there."""
        self._check_owner()
        (self._directory / name).unlink(missing_ok=True)

    def remove_unshared(self, name: str) -> bool:
        """Delete a file unless a reader holds its flock."""
        self._check_owner()
        path = self._directory / name
        try:
            file = _File(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except FileNotFoundError:
            return True
        try:
            fcntl.flock(file._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
        except BlockingIOError:
            return False
        finally:
            file.close()
        return True

    def sync_directory(self) -> None:
        """Force the names to the disk."""
        if self._opened_directory is not None and self._opened_directory._fd >= 0:
            _forced(os.fsync, self._opened_directory._fd)
            return
        with closing(_File(os.open(self._directory, os.O_RDONLY | os.O_CLOEXEC))) as directory:
            _forced(os.fsync, directory._fd)

    def boot_id(self) -> str:
        """Return the kernel's boot id."""
        return platform.boot_id()

    def path(self, name: str) -> str:
        """Return the file's path."""
        return str(self._directory / name)
