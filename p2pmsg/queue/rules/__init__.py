"""The work queue: which worker gets which job, and what becomes of it. Pure state machines."""

from p2pmsg.queue.rules.config import PRIORITY_MAX, QueueConfig, QueueLimits
from p2pmsg.queue.rules.dispatch import JobQueue
from p2pmsg.queue.rules.in_flight import DeliveryBatch, Failure, JobRun, QueuedJob
from p2pmsg.queue.rules.store import (
    Change,
    DeadJob,
    Died,
    Done,
    Dropped,
    Failed,
    Given,
    JobStore,
    Retried,
)
from p2pmsg.queue.rules.worker import BreakerState, Worker

__all__ = [
    "PRIORITY_MAX",
    "BreakerState",
    "Change",
    "DeadJob",
    "DeliveryBatch",
    "Died",
    "Done",
    "Dropped",
    "Failed",
    "Failure",
    "Given",
    "JobQueue",
    "JobRun",
    "JobStore",
    "QueueConfig",
    "QueueLimits",
    "QueuedJob",
    "Retried",
    "Worker",
]
