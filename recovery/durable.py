"""Files and folders that outlast a crash of the operating system, and locks that end with it."""

import fcntl
import os
from io import FileIO


def make_folder(path: str | os.PathLike[str]) -> None:
    """Make a folder, and those above it, where they are missing, and bring their names to the disk.

    A file whose folder a crash takes away is gone, however often it was forced to the disk itself.
    A folder that may be written and not read cannot be forced there; it is left to the system.

    Raises:
        OSError: one could not be made.

    """
    made, place = [], os.path.abspath(path)
    while not os.path.isdir(place) and os.path.dirname(place) != place:
        made.append(place)
        place = os.path.dirname(place)
    os.makedirs(path, exist_ok=True)
    for name in made:
        _sync_names(os.path.dirname(name))


def _sync_names(folder: str) -> None:
    try:
        sync_path(folder)
    except PermissionError:
        pass


def sync_path(path: str | os.PathLike[str]) -> None:
    """Force a file, or the names in a folder, to the disk; raises `OSError`."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def lock_file(path: str | os.PathLike[str]) -> FileIO:
    """Make a file where it is missing, and lock it until `unlock_file`, or the process's end.

    Raises:
        BlockingIOError: another process, or object, has it.
        OSError: it cannot be locked.

    """
    file = FileIO(os.fspath(path), "a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        file.close()
        raise
    return file


def unlock_file(file: FileIO) -> None:
    """Unlock a file and close it. A forked child closes its copy only: the lock is its parent's."""
    if not file.closed:
        fcntl.flock(file, fcntl.LOCK_UN)  # a child may not have closed its copy yet
    file.close()
