"""Settings of a pusher, with the reason for each default, and what both ends count with."""

import os
from dataclasses import dataclass, field
from typing import Any, Literal

from p2pmsg.checks import check, check_fields
from p2pmsg.errors import ConfigError

__all__ = ["PusherConfig", "QueueLogConfig"]

IN_FLIGHT_MIN = 1000
IN_FLIGHT_CEILING = 65_536
"""Between these, `in_flight_max` follows what is done, where none is given."""
FRAME_BYTES_MAX = 16 * 2**20
"""The largest frame that a puller takes by default: one of 256 KiB and the largest sensible job."""
FRAME_BYTES_CEILING = 2**62
"""A larger `frame_bytes_max` cannot be announced to a pusher."""
LINGER_NS = 1_000_000
"""How long a job waits at most for others to share its frame, and an acknowledgement for others,
while they follow one another closely. A job that comes alone does not wait at all."""
GATHER_WITHIN_NS = 50_000
"""Jobs closer together than this are gathered: handing one out alone takes about as long."""
IDLE_ROUNDS = 5
"""After so many turns without a job nothing is gathered any more."""
FRAME_BYTES, FRAME_JOBS = 128 * 1024, 1024
"""Gathered jobs are handed out when they have this many bytes, or when they are so many: jobs of
128 bytes travel 8 % faster than with half of it, and no faster with twice as much."""
PREFETCH_MIN = 16
PREFETCH_CEILING = 2048
"""The same of `prefetch`."""
BATCH_MESSAGE_BYTES_MAX = 8 * 2**20
"""The largest job that is acknowledged by the batch."""

Acknowledge = Literal["each", "batch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PusherConfig:
    """How a pusher works. `ConfigError` for a value out of its limits.

    With `acknowledge="batch"` `job_timeout`, `in_flight_max` and `retry_delay` do not count.
    """

    ack_timeout: float | None = None
    """How long a worker may be silent before all its jobs are given to others, in seconds. None:
    30, as with SQS, longer than a page-in, a stopped machine or a pulled cable that is put back; 5
    with `acknowledge="batch"`, where it costs no job a failure."""

    deliveries_max: int = 5
    """Attempts: how often a job is delivered before it becomes a dead letter, the first time
    included. What its worker did not begin, or may not have, does not count. 5: enough for what
    passes, and soon enough to look at what does not."""

    retry_delay: float = 0.1
    """How long a rejected job waits before its second delivery, in seconds; it doubles with
    each, up to 30 s."""

    job_timeout: float = 1800.0
    """A job that takes longer, in seconds, is given to another worker. 1800.0, as RabbitMQ has it;
    0: a job may take as long as its worker lives, and one that only holds jobs keeps them so
    long."""

    in_flight_max: int | None = None
    """How many jobs may be accepted and not yet done, waiting or with a worker; `push` waits at
    it. None: 1000, which are seconds of work for most, and what one is ready to see done again
    after a crash; where more than that are done within 50 ms, as many as are, up to 65,536."""

    in_flight_bytes_max: int = 256 * 2**20
    """The same in bytes. 256 MiB; a job larger than this is accepted when it is the only one."""

    message_bytes_max: int = 1024 * 1024
    """Largest job, packed, with its headers. 1 MiB, as for messages. Above 16 MiB pullers need a
    higher `frame_bytes_max`; with `acknowledge="batch"` at most 8 MiB."""

    admin: Literal["local", "always", "never"] = "local"
    """From where dead letters can be listed, retried and purged over the wire. `local`: only where
    the pusher is bound to loopback, `ipc://` or `inproc://`, since any program that connects is
    believed, and could read and purge them all. `Pusher.dead_letters()` works with any of them.
    With an access file each key needs the right to `admin` instead, wherever the pusher is bound;
    `never` goes before it."""

    def __post_init__(self) -> None:
        check_fields(
            self, ack_timeout=0.05, deliveries_max=(1, 1_000_000), in_flight_max=1,
            in_flight_bytes_max=1024, message_bytes_max=(64, 2**31 - 1),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLogConfig:
    """How a queue's log is kept. `ConfigError` for a value out of its limits."""

    directory: str | os.PathLike[str] = field(kw_only=False)
    """Made where it is missing; one queue each."""

    fsync: Literal["interval", "always", "never"] = "interval"
    """When what was written is forced to the disk. A killed process loses nothing with any of them;
    this is about the operating system. `interval` may cost the pushes of the last 100 ms. With
    `always` it is on the disk when `push` returns, before a worker gets it and before an
    acknowledgement is confirmed; threads that push at once share one fsync. `never` leaves it to
    the system, except before a segment is deleted."""

    def __post_init__(self) -> None:
        check_fields(self)
        check("directory", self.directory, bool(os.fspath(self.directory)), "a directory")


def log_settings(log: Any) -> QueueLogConfig | None:
    """Return the settings that a user's `log=` means: a directory, or settings."""
    if log is None or isinstance(log, QueueLogConfig):
        return log
    if isinstance(log, str | os.PathLike):
        return QueueLogConfig(directory=log)
    raise ConfigError("log", "a directory, QueueLogConfig or None", log)
