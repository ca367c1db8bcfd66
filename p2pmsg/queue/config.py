"""Settings of pusher and puller, with the reason for each default."""

from dataclasses import dataclass, field
from typing import Literal

from p2pmsg.checks import check_fields
from p2pmsg.queue.rules import QueueConfig

__all__ = ["PullerConfig", "PusherConfig"]

IN_FLIGHT_MIN = 1000
IN_FLIGHT_CEILING = 65_536
"""Between these, `in_flight_max` follows what is done, where none is given."""
FRAME_BYTES_CEILING = 2**62
"""A larger `frame_bytes_max` cannot be announced to a pusher."""
LINGER_S = 0.001
"""How long a job waits at most for others to share its frame, and an acknowledgement for others,
while they follow one another closely. A job that comes alone does not wait at all."""
GATHER_WITHIN_NS = 50_000
"""Jobs closer together than this are gathered: handing one out alone takes about as long."""
FRAME_BYTES, FRAME_JOBS = 64 * 1024, 512
"""Gathered jobs are handed out when they have this many bytes, or when they are so many."""
PREFETCH_MIN = 16
PREFETCH_CEILING = 2048
"""The same of `prefetch`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PusherConfig:
    """How a pusher works. `ConfigError` for a value out of its limits."""

    in_flight_max: int | None = None
    """How many jobs may be accepted and not yet done, waiting or with a worker; `push` waits at
    it. None: 1000, which are seconds of work for most, and what one is ready to see done again
    after a crash; where more than that are done within 50 ms, as many as are, up to 65,536."""

    in_flight_bytes_max: int = 256 * 2**20
    """The same in bytes. 256 MiB; a job larger than this is accepted when it is the only one."""

    message_bytes_max: int = 1024 * 1024
    """Largest job, packed, with its headers. 1 MiB, as for messages. Above 16 MiB pullers need a
    higher `frame_bytes_max`."""

    job_timeout: float = 1800.0
    """A job that takes longer, in seconds, is given to another worker. 1800.0, as RabbitMQ has it;
    0: a job may take as long as its worker lives, and one that only holds jobs keeps them so
    long."""

    admin: Literal["local", "always", "never"] = "local"
    """From where dead letters can be listed, retried and purged over the wire. `local`: only where
    the pusher is bound to loopback, `ipc://` or `inproc://`, since any program that connects is
    believed, and could read and purge them all. `Pusher.dead_letters()` works with any of them.
    With an access file each key needs the right to `admin` instead, wherever the pusher is bound;
    `never` goes before it."""

    queue: QueueConfig = field(default_factory=QueueConfig)
    """Acknowledgements, redelivery, dead letters, the window for `message_id`."""

    def __post_init__(self) -> None:
        check_fields(
            self, in_flight_max=1, in_flight_bytes_max=1024, message_bytes_max=(64, 2**31 - 1),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PullerConfig:
    """How a puller works. `ConfigError` for a value out of its limits."""

    prefetch: int | None = None
    """How many jobs it may have in flight, those at work included; 1 for the strictest order. What
    it has not begun is given back when another worker is idle. None: 16, which keep it busy while
    acknowledgements travel; where it does more than that within 20 ms,
    as many as it does, up to 2048."""

    frame_bytes_max: int = 16 * 2**20
    """The largest frame, in bytes. The pusher gives jobs that need a larger one to other pullers;
    where none takes them, they become dead letters, with the reason. 16 MiB: a frame of 256 KiB and
    the largest job that is sensible. At most 2**62."""

    pusher_timeout: float = 5.0
    """A pusher that was silent for so long, in seconds, is connected to again."""

    def __post_init__(self) -> None:
        check_fields(
            self, prefetch=(1, 65_536), frame_bytes_max=(64 * 1024, FRAME_BYTES_CEILING),
            pusher_timeout=0.1,
        )  # fmt: skip
