"""The work queue: each job to one of many workers, at least once."""

from p2pmsg.queue.config import PullerConfig, PusherConfig
from p2pmsg.queue.dead_letters import DeadLetter, DeadLetters
from p2pmsg.queue.job import Job
from p2pmsg.queue.journal.file import LogSettings
from p2pmsg.queue.puller import Puller
from p2pmsg.queue.pusher import Pusher
from p2pmsg.queue.stats import PullerStats, PusherStats, WorkerStats

__all__ = [
    "DeadLetter",
    "DeadLetters",
    "Job",
    "LogSettings",
    "Puller",
    "PullerConfig",
    "PullerStats",
    "Pusher",
    "PusherConfig",
    "PusherStats",
    "WorkerStats",
]
