"""What the log raises; each text names the file and what is wrong with it."""

import errno
from typing import Final

from recovery.errors import RecoveryError


class LogError(RecoveryError):
    """Root of the log's errors; raised itself where there is no log to read."""


class LogLockedError(LogError):
    """Another writer has the log."""


class LogFormatError(LogError):
    """A file of the log is damaged, foreign, or of a version that is not known.

    Attributes:
        path: the file.
        offset: where in it, in bytes.

    """

    def __init__(self, path: str, offset: int, what: str) -> None:
        super().__init__(f"{path}, byte {offset}: {what}")
        self.path = path
        self.offset = offset


PASSING: Final = frozenset({errno.EMFILE, errno.ENFILE})
"""What the system says where it has no descriptor to open a file with; no fsync fails with it."""


def is_passing(error: OSError | None) -> bool:
    """Whether an error says nothing of the file or the disk: the same call may succeed later."""
    return error is not None and error.errno in PASSING


class LogWriteError(LogError, OSError):
    """The log could not be written: the disk is full, or the directory is gone.

    What was written before is good, and a call that raised this may be repeated.

    Attributes:
        errno: the system's error number, or None.

    """

    def __init__(self, what: str, error: OSError) -> None:
        # OSError takes its attributes from two arguments; its text would hide `what`.
        super().__init__(error.errno, f"{what}: {error.strerror or error}")

    def __str__(self) -> str:
        """Return what could not be done, and why."""
        return str(self.strerror)
