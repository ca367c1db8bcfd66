"""A file of SQLite that one process writes, and others may read."""

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from p2pmsg.errors import LogFormatError

_WAIT_S: Final = 30.0
_MODE: Final = 0o600
"""Messages are in it: for its owner alone, also where it is copied out of its folder."""


def open_database(path: str | Path, tables: str, *, synchronous: str) -> sqlite3.Connection:
    """Return a file's connection, for any thread; the file and its tables are made if missing.

    Args:
        path: the file.
        tables: statements that make the tables.
        synchronous: `FULL`: a commit is on the disk when it returns; `NORMAL`: it outlasts the
            process, and not always a crash of the operating system.

    Raises:
        LogFormatError: the file is something else.
        OSError: it cannot be read or written.

    """
    # Only a new file is opened here: closing another one would end the locks of this process.
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE))
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    database = sqlite3.connect(path, timeout=_WAIT_S, isolation_level=None, check_same_thread=False)
    try:
        with as_os_errors():
            database.execute("PRAGMA journal_mode=WAL")
            database.execute(f"PRAGMA synchronous={synchronous}")
            database.executescript(tables)
    except BaseException as error:
        database.close()
        if isinstance(error.__cause__, sqlite3.OperationalError | None):
            raise
        raise LogFormatError(os.fspath(path), 0, f"{path}: {error.__cause__}") from error
    return database


@contextmanager
def as_os_errors() -> Iterator[None]:
    """Raise what SQLite does as `OSError`, which is tried again, also where a file was damaged."""
    try:
        yield
    except sqlite3.Error as error:
        raise OSError(None, str(error)) from error


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Write all that is done in it, or nothing; raises as `as_os_errors`."""
    with as_os_errors(), database:
        database.execute("BEGIN IMMEDIATE")
        yield database
