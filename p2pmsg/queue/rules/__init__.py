"""The work queue: which worker gets which job, and what comes of it. Pure state machines."""

from p2pmsg.queue.rules.breaker import Breaker, BreakerState
from p2pmsg.queue.rules.config import PRIORITY_MAX, BreakerConfig, QueueConfig
from p2pmsg.queue.rules.dead import DeadJob, DeadJobs
from p2pmsg.queue.rules.dedup import DedupWindow
from p2pmsg.queue.rules.dispatch import JobQueue
from p2pmsg.queue.rules.in_flight import Deliveries, DeliveryBatch, bits_of, runs_of
from p2pmsg.queue.rules.job import Failure, JobRun, QueuedJob
from p2pmsg.queue.rules.priorities import KeyOrder, PriorityQueues
from p2pmsg.queue.rules.store import (
    Change,
    Died,
    Done,
    Dropped,
    Failed,
    Given,
    JobStore,
    Retried,
)
from p2pmsg.queue.rules.worker import Worker

__all__ = [
    "PRIORITY_MAX",
    "Breaker",
    "BreakerConfig",
    "BreakerState",
    "Change",
    "DeadJob",
    "DeadJobs",
    "DedupWindow",
    "Deliveries",
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
    "KeyOrder",
    "PriorityQueues",
    "QueueConfig",
    "QueuedJob",
    "Retried",
    "Worker",
    "bits_of",
    "runs_of",
]
