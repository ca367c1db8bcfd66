"""Where a cursor is kept: a file that is appended to, or replaced as a whole.

It is the cursor's only I/O. All methods raise `OSError` where the operating system does.
"""

import os
from io import FileIO
from pathlib import Path
from typing import Protocol

from recovery.cursor import MAGIC, CursorLockedError
from recovery.durable import lock_file, make_folder, replace_file, sync_path, unlock_file


class CursorStore(Protocol):
    """One file that is appended to, or replaced as a whole."""

    @property
    def path(self) -> str:
        """Its name, for people."""

    def lock(self) -> None:
        """Keep others away until `close`, or the process's end; `CursorLockedError`."""

    def read(self) -> bytes | None:
        """Return what it holds, or None where there is none."""

    def replace(self, data: bytes) -> None:
        """Write it again as a whole; on the disk on return, and the former one until then."""

    def sync_folder(self) -> None:
        """Force its name to the disk."""

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
        self._file: FileIO | None = None
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

    def replace(self, data: bytes) -> None:
        """Replace the file; on the disk on return."""
        if self._file is not None:
            self._file.close()  # whatever comes of this, a new one is written next
        self._file = replace_file(self._path, data, suffix=".new")
        self.sync_folder()

    def sync_folder(self) -> None:
        """Force the file's name to the disk."""
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
        for file in (self._file, self._lock):
            if file is not None:
                file.close()
