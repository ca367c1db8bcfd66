"""Where a log's files are: the one place of `recovery` that knows the operating system."""

import errno
import fcntl
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from mmap import mmap
from pathlib import Path
from typing import Final, Protocol, runtime_checkable
from weakref import WeakSet

from recovery import platform
from recovery.durable import make_folder, replace_file
from recovery.errors import LogLockedError, SyncFailedError, lacks_means

_LOCK: Final = "lock"
_TEMPORARY: Final = ".tmp"
_RESERVE_FROM: Final = 1024 * 1024
_RESERVE_BYTES: Final = 16 * 1024 * 1024
_SPARES: Final = 4
"""Descriptors in reserve: for a segment, its index, the state, and one more."""
_WRITTEN_MAX: Final = 8
"""Files that were written last, and can be synced without being opened."""
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

    def uncache(self, start: int, stop: int) -> None:
        """Let the system forget `[start, stop)`, which is on the disk, until somebody reads it."""

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

    def identity(self, name: str | None = None) -> str:
        """Return what no copy of a file has; None: the lock file, where it is locked."""

    def replace(self, name: str, data: bytes | Callable[[str], bytes], *, durable: bool) -> None:
        """Replace a file: after a crash it is the old one or the new one, if `durable`.

        A callable is given the identity that the file will have, and returns its content.
        """

    def remove(self, name: str) -> None:
        """Delete a file, if it is there."""

    def remove_unshared(self, name: str) -> bool:
        """Delete a file unless somebody reads it; return whether it is gone."""

    def sync_file(self, name: str) -> None:
        """Force a file to the disk, if possible without opening it.

        Raises:
            SyncFailedError: as `LogFile.sync`.
            OSError: it cannot be opened just now.

        """

    def sync_directory(self) -> None:
        """Force the names to the disk; raises as `sync_file`."""

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

    def uncache(self, start: int, stop: int) -> None:
        platform.drop_cached(self._fd, start, stop - start)

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

    def detach(self) -> int:
        """Give the descriptor away."""
        fd, self._fd = self._fd, -1
        return fd

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
    """A directory of the operating system.

    Args:
        directory: the directory; `lock` makes it.
        guard: held while the files in reserve change. Default: none, for one thread.

    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        guard: AbstractContextManager[object] | None = None,
    ) -> None:
        self._directory = Path(directory)
        self._guard = nullcontext() if guard is None else guard
        self._lock: _File | None = None
        self._opened_directory: _File | None = None
        self._written: OrderedDict[str, _File] = OrderedDict()
        self._spares: list[tuple[Path, _File]] = []
        self._spare_number = 0

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
        self._keep_spares()

    def unlock(self) -> None:
        """Let another one write."""
        if self._lock is not None:
            self._let_go(is_owner=self._lock._fd >= 0)
            if self._lock._fd >= 0:
                # A child that was forked just now may not have closed its own copy yet.
                fcntl.flock(self._lock._fd, fcntl.LOCK_UN)
            self._lock.close()
            self._lock = None

    def _check_owner(self) -> None:
        if self._lock is not None and self._lock._fd < 0:
            raise OSError(errno.EBADF, "a forked child cannot write its parent's log")

    def names(self) -> list[str]:
        """Return the names of all files, except the spare ones."""
        spares = {path.name for path, _ in self._spares}
        return [name for name in os.listdir(self._directory) if name not in spares]

    def open(self, name: str, *, create: bool = False) -> _File:
        """Open a file; one to write where no descriptor is left, too."""
        path = self._directory / name
        if not create:
            return _File(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        file = self._open_new(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        self._written.pop(name, None)
        try:
            # So that it can be synced without being opened; it is of the same open file.
            self._written[name] = self._copy(file)
        except OSError:
            if not file.size():
                self._take_back(path, file)
                raise
        while len(self._written) > _WRITTEN_MAX:
            self._written.popitem(last=False)  # closed when nobody syncs it any more
        return file

    def _open_new(self, path: Path, flags: int) -> _File:
        """Open a file to write, or turn a spare one into it where no descriptor is left."""
        with self._guard:
            try:
                file = _File(os.open(path, flags, 0o644))
            except OSError as error:
                if not lacks_means(error) or not self._spares or path.exists():
                    raise
                spare, file = self._spares.pop()
                os.replace(spare, path)
            self._keep_spares()
        return file

    def _keep_spares(self) -> None:
        """Keep empty files open, for when no descriptor is left."""
        while self._lock is not None and len(self._spares) < _SPARES:
            path = self._spare_path()
            try:
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            except OSError:
                return  # another time
            self._spares.append((path, _File(fd)))

    def _copy(self, file: _File) -> _File:
        """Copy a descriptor, where none is left onto one in reserve."""
        try:
            return _File(os.dup(file._fd))
        except OSError as error:
            with self._guard:
                if not lacks_means(error) or not self._spares:
                    raise
                path, spare = self._spares.pop()
            # In one step: were the spare one closed first, a connection could take its descriptor.
            os.dup2(file._fd, spare._fd, inheritable=False)
            path.unlink(missing_ok=True)
            return spare

    def _take_back(self, path: Path, file: _File) -> None:
        """Turn a new file into one in reserve, since it could not be synced."""
        with self._guard:
            spare = self._spare_path()
            os.replace(path, spare)
            self._spares.append((spare, file))

    def _spare_path(self) -> Path:
        self._spare_number += 1
        return self._directory / f"spare-{self._spare_number}{_TEMPORARY}"

    def _let_go(self, *, is_owner: bool) -> None:
        """Close what is kept open; in a forked child the files are its parent's."""
        for path, file in self._spares:
            file.close()
            if is_owner:
                path.unlink(missing_ok=True)
        self._spares.clear()
        self._written.clear()
        if self._opened_directory is not None:
            if is_owner:
                with suppress(OSError):
                    fcntl.flock(self._opened_directory._fd, fcntl.LOCK_UN)
            self._opened_directory.close()
            self._opened_directory = None

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

    def identity(self, name: str | None = None) -> str:
        """Return what distinguishes a file from its copy: its inode, and when that was made.

        A number alone is given to another file when this one is deleted. The other times of a file
        change with its owner and its rights.
        """
        if name is None:
            assert self._lock is not None
            return platform.identity_of(self._lock._fd)
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
            opener=lambda path, flags: self._open_new(Path(path), flags).detach(),
        ).close()
        if durable:
            self.sync_directory()

    def remove(self, name: str) -> None:
        """Delete a file, if it is there."""
        self._check_owner()
        self._written.pop(name, None)
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
            # Before it is deleted: a sync of what was deleted counts as one that failed.
            self._written.pop(name, None)
            path.unlink(missing_ok=True)
        except BlockingIOError:
            return False
        finally:
            file.close()
        return True

    def sync_file(self, name: str) -> None:
        """Force a file to the disk, by the descriptor that it was written with if it is kept."""
        file = self._written.get(name)
        if file is not None and file._fd >= 0:
            file.sync()
            return
        with closing(self.open(name)) as opened:
            opened.sync()

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
