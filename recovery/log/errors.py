"""What the log raises; each text names the file and what is wrong with it.

They are defined where they can be imported without what the log needs (crc32c).
"""

import errno
from typing import Final

from recovery.errors import LogError, LogFormatError, LogLockedError, LogWriteError

__all__ = ["LogError", "LogFormatError", "LogLockedError", "LogWriteError", "is_passing"]

PASSING: Final = frozenset({errno.EMFILE, errno.ENFILE})
"""What the system says where it has no descriptor to open a file with; no fsync fails with it."""


def is_passing(error: OSError | None) -> bool:
    """Whether an error says nothing of the file or the disk: the same call may succeed later."""
    return error is not None and error.errno in PASSING
