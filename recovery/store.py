"""One file of SQLite, for all that a peer must not forget and that is in no log.

It is crash-safe by SQLite's own journal (WAL), and while it is open no other process, and nobody
else in this one, can open it. `sqlite3 FILE` shows what is in it once it is closed.

A forked child never touches what its parent has open, and cannot open the same file.
"""

import ctypes
import errno
import os
import sqlite3
import stat
import threading
import zlib
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final
from weakref import WeakSet

from recovery.durable import replace_file, require_folder, sync_path
from recovery.errors import RecoveryError, StoreInUseError

_PAGE_BYTES: Final = 512
"""The smallest, since a commit writes each page that it changes as a whole."""
_JOURNAL_PAGES: Final = 16_384
"""How much is written until the journal is brought into the file, which takes two fsyncs."""
_SHARED_WAIT_S: Final = 30.0
_DAMAGED: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_IN_USE: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_ERRNO: Final = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_IOERR: errno.EIO,
    sqlite3.SQLITE_NOMEM: errno.ENOMEM,
    sqlite3.SQLITE_READONLY: errno.EROFS,
    sqlite3.SQLITE_CANTOPEN: errno.EACCES,
}

Row = tuple[Any, ...]


class Store:
    """An open file, for any thread: one waits for the other.

    Python's own module does not hold this: who closes a connection that another thread is in ends
    the process by a segmentation fault.

    Every method raises `OSError` where the disk is full or fails, or the file was damaged since.
    An exception at any line leaves a write done or not done, and the store usable.

    Args:
        path: the file's name, for people.
        database: its connection.
        place: which file that is; None: it is in memory.

    """

    def __init__(
        self, path: str, database: sqlite3.Connection, place: os.stat_result | None = None
    ) -> None:
        self.path = path
        self._database = database
        self._cursor = database.cursor()  # one for each statement takes its time
        self._execute = self._cursor.execute
        self._place = place
        self._pid = os.getpid()
        self._is_durable: bool | None = None
        self._lock = threading.RLock()
        _opened.add(self)

    def rows(self, statement: str, values: Row = ()) -> list[Any]:
        """Return what a statement finds."""
        try:
            with self._lock:
                return self._database.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise _as_os_error(error) from error

    def write(self, *changes: tuple[str, Sequence[Row]], durable: bool) -> None:
        """Do each statement for each of its rows; all is done, or nothing.

        It outlasts the process, and if `durable` a crash of the operating system; without, such a
        crash may take back this and later ones, and never a part of one.
        """
        database = self._database
        with self._lock:
            try:
                if database.in_transaction:
                    database.rollback()  # an exception cut the former one short
                if durable is not self._is_durable:
                    self._is_durable = None
                    database.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
                    self._is_durable = durable
                if len(changes) == len(changes[0][1]) == 1:
                    self._execute(changes[0][0], changes[0][1][0])
                else:
                    database.execute("BEGIN IMMEDIATE")
                    for statement, rows in changes:
                        database.executemany(statement, rows)
                    database.execute("COMMIT")
            except sqlite3.Error as error:
                with suppress(sqlite3.Error):
                    database.rollback()
                raise _as_os_error(error) from error
        if durable:
            self._check_place()

    def sync(self) -> None:
        """Force what was written to the disk."""
        try:
            with self._lock:
                self._database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        except sqlite3.Error as error:
            raise _as_os_error(error) from error
        self._check_place()

    def close(self) -> None:
        """Close it; it may be called again. Nothing in a forked child, whose parent has it."""
        if self._pid != os.getpid():
            return
        with self._lock:
            with suppress(sqlite3.ProgrammingError):  # it is closed already
                self._cursor.close()  # a statement that failed is in it, and keeps the file open
            self._database.close()

    def keep(self) -> None:
        """Never close it: for a forked child, where SQLite would write to the parent's file."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._database))

    def _check_place(self) -> None:
        """Raise where the file was deleted or replaced: what is written is in no file then."""
        if self._place is not None and not os.path.samestat(os.stat(self.path), self._place):
            raise OSError(errno.ESTALE, "another file has taken its place")


_opened: Final[WeakSet[Store]] = WeakSet()


def open_store(
    path: str | os.PathLike[str], tables: str, *, shared: bool = False, mode: int = 0o666
) -> Store:
    """Open a file, which is made where it is missing; so is nothing above it.

    Args:
        path: the file.
        tables: statements that make its tables. A file with other ones is refused.
        shared: whether others may open it, too; each write then waits for theirs, 30 s at most.
        mode: of a new file, less the umask.

    Raises:
        StoreInUseError: another process, or another part of this one, has it.
        RecoveryError: it is no such file, or damaged; it stays as it is.
        OSError: it cannot be read or written.

    """
    name, kind = os.path.realpath(path), zlib.crc32(tables.encode()) >> 1
    require_folder(os.path.dirname(name))
    if not os.path.exists(name):
        for end in ("-wal", "-journal", "-shm"):
            Path(f"{name}{end}").unlink(missing_ok=True)  # of one that was deleted
        replace_file(name, _make(tables, kind), suffix=".new", mode=mode)
        sync_path(os.path.dirname(name))
    # It must not be opened here: closing it would end the locks that this process has on it.
    place = os.stat(name)
    if stat.S_ISDIR(place.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not place.st_size:
        raise RecoveryError("it is empty")
    database = None
    try:
        database = sqlite3.connect(
            f"{Path(name).as_uri()}?mode=rw", uri=True, isolation_level=None,
            timeout=_SHARED_WAIT_S if shared else 0.0, check_same_thread=False,
        )  # fmt: skip
        _prepare(database, kind, shared=shared)
    except BaseException as error:
        if database is not None:
            database.close()
        if isinstance(error, sqlite3.Error):
            raise _refusal(error) from error
        if isinstance(
            error, UnicodeDecodeError
        ):  # of SQLite's message, which names what is damaged
            raise RecoveryError("it is damaged: a name in it is not UTF-8") from error
        raise
    return Store(name, database, place)


def _make(tables: str, kind: int) -> bytes:
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute(f"PRAGMA page_size={_PAGE_BYTES}")
        database.execute(f"PRAGMA application_id={kind}")
        database.executescript(tables)
        return database.serialize()


def _prepare(database: sqlite3.Connection, kind: int, *, shared: bool) -> None:
    if not shared:
        database.execute("PRAGMA locking_mode=EXCLUSIVE")
    if database.execute("PRAGMA application_id").fetchone() != (kind,):
        raise RecoveryError("it is a database of another kind, or version")
    database.execute("PRAGMA journal_mode=WAL")
    database.execute(f"PRAGMA wal_autocheckpoint={_JOURNAL_PAGES}")
    wrong = database.execute("PRAGMA quick_check(1)").fetchone()[0]
    if wrong != "ok":
        raise RecoveryError(f"it is damaged: {wrong}")


def _refusal(error: sqlite3.Error) -> RecoveryError | OSError:
    """Return why a file cannot be opened."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in _IN_USE:
        return StoreInUseError("another process, or another part of this one, has it")
    if code in _DAMAGED:
        return RecoveryError(f"it is damaged, or no database: {error}")
    return _as_os_error(error)


def _as_os_error(error: sqlite3.Error) -> OSError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return OSError(_ERRNO.get(code), str(error))


def _keep_in_child() -> None:
    for store in list(_opened):
        store.keep()


os.register_at_fork(after_in_child=_keep_in_child)
