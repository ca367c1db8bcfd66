"""The root of what this package raises.

Data from the network never raises here: it is counted and dropped. What raises is a mistake of the
caller (`ValueError` for an argument, `RecoveryError` for a call out of turn), or a disk that fails.
The log's errors are here, since they can be imported without what the log needs (crc32c).
"""

import errno
from typing import Final

from recovery._copied import CopiesWhole

_MEANS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR})
"""What the system says where it has no descriptor or memory to open a file with."""


class RecoveryError(CopiesWhole, Exception):
    """Root of the errors of `recovery`.

    Raised itself for a call out of turn, where there is no log, and for a file of a cursor that
    cannot be used or is another subscriber's.
    """


class StoreInUseError(RecoveryError):
    """A file of SQLite is open already, in another process or in this one."""


class LogLockedError(RecoveryError):
    """Another writer has the log in `directory`."""

    def __init__(self, directory: str) -> None:
        super().__init__(f"the log {directory} has a writer already")
        self.directory = directory


class LogFormatError(RecoveryError):
    """A file of the log is damaged, foreign, or of a version that is not known.

    Attributes:
        path: the file.
        offset: where in it, in bytes.

    """

    def __init__(self, path: str, offset: int, what: str) -> None:
        super().__init__(f"{path}, byte {offset}: {what}")
        self.path = path
        self.offset = offset


class SyncFailedError(OSError):
    """An fsync failed: the system has forgotten what it could not write.

    Another fsync would succeed without it, so this error is final, which no other one is. So is it
    with `ENOENT` where what was forced to the disk is in a file that was deleted meanwhile.
    """


class LogWriteError(RecoveryError, OSError):
    """The log could not be written: the disk is full, or the directory is gone.

    What was written before is good, and a call that raised this may be repeated.

    Attributes:
        errno: the system's error number, or None.
        is_final: whether an fsync failed, so that trying again would not bring back what is gone.

    """

    def __init__(self, what: str, error: OSError) -> None:
        # OSError takes its attributes from two arguments; its text would hide `what`.
        super().__init__(error.errno, f"{what}: {error.strerror or error}")
        self.is_final = isinstance(error, SyncFailedError)

    def __str__(self) -> str:
        """Return what could not be done, and why."""
        return str(self.strerror)


def lacks_means(error: OSError) -> bool:
    """Whether an error says nothing of the file or the disk, so that others can still be written.

    That is less than that it may pass, which each one may but `SyncFailedError`.
    """
    return error.errno in _MEANS
