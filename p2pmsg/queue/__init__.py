"""The work queue: each job to one of many workers, at least once."""

from typing import Any
from warnings import warn

from p2pmsg.queue.config import PullerConfig, PusherConfig
from p2pmsg.queue.dead_letters import DeadLetter, DeadLetters
from p2pmsg.queue.job import Job
from p2pmsg.queue.journal.file import QueueLogConfig
from p2pmsg.queue.puller import Puller
from p2pmsg.queue.pusher import Pusher
from p2pmsg.queue.rules import BreakerConfig, QueueConfig
from p2pmsg.queue.stats import PullerStats, PusherStats, WorkerStats

__all__ = [
    "BreakerConfig",
    "DeadLetter",
    "DeadLetters",
    "Job",
    "Puller",
    "PullerConfig",
    "PullerStats",
    "Pusher",
    "PusherConfig",
    "PusherStats",
    "QueueConfig",
    "QueueLogConfig",
    "WorkerStats",
]


def __getattr__(name: str) -> Any:
    """Return a class by the name that it had until this release, with a warning."""
    if name == "LogSettings":
        warn("LogSettings is QueueLogConfig now", DeprecationWarning, stacklevel=2)
        return QueueLogConfig
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
