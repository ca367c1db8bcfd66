"""Settings of the work queue's state machine, with the reason for each default."""

from dataclasses import dataclass, field

from recovery._checks import above, at_least, at_most

PRIORITY_MAX = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerConfig:
    """When failing jobs stop being handed out. `ValueError` for a value out of its limits."""

    failures_max: int = 100
    """So many failures in a row, without one success anywhere, stop the queue. 100: some poison
    messages, each tried `deliveries_max` times, are not yet everything."""

    worker_failures_max: int = 20
    """So many failures in a row at one worker, while others succeed, stop that worker. 20: it takes
    jobs faster than those that do work, so it has to be stopped before it has spoiled many."""

    pause_ms: float = 1000.0
    """How long nothing is handed out then, before one job is tried. 1 s lets a service restart."""

    pause_ceiling_ms: float = 30_000.0
    """The pause doubles with each try that fails, up to this."""

    def __post_init__(self) -> None:
        at_least("failures_max", self.failures_max, 1)
        at_least("worker_failures_max", self.worker_failures_max, 1)
        above("pause_ms", self.pause_ms, 0)
        at_least("pause_ceiling_ms", self.pause_ceiling_ms, self.pause_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueConfig:
    """How a `JobQueue` works. `ValueError` for a value out of its limits."""

    ack_timeout_ms: float = 30_000.0
    """How long a worker may be silent before all its jobs are given to others. 30 s, as with SQS:
    longer than a page-in, a stopped virtual machine or a pulled cable that is put back."""

    grace_ms: float = 200.0
    """How long a worker whose connection broke may take to come back before its jobs are given to
    others; those with a key wait for `ack_timeout_ms`, since it may be at work on them. ZeroMQ
    connects again after 50 to 100 ms."""

    deliveries_max: int = 5
    """After so many deliveries that failed, a job becomes a dead letter. 5: enough for what passes,
    and soon enough to look at what does not."""

    retry_delay_ms: float = 100.0
    """How long a rejected job waits before its second delivery; it doubles with each."""

    retry_ceiling_ms: float = 30_000.0
    """The longest such wait."""

    recall_ms: float = 2.0
    """How old a worker's oldest job must be before later ones are asked back for an idle
    worker. 2 ms: at full rate a worker runs dry for a moment now and then, and is fed at once."""

    parcel_jobs_max: int = 1024
    """How many jobs go out in one frame at most."""

    parcel_bytes: int = 256 * 1024
    """A frame with so many bytes gets no further job."""

    prefetch_max: int = 65_536
    """What a worker may have in flight at most, whatever it asks for."""

    unproven_max: int = 4
    """What a worker may have in flight before it has done a job. Each job that it does lets it have
    one more, up to its `prefetch`, so an honest one has them after some round trips. 4: enough for
    a few threads, and little for an unknown worker that takes jobs and does none."""

    hold_ms: float | None = None
    """How long a worker may have jobs in flight and settle none of them, although it lives. Then it
    is asked to give back what it has not begun; `ack_timeout_ms` later what is left goes to others,
    jobs with keys `hold_ms` later. None: as long as the pusher's `job_timeout` and a minute, since
    an honest worker rejects by then what takes longer. 0: without end."""

    extend_max_ms: float = 86_400_000.0
    """By how much a worker can move that by `extend`, in all, before it settles a job. 24 h: a job
    that runs for longer is rather several."""

    reject_delay_max_ms: float = 3_600_000.0
    """The longest delay that a worker can ask for when it rejects a job; a longer one is cut to
    this. 1 h: an outage passes, and what should wait for longer is pushed again with a delay."""

    workers_max: int = 4096
    """How many workers; a further one is refused until one leaves."""

    dedup_window_ms: float = 600_000.0
    """How long a `message_id` is remembered. 10 min: outlasts a sender's retries and its restart.
    JetStream has 2 min, Service Bus 10."""

    dedup_ids_max: int = 1_000_000
    """How many; beyond it the oldest is forgotten, and counted."""

    dead_letters_max: int = 10_000
    """How many dead letters are kept; beyond it the oldest is dropped, and counted."""

    dead_letters_bytes_max: int = 64 * 2**20
    """Bytes of dead letters that are kept."""

    history_max: int = 16
    """How many failures a job remembers for its dead letter: the latest."""

    history_characters_max: int = 16_384
    """How many characters of reasons; the latest is kept in any case. A worker may send 4096 each
    time, and there may be a million jobs."""

    breaker: BreakerConfig = field(default_factory=BreakerConfig)
    """When failing jobs stop being handed out."""

    def __post_init__(self) -> None:
        above("ack_timeout_ms", self.ack_timeout_ms, 0)
        for name in ("grace_ms", "retry_delay_ms", "recall_ms", "extend_max_ms",
                     "reject_delay_max_ms", "history_characters_max", "dedup_window_ms",
                     "dead_letters_bytes_max"):  # fmt: skip
            at_least(name, getattr(self, name), 0)
        for name in ("deliveries_max", "parcel_jobs_max", "parcel_bytes", "prefetch_max",
                     "workers_max", "unproven_max", "dedup_ids_max", "dead_letters_max",
                     "history_max"):  # fmt: skip
            at_least(name, getattr(self, name), 1)
        at_most("deliveries_max", self.deliveries_max, 1_000_000)
        at_least("retry_ceiling_ms", self.retry_ceiling_ms, self.retry_delay_ms)
        if self.hold_ms is not None:
            at_least("hold_ms", self.hold_ms, 0)
