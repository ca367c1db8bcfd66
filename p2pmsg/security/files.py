"""The files that say who is who and who may what: regular ones only, read without ever waiting."""

import errno
import os
import stat
import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from p2pmsg.errors import ConfigError
from transports.own_log import own_log as _log

FILE_BYTES_MAX: Final = 4 * 2**20
_WRITABLE_BY_ALL: Final = 0o002
_YOUNG_NS: Final = 2_000_000_000
"""A file that was changed so shortly ago may change again within the same time stamp."""
T = TypeVar("T")


def read_file(
    path: str | os.PathLike[str], field: str, bytes_max: int
) -> tuple[bytes, os.stat_result]:
    """Return what is in a file, up to `bytes_max` + 1 bytes, and its status.

    Files are read again while a peer works: one that has become a pipe or a device must not keep it
    waiting.

    Raises:
        ConfigError: it is a pipe or a device; `field` says what is to be a file.
        OSError: it cannot be read, as a folder.

    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        found = os.fstat(fd)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        if not stat.S_ISREG(found.st_mode):
            raise ConfigError(field, "a file", os.fspath(path))
        data = b""
        while len(data) <= bytes_max and (part := os.read(fd, bytes_max + 1 - len(data))):
            data += part
        return data, found
    finally:
        os.close(fd)


def read_own_file(path: str | os.PathLike[str], field: str) -> bytes:
    """Return the content of a file that others cannot write: they could admit anybody.

    Raises:
        ConfigError: it is no file, larger than 4 MiB, or others can write it; `field` names it.
        OSError: it cannot be read.

    """
    data, found = read_file(path, field, FILE_BYTES_MAX)
    if found.st_mode & _WRITABLE_BY_ALL:
        limit = "a file that others cannot write (chmod o-w)"
        raise ConfigError(field, limit, f"{path}, mode {found.st_mode & 0o7777:04o}")
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(field, f"a file of at most {FILE_BYTES_MAX:,} bytes", str(path))
    return data


class WatchedFile(Generic[T]):
    """A file that is read again when it has changed. Not thread-safe.

    One that becomes malformed, or cannot be read any more, is logged once, and what was read before
    stays.

    Args:
        path: of the file.
        field: what it is called in errors.
        parse: makes something of its content; `ConfigError` where it is malformed.
        missing: what there is while it was never there. Default None: it has to be there.

    Attributes:
        content: as it was read last; None: it was never there.
        value: what `parse` made of it.

    Raises:
        ConfigError: it is malformed, too large, or others can write it.
        OSError: it cannot be read.

    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        field: str,
        parse: Callable[[bytes], T],
        missing: T | None = None,
    ) -> None:
        self.content: bytes | None = None
        self._path, self._field, self._parse = path, field, parse
        self._seen: tuple[int, ...] | None = None
        self._complaint = ""
        self._may_miss = missing is not None
        if missing is not None:
            self.value = missing
        self.read()

    def check(self) -> T:
        """Read it if it has changed; return what there is."""
        try:
            self.read()
        except (ConfigError, OSError) as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                _log.error("%s: %s; what was read before stays", self._field, error)
        return self.value

    def read(self, *, again: bool = False) -> None:
        """Read it if it has changed, or `again` in any case; raises as the constructor."""
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            if self.content is None and self._may_miss:
                return
            raise
        seen = found.st_mtime_ns, found.st_size, found.st_ino, found.st_mode
        if seen == self._seen and not again:
            return
        content = read_own_file(self._path, self._field)
        is_young = time.time_ns() - found.st_mtime_ns < _YOUNG_NS
        self._seen = None if is_young else seen
        if content != self.content:
            self.value = self._parse(content)
            self.content = content
        self._complaint = ""
