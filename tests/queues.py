"""Queues whose limits a test chooses."""

from dataclasses import fields, replace

from p2pmsg.queue.rules import JobQueue, QueueConfig, QueueLimits

_SETTINGS = {field.name for field in fields(QueueConfig)}


def job_queue(*, wall_offset_ns=0, first_delivery=0, records=False, **settings):
    """Return a queue with these settings and limits."""
    limits = {name: settings.pop(name) for name in settings.keys() - _SETTINGS}
    return JobQueue(
        QueueConfig(**settings), limits=QueueLimits(**limits), wall_offset_ns=wall_offset_ns,
        first_delivery=first_delivery, records=records,
    )  # fmt: skip


def with_limits(queue, **limits):
    """Give a queue without workers other limits."""
    queue.limits = replace(queue.limits, **limits)
    if "hold_timeout" in limits:
        queue.hold_ns = round(limits["hold_timeout"] * 1e9)
