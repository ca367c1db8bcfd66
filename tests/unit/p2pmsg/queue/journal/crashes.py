"""A disk that a crash of the system leaves with what was forced to it, and any of the rest."""

import contextlib
import errno
import os
from pathlib import Path
from unittest import mock

from p2pmsg.queue.journal.file import FileJournal, QueueLogConfig
from p2pmsg.queue.journal.records import JournalState, push_record
from p2pmsg.queue.rules import QueuedJob

TORN = ("cut", "zeros")
WAYS = (*TORN, "hole")
"""What is where a file lacks something: nothing; zeros; zeros, and then what was written last."""


class Disk(contextlib.ExitStack):
    """Notes contents and names as of each fsync, while it is entered.

    Attributes:
        is_failing: whether each fsync fails from now on.
        synced: what was forced to the disk, in order: names of files, `.` for the folder's.

    """

    def __init__(self, folder):
        super().__init__()
        self._folder = Path(folder)
        self._contents, self._names = {}, {}
        self.is_failing = False
        self.synced = []

    def __enter__(self):
        for name in ("fsync", "fdatasync"):
            sync = self._noting(getattr(os, name))
            self.enter_context(mock.patch.object(os, name, sync))
        return self

    def _noting(self, sync):
        def noted(fd):
            if self.is_failing:
                raise OSError(errno.EIO, "Input/output error")
            sync(fd)
            path = Path(os.readlink(f"/proc/self/fd/{fd}"))
            if path.is_dir():
                self._names = {each.name: each.stat().st_ino for each in path.iterdir()}
                self.synced.append(".")
            else:
                inode = os.fstat(fd).st_ino
                self._contents[inode] = Path(f"/proc/self/fd/{fd}").read_bytes()
                self.synced.append(path.name)

        return noted

    def crash(self, choose, among):
        """Leave on the disk what is there for certain, and by chance more of it.

        `choose(low, high)` and `among(ways)` are chance.
        """
        there = {path.name: path for path in self._folder.iterdir() if path.name != "queue.lock"}
        for name, inode in self._names.items():
            is_deleted = name not in there and name.endswith(".log") and inode in self._contents
            if is_deleted and choose(0, 1):
                (self._folder / name).write_bytes(self._contents[inode])
        for name, path in there.items():
            inode = path.stat().st_ino
            is_named = self._names.get(name) == inode
            if not is_named and choose(0, 1) and name.endswith(".log"):
                path.unlink()
                continue
            data, kept = path.read_bytes(), self._contents.get(inode, b"")
            if not data.startswith(kept):
                continue  # written in place: any of both is there
            path.write_bytes(damaged(data, choose(len(kept), len(data)), among(WAYS)))


def damaged(data, kept, way):
    """Return `data` of which `kept` bytes are there for certain."""
    missing = len(data) - kept
    if way == "zeros":
        return data[:kept] + bytes(missing)
    if way == "hole":
        zeros = (missing + 1) // 2
        return data[:kept] + bytes(zeros) + data[kept + zeros :]
    return data[:kept]


def kept_of(data, changed, kept):
    """Return how many bytes are as they were, `kept` at least: some were zeros before."""
    while kept < len(changed) and changed[kept] == data[kept]:
        kept += 1
    return kept


def opened(folder, boot="boot 1", *, fsync="interval"):
    """Open a log with the smallest segments; return it and its state."""
    state = JournalState()
    settings = QueueLogConfig(directory=folder, segment_bytes=4096, fsync=fsync)
    times = {"dedup_window": 1e10, "fsync_interval": 1e6}
    return FileJournal(settings, state, boot=boot, **times), state


def push(journal, sequence, size=300):
    """Write the record of a job."""
    journal.append(push_record(QueuedJob(sequence, b"\x01" * size, 1000 + sequence)))


def keep_up(journal):
    """Do what a pusher does for its log next to its work."""
    if journal.due_ns == 0:
        journal.sync()
    while journal.has_to_empty:
        journal.copy(journal.read_oldest())
        journal.sync()
        journal.delete_oldest()
