"""The work queue: each job to one of many workers, at least once."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from p2pmsg.queue.config import PusherConfig
from p2pmsg.queue.dead_letters import DeadLetter, DeadLetters
from p2pmsg.queue.job import Job
from p2pmsg.queue.journal.file import QueueLogConfig
from p2pmsg.queue.stats import PullerStats, PusherStats, WorkerStats

if TYPE_CHECKING:
    from p2pmsg.peers.threads.puller import Puller as Puller
    from p2pmsg.peers.threads.pusher import Pusher as Pusher

__all__ = [
    "DeadLetter",
    "DeadLetters",
    "Job",
    "Puller",
    "PullerStats",
    "Pusher",
    "PusherConfig",
    "PusherStats",
    "QueueLogConfig",
    "WorkerStats",
]

_PEERS = {"Puller": "p2pmsg.peers.threads.puller", "Pusher": "p2pmsg.peers.threads.pusher"}


def __getattr__(name: str) -> Any:
    """Import a peer when it is first named here: it is made of what this package has.

    Raises:
        AttributeError: there is no such name.

    """
    if name not in _PEERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PEERS[name]), name)
