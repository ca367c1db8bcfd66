"""A `recovery.store.Store` in memory, whose process and operating system may die."""

import sqlite3
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from recovery.errors import StoreInUseError
from recovery.store import Row, Store

_STATES_MAX: Final = 100


class MemoryStoreFile:
    """A file. One object is the disk through all incarnations of its processes.

    Args:
        path: a name, for people.
        step: called right before and right after each write; it may raise.

    Attributes:
        states: what the file may hold after a crash of the operating system; the last one is what
            a process reads; empty: there is no file.
        failing: what raises instead: `open`, `write`, `sync`.

    """

    def __init__(self, path: str = "memory", step: Callable[[], None] = lambda: None) -> None:
        self.path = path
        self.step = step
        self.states: list[bytes] = [b""]
        self.failing: dict[str, BaseException] = {}
        self.user: Store | None = None

    def open(self, tables: str) -> Store:
        """Open it, as `open_store` does."""
        if self.user is not None:
            raise StoreInUseError("another process, or another part of this one, has it")
        self.check("open")
        database = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        if self.states[-1]:
            database.deserialize(self.states[-1])
        else:
            database.execute("PRAGMA page_size=512")
            database.executescript(tables)
            self.states = [database.serialize()]
        self.user = _MemoryStore(self, database)
        return self.user

    def on_written(self, state: bytes, *, durable: bool) -> None:
        """Take what is in the file now."""
        self.states = [state] if durable else [*self.states, state]
        del self.states[1:-_STATES_MAX]

    def check(self, operation: str) -> None:
        """Raise what was put into `failing`."""
        if operation in self.failing:
            raise self.failing[operation]

    def kill(self) -> None:
        """Let the process die: what it wrote stays."""
        self.user = None

    def crash(self, rng: Random | None = None) -> None:
        """Let the operating system die: what was not forced to the disk is gone, or some of it."""
        self.kill()
        self.states = [self.states[0] if rng is None else rng.choice(self.states)]


class _MemoryStore(Store):
    def __init__(self, file: MemoryStoreFile, database: sqlite3.Connection) -> None:
        super().__init__(file.path, database)
        self._file = file

    def write(self, *changes: tuple[str, Sequence[Row]], durable: bool) -> None:
        self._file.step()
        self._file.check("write")
        super().write(*changes, durable=durable)
        self._file.on_written(self._database.serialize(), durable=durable)
        self._file.step()

    def sync(self) -> None:
        self._file.check("sync")
        del self._file.states[:-1]

    def close(self) -> None:
        super().close()
        if self._file.user is self:
            self._file.user = None
