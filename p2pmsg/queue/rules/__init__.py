"""The work queue: which worker gets which job, and what becomes of it. Pure state machines."""

from p2pmsg.queue.rules.config import DEDUP_WINDOW_S, PRIORITY_MAX, QueueLimits
from p2pmsg.queue.rules.dispatch import JobQueue
from p2pmsg.queue.rules.in_flight import DeliveryBatch, Failure, JobRun, QueuedJob
from p2pmsg.queue.rules.parts import DeadJob
from p2pmsg.queue.rules.store import (
    Change,
    Died,
    Done,
    Dropped,
    End,
    Failed,
    Given,
    JobStore,
    Retried,
)
from p2pmsg.queue.rules.worker import BreakerState, Worker

__all__ = [
    "DEDUP_WINDOW_S",
    "PRIORITY_MAX",
    "BreakerState",
    "Change",
    "DeadJob",
    "DeliveryBatch",
    "Died",
    "Done",
    "Dropped",
    "End",
    "Failed",
    "Failure",
    "Given",
    "JobQueue",
    "JobRun",
    "JobStore",
    "QueueLimits",
    "QueuedJob",
    "Retried",
    "Worker",
]
