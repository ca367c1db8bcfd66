"""Files and folders that outlast a crash of the operating system, and locks that end with it."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO


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
) -> None:
    """Replace a file as a whole: after a crash it is the old one or, if `durable`, the new one.

    It is written as `path` with a `suffix`, and renamed. The caller forces the new name to the
    disk, by `sync_path` of the folder.

    `data` is its content, or returns it when given the descriptor of the new file, which has
    `mode`, less the umask. Raises `OSError` where it could not be written; the old file stays.
    """
    name = os.fspath(path) + suffix
    with FileIO(name, "w+", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        try:
            left = memoryview(data if isinstance(data, bytes) else data(file.fileno()))
            while left:
                left = left[file.write(left) :]  # one call may write a part
            if durable:
                os.fsync(file.fileno())
            os.replace(name, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(name)
            raise


@contextmanager
def lock_file(path: str | os.PathLike[str]) -> Iterator[None]:
    """Lock a file, made where it is missing, during a `with`; another's lock is waited for.

    Raises:
        OSError: it cannot be locked.

    """
    with FileIO(os.fspath(path), "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # a child that was forked meanwhile has a copy
