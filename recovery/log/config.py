"""Where a log is, how much of it is kept, and how safe it is."""

import os
from dataclasses import dataclass
from typing import Literal

from recovery.checks import check_fields, to_ns


@dataclass(frozen=True, slots=True)
class LogConfig:
    """A log's settings. Raises `ValueError` for a value out of limits."""

    directory: str | os.PathLike[str]
    """Where its files are; made where it is missing. One log a directory."""

    retention_bytes: int = 10 * 2**30
    """Bound on the size of all segments, in bytes. The oldest are deleted, whole ones at a time and
    never one that is being read: it is exceeded by up to `segment_bytes` and a frame, and while
    readers hold more."""

    retention_age: float | None = None
    """Age at which a segment is deleted, in seconds, counted from its newest frame. None: age does
    not matter."""

    segment_bytes: int = 64 * 2**20
    """Size at which a new segment is begun. After a crash one segment is read, which takes some
    50 ms; retention deletes as much at a time."""

    fsync: Literal["interval", "always", "never"] = "interval"
    """When frames are forced to the disk. Whatever it is, a message outlives the process from when
    `publish` returns, killed at any moment; a crash of the operating system takes what was not
    forced, which is then reported (`crash`). `"interval"`: every `fsync_interval`; `"always"`:
    before a frame is sent and before `publish` returns, one fsync for all that wait; `"never"`:
    when the system sees fit, and before the oldest segment is deleted."""

    fsync_interval: float = 0.1
    """See `fsync`; in seconds. A disk takes some ms for it, so that 0.1 costs next to nothing."""

    moved: bool = False
    """Whether the directory was moved here, and is used nowhere else. A log that finds itself in a
    copy of its directory (a restored backup, also one whose files were put in the place of those
    that were there) begins a new session, for subscribers may have later messages than the copy
    has, under sequences that would be used again. The snapshot of a whole disk is not noticed. With
    `True` it goes on in its own session."""

    on_error: Literal["raise", "continue"] = "raise"
    """What the publisher does when the log cannot be written: `"raise"` refuses the message,
    `"continue"` goes on without the log and says so in its statistics."""

    @property
    def is_synced(self) -> bool:
        """Whether a message is on the disk before it is acknowledged, and sent."""
        return self.fsync == "always"

    @property
    def roll_age_ns(self) -> int | None:
        """At what age a new segment is begun, in ns, counted from its first frame.

        A tenth of `retention_age`, so that this holds for slow streams. None: age does not matter.
        """
        return None if self.retention_age is None else to_ns(self.retention_age / 10)

    def __post_init__(self) -> None:
        check_fields(self, segment_bytes=4096, retention_age=1e-12)
