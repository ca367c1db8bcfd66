"""Folders that are to be there after a crash of the operating system, too."""

import os


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
        fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    except PermissionError:
        return
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
