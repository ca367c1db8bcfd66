"""Reads the files that say who is who and who may what: regular ones only, without ever waiting."""

import errno
import os
import stat

from p2pmsg.errors import ConfigError


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
