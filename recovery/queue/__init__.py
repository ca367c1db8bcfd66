"""The work queue: which worker gets which job, and what comes of it. Pure state machines."""

from recovery.queue.breaker import Breaker, BreakerState
from recovery.queue.config import PRIORITY_MAX, BreakerConfig, QueueConfig
from recovery.queue.dead import DeadJob, DeadJobs
from recovery.queue.dedup import DedupWindow
from recovery.queue.hand import Hand, Parcel, bits_of, runs_of
from recovery.queue.job import Failure, Lot, QueuedJob
from recovery.queue.lanes import KeyGates, Lanes
from recovery.queue.queue import JobQueue
from recovery.queue.store import (
    Change,
    Died,
    Done,
    Dropped,
    Failed,
    Given,
    JobStore,
    Retried,
)
from recovery.queue.worker import Worker

__all__ = [
    "PRIORITY_MAX",
    "Breaker",
    "BreakerConfig",
    "BreakerState",
    "Change",
    "DeadJob",
    "DeadJobs",
    "DedupWindow",
    "Died",
    "Done",
    "Dropped",
    "Failed",
    "Failure",
    "Given",
    "Hand",
    "JobQueue",
    "JobStore",
    "KeyGates",
    "Lanes",
    "Lot",
    "Parcel",
    "QueueConfig",
    "QueuedJob",
    "Retried",
    "Worker",
    "bits_of",
    "runs_of",
]
