"""The work queue: each job to one of many workers, at least once."""

from p2pmsg.queue.config import PusherConfig
from p2pmsg.queue.dead_letters import DeadLetter, DeadLetters
from p2pmsg.queue.job import Job
from p2pmsg.queue.journal.file import QueueLogConfig
from p2pmsg.queue.puller import Puller
from p2pmsg.queue.pusher import Pusher
from p2pmsg.queue.stats import PullerStats, PusherStats, WorkerStats

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
