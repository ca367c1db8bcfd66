"""A file of SQLite for what a program must not forget: crash-safe, and of one program at a time.

Peers keep their positions and losses in such files. `sqlite3 FILE` shows what is in one that is
closed.
"""

import os

import recovery.store
from p2pmsg.errors import LogFormatError, LogInUseError
from recovery.durable import make_folder
from recovery.errors import RecoveryError, StoreInUseError
from recovery.store import Row, Store

__all__ = ["Row", "Store", "make_folder", "open_store"]


def open_store(
    path: str | os.PathLike[str],
    tables: str,
    *,
    shared: bool = False,
    used_by: str = "another program",
) -> Store:
    """Open a file for its owner alone, which is made where it is missing; its folder is not.

    Args:
        path: the file.
        tables: statements that make its tables. A file with other ones is refused.
        shared: whether others may open it, too; each write then waits for theirs, 30 s at most.
            Default False.
        used_by: who may have it, for the error.

    Raises:
        LogInUseError: another process, or another part of this one, has it.
        LogFormatError: it is no such file, or damaged; it stays as it is.
        OSError: it cannot be read or written; so all methods of the store.

    """
    try:
        return recovery.store.open_store(path, tables, shared=shared, mode=0o600)
    except StoreInUseError as error:
        raise LogInUseError(os.fspath(path), "the file", used_by) from error
    except RecoveryError as error:
        raise LogFormatError(os.fspath(path), 0, f"{path}: {error}") from error
