"""Where a cursor is kept: a file, a step at a time, so that a crash at each of them can be tried.

It is the cursor's only I/O. All methods raise `OSError` where the operating system does.
"""

import os
from io import FileIO
from pathlib import Path
from typing import Protocol

from recovery.cursor import MAGIC, CursorLockedError
from recovery.durable import lock_file, make_folder, sync_path, unlock_file


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

    The lock is on another file, because renaming puts a new one in the place of the first. Files
    are objects, not descriptors, for Ctrl-C may come between any two steps: what it leaves behind
    is closed, once.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = os.path.realpath(path)
        self._new_path = self._path + ".new"
        self._file: FileIO | None = None
        self._new: FileIO | None = None
        self._lock: FileIO | None = None
        self._owner_pid = os.getpid()

    @property
    def path(self) -> str:
        """The file's absolute name."""
        return self._path

    def lock(self) -> None:
        """Make the folder if it is missing, and keep others away; `CursorLockedError`."""
        make_folder(os.path.dirname(self._path))
        try:
            self._lock = lock_file(self._path + ".lock")
        except BlockingIOError as error:
            raise CursorLockedError("another subscriber has it") from error

    def read(self) -> bytes | None:
        """Return what the file holds, or None where there is none."""
        try:
            self._file = FileIO(self._path, "r+")
        except FileNotFoundError:
            return None
        beginning = self._file.read(len(MAGIC))
        # Of a file that is something else, and may be of any size, this is enough.
        return beginning if beginning != MAGIC else beginning + self._file.readall()

    def write_new(self, data: bytes) -> None:
        """Write a new file beside it."""
        if self._new is not None:
            self._new.close()
        self._new = FileIO(self._new_path, "w")
        left = memoryview(data)
        while left:
            left = left[self._new.write(left) :]

    def sync_new(self) -> None:
        """Force the new file to the disk."""
        assert self._new is not None
        os.fsync(self._new)

    def rename_new(self) -> None:
        """Put the new file in its place."""
        if self._file is not None:
            self._file.close()  # whatever comes of this, a new one is written next
        os.replace(self._new_path, self._path)
        self._file, self._new = self._new, None

    def sync_folder(self) -> None:
        """Force the renaming to the disk."""
        sync_path(os.path.dirname(self._path))

    def append(self, data: bytes) -> None:
        """Write behind the file's end, where the last one who wrote or read has stopped."""
        assert self._file is not None
        if self._file.write(data) != len(data):
            raise OSError("it could be written in part only")

    def sync(self) -> None:
        """Force what was appended to the disk; `OSError` where the file is not there any more."""
        assert self._file is not None
        os.fsync(self._file)
        if not os.path.samestat(os.stat(self._path), os.fstat(self._file.fileno())):
            raise OSError("another file has taken its place")

    def close(self) -> None:
        """Let go of the file and the lock; in a forked child, of its copies only."""
        if self._lock is not None and os.getpid() == self._owner_pid:
            unlock_file(self._lock)
        for file in (self._file, self._new, self._lock):
            if file is not None:
                file.close()
