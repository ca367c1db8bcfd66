"""Where a cursor is kept: a file, a step at a time, so that a crash at each of them can be tried.

It is the cursor's only I/O. All methods raise `OSError` where the operating system does.
"""

import fcntl
import os
from pathlib import Path
from typing import Final, Protocol

from recovery.cursor import MAGIC, CursorLockedError

_FLAGS: Final = os.O_CLOEXEC | os.O_APPEND
_MODE: Final = 0o644


class CursorStore(Protocol):
    """One file that is appended to, or replaced as a whole."""

    @property
    def path(self) -> str:
        """Its name, for people."""

    def lock(self) -> None:
        """Keep others away until `close`, or the process's end; `CursorLockedError`."""

    def read(self) -> bytes | None:
        """Return what it holds, or None where there is none."""

    def write_new(self, data: bytes) -> None:
        """Write a new file beside it."""

    def sync_new(self) -> None:
        """Force the new file to the disk."""

    def rename_new(self) -> None:
        """Put the new file in its place, at once and as a whole."""

    def sync_folder(self) -> None:
        """Force the renaming to the disk."""

    def append(self, data: bytes) -> None:
        """Write behind its end."""

    def sync(self) -> None:
        """Force what was appended to the disk."""

    def close(self) -> None:
        """Let go of it, and of the lock; it may be called again."""


class CursorFileStore:
    """A real file, locked by `flock` on a file beside it.

    The lock is on another file, because renaming puts a new one in the place of the first.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = os.path.realpath(path)
        self._new = self._path + ".new"
        self._lock_fd = self._fd = self._new_fd = -1

    @property
    def path(self) -> str:
        """The file's absolute name."""
        return self._path

    def lock(self) -> None:
        """Make the folder if it is missing, and keep others away; `CursorLockedError`."""
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        lock_fd = os.open(self._path + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _MODE)
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(lock_fd)
            raise CursorLockedError("another subscriber has it") from error
        except BaseException:
            os.close(lock_fd)
            raise
        self._lock_fd = lock_fd

    def read(self) -> bytes | None:
        """Return what the file holds, or None where there is none."""
        try:
            self._fd = os.open(self._path, os.O_RDWR | _FLAGS)
        except FileNotFoundError:
            return None
        with open(self._path, "rb") as file:
            beginning = file.read(len(MAGIC))
            # Of a file that is something else, and may be of any size, this is enough.
            return beginning if beginning != MAGIC else beginning + file.read()

    def write_new(self, data: bytes) -> None:
        """Write a new file beside it."""
        if self._new_fd >= 0:
            os.close(self._new_fd)
            self._new_fd = -1
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _FLAGS
        self._new_fd = os.open(self._new, flags, _MODE)
        _write(self._new_fd, data)

    def sync_new(self) -> None:
        """Force the new file to the disk."""
        os.fsync(self._new_fd)

    def rename_new(self) -> None:
        """Put the new file in its place."""
        os.replace(self._new, self._path)
        former, self._fd, self._new_fd = self._fd, self._new_fd, -1
        if former >= 0:
            os.close(former)

    def sync_folder(self) -> None:
        """Force the renaming to the disk."""
        folder = os.open(os.path.dirname(self._path), os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def append(self, data: bytes) -> None:
        """Write behind the file's end."""
        if os.write(self._fd, data) != len(data):
            raise OSError("it could be written in part only")

    def sync(self) -> None:
        """Force what was appended to the disk; `OSError` where the file is not there any more."""
        os.fsync(self._fd)
        if not os.path.samestat(os.stat(self._path), os.fstat(self._fd)):
            raise OSError("another file has taken its place")

    def close(self) -> None:
        """Let go of the file and the lock.

        In a forked child this leaves the parent's lock alone.
        """
        descriptors = (self._fd, self._new_fd, self._lock_fd)
        self._fd = self._new_fd = self._lock_fd = -1
        for descriptor in descriptors:
            if descriptor >= 0:
                os.close(descriptor)


def _write(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]
