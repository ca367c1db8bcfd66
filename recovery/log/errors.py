"""What the log raises; each text names the file and what is wrong with it.

They are defined where they can be imported without what the log needs (crc32c).
"""

import errno
from typing import Final

from recovery.errors import (
    FileDeletedError,
    LogError,
    LogFormatError,
    LogLockedError,
    LogWriteError,
    SyncFailedError,
)

__all__ = [
    "FileDeletedError",
    "LogError",
    "LogFormatError",
    "LogLockedError",
    "LogWriteError",
    "SyncFailedError",
    "lacks_means",
]

_MEANS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR})
"""What the system says where it has no descriptor or memory to open a file with."""


def lacks_means(error: OSError) -> bool:
    """Whether an error says nothing of the file or the disk, so that others can still be written.

    That is less than that it may pass, which each one may but `SyncFailedError`.
    """
    return error.errno in _MEANS
