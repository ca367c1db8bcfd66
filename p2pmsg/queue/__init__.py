"""The work queue: each job to one of many workers, at least once."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from p2pmsg.queue.config import FRAME_BYTES_MAX, PusherConfig, QueueLogConfig
from p2pmsg.queue.dead_letters import DeadLetter, DeadLetters
from p2pmsg.queue.job import Job
from p2pmsg.queue.running import acknowledge, reason_of
from p2pmsg.queue.stats import PullerStats, PusherStats, WorkerStats

if TYPE_CHECKING:
    from p2pmsg.peers.threads.puller import Puller as Puller
    from p2pmsg.peers.threads.pusher import Pusher as Pusher
    from p2pmsg.queue.admin import LiveBox as LiveBox
    from p2pmsg.queue.admin import LogBox as LogBox

__all__ = [
    "FRAME_BYTES_MAX",
    "DeadLetter",
    "DeadLetters",
    "Job",
    "LiveBox",
    "LogBox",
    "Puller",
    "PullerStats",
    "Pusher",
    "PusherConfig",
    "PusherStats",
    "QueueLogConfig",
    "WorkerStats",
    "acknowledge",
    "reason_of",
]

_HOMES = {
    "LiveBox": "p2pmsg.queue.admin",
    "LogBox": "p2pmsg.queue.admin",
    "Puller": "p2pmsg.peers.threads.puller",
    "Pusher": "p2pmsg.peers.threads.pusher",
}


def __getattr__(name: str) -> Any:
    """Import what is made of this package when it is first named here.

    Raises:
        AttributeError: there is no such name.

    """
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
