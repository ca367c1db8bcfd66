"""Where a cursor's file is: on a disk, which is the cursor's only I/O, or in memory for tests."""

import os
from io import FileIO
from pathlib import Path
from random import Random

from recovery.cursor import MAGIC
from recovery.durable import lock_file, replace_file, require_folder, sync_path, unlock_file
from recovery.errors import RecoveryError


class CursorFileStore:
    """A real file, locked by `flock` on a file next to it.

    The lock is on another file, because renaming puts a new one in the place of the first. Files
    are objects, not descriptors, for Ctrl-C may come between any two steps: what it leaves
    is closed, once.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = os.path.realpath(path)
        self._file: FileIO | None = None
        self._lock: FileIO | None = None

    @property
    def path(self) -> str:
        """The file's absolute name."""
        return self._path

    def lock(self) -> None:
        """Keep others away; `RecoveryError`, `OSError` where there is no such folder."""
        require_folder(os.path.dirname(self._path))
        try:
            self._lock = lock_file(self._path + ".lock")
        except BlockingIOError as error:
            raise RecoveryError("another subscriber has it") from error

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
        """Append to the file, whose end is where it was read or written last."""
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
        if self._lock is not None:
            unlock_file(self._lock)
        if self._file is not None:
            self._file.close()


class MemoryCursorStore:
    """A file in memory. One object is the disk through all incarnations of its processes.

    Attributes:
        path: a name, for people.
        data: what a process reads; None: there is no file.
        durable: what of it is certain to outlive the operating system.
        failing: what raises, by step: `append`, `sync`, and those of `replace`, which are
            `write_new`, `sync_new`, `rename_new` and `sync_folder`. What writes writes half of its
            bytes before, as a full disk does.

    """

    def __init__(self, path: str = "memory") -> None:
        self.path = path
        self.data: bytes | None = None
        self.durable: bytes | None = None
        self.failing: dict[str, BaseException] = {}
        self._renamed: bytes | None = None
        self._locked = False

    def lock(self) -> None:
        """Keep others away; `RecoveryError`."""
        if self._locked:
            raise RecoveryError("another subscriber has it")
        self._locked = True

    def read(self) -> bytes | None:
        """Return what the file holds, or None where there is none."""
        return self.data

    def replace(self, data: bytes) -> None:
        """Replace the file; the operating system may forget that, until its name is forced."""
        for step in ("write_new", "sync_new", "rename_new"):
            self._step(step)
        self.data = self._renamed = data
        self.sync_folder()

    def sync_folder(self) -> None:
        """Force the file's name to the disk."""
        self._step("sync_folder")
        if self._renamed is not None:
            self.durable, self._renamed = self._renamed, None

    def append(self, data: bytes) -> None:
        """Append to the file."""
        before = self.data or b""
        self.data = before + data[: len(data) // 2]
        self._step("append")
        self.data = before + data

    def sync(self) -> None:
        """Force what was appended to the disk."""
        self._step("sync")
        self.durable = self.data

    def close(self) -> None:
        """Let go of it."""
        self._locked = False

    def kill(self) -> None:
        """Let the process die: what it wrote stays."""
        self._locked = False

    def crash(self, rng: Random) -> None:
        """Let the operating system die: what was not forced to the disk is there in part.

        A renaming is or is not; of what was appended there is a beginning, and perhaps rubbish.
        """
        self._locked = False
        if self._renamed is not None and rng.random() < 0.5:
            self.durable = self._renamed
        kept = self.durable or b""
        if self.data is not None and self._renamed is None and self.data.startswith(kept):
            rest = bytearray(self.data[len(kept) :])
            if rng.random() < 0.7:
                del rest[int(rng.random() * (len(rest) + 1)) :]
            if rest and rng.random() < 0.3:
                at = int(rng.random() * len(rest))
                rest[at:] = bytes(len(rest) - at)
            kept += rest
        self.data = None if self.durable is None else kept
        self.durable, self._renamed = self.data, None

    def _step(self, name: str) -> None:
        error = self.failing.get(name)
        if error is not None:
            raise error
