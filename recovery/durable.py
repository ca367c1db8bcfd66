"""Files and folders that outlast a crash of the operating system, and locks that end with it."""

import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from io import FileIO
from typing import Final
from weakref import WeakKeyDictionary

_locked: Final[WeakKeyDictionary[FileIO, int]] = WeakKeyDictionary()
"""By which process each was locked."""


def make_folder(path: str | os.PathLike[str]) -> None:
    """Make a folder where it is missing, and bring its name to the disk.

    A file whose folder a crash takes away is gone, however often it was forced to the disk itself.
    A folder that may be written and not read cannot be forced there; it is left to the system.
    Folders above it are not made: where one is missing, the path was mistyped.

    Raises:
        FileNotFoundError: there is no folder above it, which the error names.
        OSError: it could not be made.

    """
    place = os.path.abspath(path)
    if not os.path.isdir(place):
        require_folder(os.path.dirname(place))
        try:
            os.mkdir(place)
        except FileExistsError:
            require_folder(place)  # another process has made it, or it is a file
        with suppress(PermissionError):
            sync_path(os.path.dirname(place))


def require_folder(path: str | os.PathLike[str]) -> None:
    """Raise `FileNotFoundError` where a folder is missing, `NotADirectoryError` for a file."""
    try:
        os.scandir(name := os.fspath(path) or ".").close()
    except FileNotFoundError as error:  # many callers say the reason without the name
        raise FileNotFoundError(error.errno, f"there is no directory {name!r}") from error
    except PermissionError:
        pass  # it may be written, and not read


def sync_path(path: str | os.PathLike[str]) -> None:
    """Force a file, or the names in a folder, to the disk; raises `OSError`."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace_file(
    path: str | os.PathLike[str],
    data: bytes | Callable[[int], bytes],
    *,
    suffix: str = ".tmp",
    durable: bool = True,
    mode: int = 0o666,
) -> FileIO:
    """Replace a file as a whole: after a crash it is the old one or, if `durable`, the new one.

    It is written as `path` with a `suffix`, and renamed. The caller forces the new name to the
    disk, by `sync_path` of the folder, and closes the file that is returned.

    `data` is its content, or returns it when given the descriptor of the new file, which has
    `mode`, less the umask. Raises `OSError` where it could not be written; the old file stays.
    """
    new_path = os.fspath(path) + suffix
    file = write_file(new_path, data, durable=durable, mode=mode)
    try:
        os.replace(new_path, path)
    except BaseException:
        discard_file(file, new_path)
        raise
    return file


def write_file(
    path: str | os.PathLike[str],
    data: bytes | Callable[[int], bytes],
    *,
    durable: bool = True,
    mode: int = 0o666,
) -> FileIO:
    """Write a file and, if `durable`, force it to the disk; where that fails, it is removed.

    The arguments, and the file that is returned, are those of `replace_file`. Raises `OSError`.
    """
    name = os.fspath(path)
    file = FileIO(name, "w+", opener=lambda name, flags: os.open(name, flags, mode))
    try:
        write_all(file, data if isinstance(data, bytes) else data(file.fileno()))
        if durable:
            os.fsync(file.fileno())
    except BaseException:
        discard_file(file, name)
        raise
    return file


def write_all(file: FileIO, data: bytes) -> None:
    """Write all of `data`, of which one call may write a part; raises `OSError`."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def discard_file(file: FileIO, path: str | os.PathLike[str]) -> None:
    """Close a file and remove it, as far as that is possible."""
    file.close()
    with suppress(OSError):
        os.unlink(path)


def lock_file(path: str | os.PathLike[str], *, waits: bool = False) -> FileIO:
    """Make a file where it is missing, and lock it until `unlock_file`, or the process's end.

    The file is for the lock alone: it gets the number of this process, for `holder_of`. With
    `waits` it is waited for where another one has it. In a forked child its copy of the file is
    closed.

    Raises:
        BlockingIOError: another process, or object, has it.
        OSError: it cannot be locked.

    """
    file = FileIO(os.fspath(path), "a")
    _locked[file] = os.getpid()
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
    except BaseException:
        file.close()
        raise
    with suppress(OSError):  # a full disk: the lock holds without it
        file.truncate(0)
        file.write(b"%d\n" % os.getpid())
    return file


def holder_of(path: str | os.PathLike[str]) -> int | None:
    """Return the number of the process that has locked a file; None where it is not known."""
    try:
        with FileIO(os.fspath(path)) as file:
            return int(file.read(20))
    except (OSError, ValueError):
        return None


def unlock_file(file: FileIO) -> None:
    """Unlock a file and close it; nothing in a forked child, where the lock is its parent's."""
    if not file.closed and _locked.get(file) == os.getpid():
        fcntl.flock(file, fcntl.LOCK_UN)  # a child may not have closed its copy yet
    file.close()


def _close_in_child() -> None:
    """Close the copies: with them a child would keep the locks of a parent that has died."""
    for file in list(_locked):
        file.close()


os.register_at_fork(after_in_child=_close_in_child)
