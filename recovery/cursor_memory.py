"""A cursor's file in memory, with crashes and a disk that fails: for tests and the simulator."""

from random import Random

from recovery.cursor import CursorLockedError


class MemoryCursorStore:
    """A file in memory. One object is the disk through all lives of its processes.

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
        """Keep others away; `CursorLockedError`."""
        if self._locked:
            raise CursorLockedError("another subscriber has it")
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
        """Write behind the file's end."""
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
