"""What limits the work queue's state machine, with the reason for each."""

from dataclasses import dataclass
from typing import Final

from recovery.checks import to_ns
from recovery.retry import RetryPolicy

PRIORITY_MAX = 9


BATCH_JOBS_MAX: Final = 1024
"""How many jobs go out in one frame at most."""
BATCH_BYTES: Final = 256 * 1024
"""A frame has so many bytes of jobs at most, except for one that alone has more."""
PREFETCH_MAX: Final = 65_536
"""What a worker may have in flight at most, whatever it asks for."""
AHEAD_BYTES: Final = 16 * 2**20
"""A worker that has so many bytes gets nothing beyond its `prefetch`: 16 of the largest jobs."""
DEDUP_WINDOW_S: Final = 600.0
"""10 min outlast a sender's retries and its restart. JetStream has 2 min, Service Bus 10."""
DEDUP_IDS_MAX: Final = 1_000_000
"""How many `message_id`s are remembered; beyond it the oldest is forgotten."""
DEAD_LETTERS_BYTES_MAX: Final = 64 * 2**20
"""Bytes of dead letters that are kept."""
CUT_RETRY_NS: Final = 1_000_000_000
"""How long a job waits at which a connection ended, within `retry_max`; it doubles with each. On a
network that breaks again and again an innocent job may be sent in vain a few times in a row."""
HISTORY_MAX: Final = 16
"""How many failures a job remembers for its dead letter: the latest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLimits:
    """How jobs are delivered, what keeps workers from each other's jobs, and memory small."""

    ack_timeout: float = 30.0
    """How long a worker may be silent before all its jobs are given to others, in seconds."""

    deliveries_max: int = 5
    """Attempts: how often a job is delivered before it becomes a dead letter."""

    retry_delay: float = 0.1
    """How long a rejected job waits before its second delivery, in seconds; it doubles with
    each."""

    retry_max: float = 30.0
    """The longest such wait, in seconds."""

    dedup_window: float = DEDUP_WINDOW_S
    """How long a `message_id` is remembered, in seconds."""

    grace: float = 0.2
    """How long a worker whose connection broke may take to come back, in seconds, before its jobs
    are given to others; those with a key wait for `ack_timeout`, since it may be at work on them.
    ZeroMQ connects again after 50 to 100 ms."""

    recall_wait: float = 0.002
    """How old a worker's oldest job must be before later ones are asked back for an idle worker, in
    seconds. 0.002: at full rate a worker runs dry for a moment now and then, and is fed at once."""

    ahead: float = 0.02
    """A worker that leaves it to the pusher how much it has may have, beyond its `prefetch`, as
    many jobs as it does in this time, in seconds, as measured. 0.02: some times as long as
    acknowledgements and the next jobs travel on a busy machine, and short enough that jobs hardly
    wait there for one that is slow at once. 0: never more than its `prefetch`."""

    unproven_max: int = 4
    """What a worker may have in flight before it has done a job. Each job that it does lets it have
    one more, up to its `prefetch`, so an honest one has them after some round trips. 4: enough for
    a few threads, and little for an unknown worker that takes jobs and does none."""

    hold_timeout: float | None = None
    """How long a worker may have jobs in flight and acknowledge none of them, although it lives, in
    seconds. Then it is asked to give back what it has not begun; `ack_timeout` later what is left
    goes to others, jobs with keys `hold_timeout` later. None: as long as the pusher's `job_timeout`
    and a minute, since an honest worker rejects by then what takes longer. 0: without end."""

    extend_max: float = 86_400.0
    """By how much a worker can move that by `extend`, in all, before it answers, in seconds.
    24 h: a job that runs for longer is rather several."""

    reject_delay_max: float = 3600.0
    """The longest delay that a worker can ask for when it rejects a job, in seconds; a longer one
    is cut to this. 1 h: an outage passes, and what should wait for longer is pushed again with a
    delay."""

    workers_max: int = 4096
    """How many workers; a further one is refused until one leaves."""

    dead_letters_max: int = 10_000
    """How many dead letters are kept; beyond it the oldest is dropped, and counted."""

    history_characters_max: int = 16_384
    """How many characters of reasons; the latest is kept in any case. A worker may send 4096 each
    time, and there may be a million jobs."""

    failures_max: int = 100
    """So many failures in a row, without one success anywhere, stop the queue. 100: some poison
    messages, each tried `deliveries_max` times, are not yet everything."""

    worker_failures_max: int = 20
    """So many failures in a row at one worker, while others succeed, stop that worker. 20: it takes
    jobs faster than those that do work, so it has to be stopped before it has spoiled many."""

    pause: float = 1.0
    """How long nothing is handed out then, before one job is tried, in seconds. 1.0 lets a service
    restart."""

    by_batch: bool = False
    """Whether workers acknowledge by the batch, so that a job may be done twice: what a lost worker
    had goes to others as it is, and is no failure of any job."""

    pause_max: float = 30.0
    """The pause doubles with each try that fails, up to this, in seconds."""

    @property
    def retry(self) -> RetryPolicy:
        """When a job is tried again that failed."""
        return RetryPolicy(to_ns(self.retry_delay), to_ns(self.retry_max))
