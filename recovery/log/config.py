"""Where a log is, how much of it is kept, and how safe it is."""

import os
from dataclasses import dataclass
from typing import Literal

from recovery.checks import check_fields, to_ns

RESERVE_MAX = 2**40
"""So that a stream has sequences left, of 64 bits, after many crashes of the system."""


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

    segment_age: float | None = None
    """Age at which a new segment is begun, in seconds, counted from its first frame, so that
    `retention_age` holds for slow streams, too. None: a tenth of `retention_age`, if that is
    given."""

    index_bytes: int = 64 * 2**10
    """Distance between the entries of a stream in the index. What is read in vain before a frame is
    found is at most that; an entry takes 24 bytes."""

    fsync: Literal["interval", "always", "never"] = "interval"
    """When frames are forced to the disk. Whatever it is, they survive a process that is killed; it
    is the operating system's crash that takes what was not forced. `"interval"`: every
    `fsync_interval`; `"always"`: before a frame is sent and before `publish` returns, one fsync
    for all that wait; `"never"`: when the system sees fit."""

    acknowledge: Literal["written", "synced", "gathered"] | None = None
    """What it means that `publish` returned a sequence.

    `"written"`: the message outlives the process, killed at any moment; a crash of the operating
    system may take the last `fsync_interval`, which is then reported (`crash`). `"synced"`: it
    outlives the operating system; `fsync="always"` means this. `"gathered"`: it may still be in the
    process's memory for up to `linger`. A process that is killed takes that along, and whatever
    may have been there is skipped and reported (`crash`) by the next one: up to `reserve` sequences
    or more. It is the fastest where messages are published one by one.

    None: `"synced"` with `fsync="always"`, else `"written"`."""

    fsync_interval: float = 0.1
    """See `fsync`; in seconds. A disk takes some ms for it, so that 0.1 costs next to nothing."""

    fsync_bytes: int = 8 * 2**20
    """When so much waits for that, it is forced before the interval is over; more comes together
    while the disk is at it. What waits cannot be given back (see `cache_bytes`): with 8 MiB writing
    is a fifth faster than with the 30 of 100 ms at two million messages a second."""

    cache_bytes: int | None = 16 * 2**20
    """How much of the newest the operating system is asked to keep in memory; what is older and on
    the disk is given back, so that the log does not push out what others read, and finds memory
    that was used just now, which in a virtual machine is several times as fast to write to. 16 MiB:
    what is as new, and newer, a publisher answers from its replay buffer. None: as the system sees
    fit, as with `fsync="never"`."""

    reserve: int = 1024
    """How many sequences of a stream are reserved at a time, so that none is used twice after a
    crash of the operating system: up to so many are then skipped and reported lost, at most, and as
    many more as a frame has bytes, for what was in none yet. Renewing it costs two fsyncs, so a
    fast stream gets four times as many each time, until they last for 2 s."""

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
        return self.fsync == "always" or self.acknowledge == "synced"

    @property
    def is_written(self) -> bool:
        """Whether a message outlives its process from when it is acknowledged on, if not more."""
        return not self.is_synced and self.acknowledge != "gathered"

    @property
    def roll_age_ns(self) -> int | None:
        """At what age a new segment is begun, in ns; None: age does not matter."""
        age_s = self.segment_age
        if age_s is None and self.retention_age is not None:
            age_s = self.retention_age / 10
        return None if age_s is None else to_ns(age_s)

    def __post_init__(self) -> None:
        check_fields(
            self, segment_bytes=4096, index_bytes=1, reserve=(1, RESERVE_MAX), fsync_bytes=1,
            retention_age=1e-12, segment_age=(1e-12, 1e12),
        )  # fmt: skip
        if self.fsync == "always" and self.acknowledge in ("written", "gathered"):
            what = "acknowledge must be 'synced' or None with fsync='always'"
            raise ValueError(f"{what}, not {self.acknowledge!r}")
        if self.fsync == "never" and self.acknowledge == "synced":
            raise ValueError("acknowledge must not be 'synced' with fsync='never'")
