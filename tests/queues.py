"""Queues whose limits a test chooses, and the files of their logs."""

from dataclasses import replace
from pathlib import Path

from p2pmsg.peers.network import Network, on
from p2pmsg.queue.rules import JobQueue, QueueLimits


def job_queue(*, wall_offset_ns=0, first_delivery=0, records=False, **limits):
    """Return a queue with these limits."""
    return JobQueue(
        QueueLimits(**limits), wall_offset_ns=wall_offset_ns, first_delivery=first_delivery,
        records=records,
    )  # fmt: skip


def segments(folder):
    """Return the segments of a queue's log, oldest first."""
    return sorted(Path(folder).glob("*.log"))


def small_segments(size):
    """Have the pushers that are made within write segments of so many bytes."""
    network = Network()
    network.queue_segment_bytes = size
    return on(network)


def with_limits(queue, **limits):
    """Give a queue without workers other limits."""
    queue.limits = queue.store._limits = replace(queue.limits, **limits)
    if "hold_timeout" in limits:
        queue.hold_ns = round(limits["hold_timeout"] * 1e9)
