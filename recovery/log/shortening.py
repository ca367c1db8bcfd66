"""Shortening a log by hand."""

from typing import TYPE_CHECKING

from recovery.log.config import LogConfig
from recovery.log.errors import LogError
from recovery.log.store import FileStore, LogStore
from recovery.log.writer import LogWriter

if TYPE_CHECKING:
    import os

_ALL = 2**62
_AT_ONCE_S = 1e-10
_NEVER_S = 1e12


def truncate(
    directory: "str | os.PathLike[str]",
    *,
    before_ns: int | None = None,
    bytes_max: int | None = None,
    store: LogStore | None = None,
) -> int:
    """Delete the oldest segments of a log that nobody writes; return the bytes that are gone.

    Whole segments go, and the newest one stays. The newest messages cannot be cut off: subscribers
    have them, and their sequences would be used twice.

    Args:
        directory: of the log.
        before_ns: delete segments whose newest frame was appended before it, in ns since the epoch.
        bytes_max: delete segments until the log is not larger.
        store: where the files are; for tests.

    Raises:
        LogLockedError: it has a writer.
        LogError: there is no log, or it cannot be written.

    """
    files: LogStore = FileStore(directory) if store is None else store
    try:
        if not any(name.endswith(".log") or name == "state" for name in files.names()):
            raise LogError(f"{files.path('')} has no log")
    except OSError as error:
        raise LogError(f"{files.path('')}: {error.strerror or error}") from error
    config = LogConfig(
        directory,
        retention_bytes=_ALL if bytes_max is None else bytes_max,
        retention_age_s=None if before_ns is None else _AT_ONCE_S,
        segment_bytes=_ALL,
        segment_age_s=_NEVER_S,
    )
    # A log without a state would get a session that nobody has chosen: it stays without.
    has_state = files.read("state") is not None
    now_ns = 0 if before_ns is None else before_ns
    before = sum_sizes(files)
    writer = LogWriter(config, session=0, now_ns=now_ns, store=files, goes_on=False)
    try:
        writer.expire(now_ns)
    finally:
        writer.close(now_ns)
    if not has_state:
        files.remove("state")
    return before - sum_sizes(files)


def sum_sizes(files: LogStore) -> int:
    """Return the bytes of all segments."""
    total = 0
    for name in files.names():
        if name.endswith(".log"):
            file = files.open(name)
            total += file.size()
            file.close()
    return total
