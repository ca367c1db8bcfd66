"""Settings of pusher and puller, with the reason for each default."""

from dataclasses import dataclass, field
from typing import Literal

from p2pmsg.checks import at_least, check, of_kind, whole
from p2pmsg.queue.rules import QueueConfig

__all__ = ["PullerConfig", "PusherConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PusherConfig:
    """How a pusher works. `ConfigError` for a value out of its limits."""

    in_flight_max: int = 1000
    """How many jobs may be accepted and not yet done, waiting or with a worker; `push` waits at
    it. 1000: seconds of work for most, and what one is ready to see done again after a crash.
    Raise it, and `prefetch`, where jobs take microseconds."""

    in_flight_bytes_max: int = 256 * 2**20
    """The same in bytes. 256 MiB; a job larger than this is accepted when it is the only one."""

    message_bytes_max: int = 1024 * 1024
    """Largest job, packed, with its headers. 1 MiB, as for messages."""

    job_timeout_ms: float = 1_800_000.0
    """A job that takes longer is given to another worker. 30 min, as RabbitMQ has it; 0: a job may
    take as long as its worker lives, and one that only holds jobs keeps them so long."""

    linger_ms: float = 1.0
    """How long a job waits at most for others to share its frame, while jobs follow one another
    closely. A job that comes alone does not wait at all."""

    gather_us: float = 50.0
    """Jobs closer together than this are gathered: handing one out alone takes about as long."""

    frame_bytes: int = 64 * 1024
    """Gathered jobs are handed out when they have this many bytes."""

    frame_jobs: int = 512
    """… or when they are so many."""

    admin: Literal["local", "always", "never"] = "local"
    """From where dead letters can be listed, retried and purged over the wire. `local`: only where
    the pusher is bound to loopback, `ipc://` or `inproc://`, since any program that connects is
    believed, and could read and purge them all. `Pusher.dead_letters()` works with any of them."""

    queue: QueueConfig = field(default_factory=QueueConfig)
    """Acknowledgements, redelivery, dead letters, the window for `message_id`, the breaker."""

    def __post_init__(self) -> None:
        whole("in_flight_max", self.in_flight_max, 1)
        whole("in_flight_bytes_max", self.in_flight_bytes_max, 1024)
        whole("message_bytes_max", self.message_bytes_max, 64)
        fits = self.message_bytes_max < 2**31
        check("message_bytes_max", self.message_bytes_max, fits, "< 2**31")
        at_least("job_timeout_ms", self.job_timeout_ms, 0)
        at_least("linger_ms", self.linger_ms, 0)
        at_least("gather_us", self.gather_us, 0)
        whole("frame_bytes", self.frame_bytes, 1024)
        whole("frame_jobs", self.frame_jobs, 1)
        of_kind("queue", self.queue, QueueConfig)
        check("admin", self.admin, self.admin in ("local", "always", "never"),
              'one of "local", "always", "never"')  # fmt: skip
        hold_ms = self.queue.hold_ms
        limit = f"0, None, or at least job_timeout_ms ({self.job_timeout_ms})"
        check("queue.hold_ms", hold_ms, not hold_ms or hold_ms >= self.job_timeout_ms, limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class PullerConfig:
    """How a puller works. `ConfigError` for a value out of its limits."""

    prefetch: int = 16
    """How many jobs it may have in flight, those at work included. 16 keep it busy while
    acknowledgements travel; what it has not begun is given back when another worker is idle, so
    more does no harm. Thousands where jobs take microseconds; 1 for the strictest order."""

    frame_bytes_max: int = 16 * 2**20
    """A pusher that sends a larger frame is disconnected. 16 MiB: a frame of 256 KiB and the
    largest job that is sensible."""

    pusher_timeout_ms: float = 5000.0
    """A pusher that was silent for so long is connected to again."""

    ack_linger_ms: float = 1.0
    """How long acknowledgements wait for others while jobs follow one another closely."""

    def __post_init__(self) -> None:
        whole("prefetch", self.prefetch, 1)
        check("prefetch", self.prefetch, self.prefetch <= 65_536, "at most 65536")
        whole("frame_bytes_max", self.frame_bytes_max, 64 * 1024)
        at_least("pusher_timeout_ms", self.pusher_timeout_ms, 100)
        at_least("ack_linger_ms", self.ack_linger_ms, 0)
