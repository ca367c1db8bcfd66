"""What the queue knows of one worker."""

from p2pmsg.queue.rules.breaker import Breaker
from p2pmsg.queue.rules.config import QueueConfig
from p2pmsg.queue.rules.in_flight import Deliveries

_UNPROVEN_RANK = 1e-6
"""Decides between workers that have as much in flight."""


class Worker:
    """A worker: what it has, when it was heard, and whether it may have more.

    Attributes:
        id: who it is; a worker that connects again keeps it.
        name: for people.
        prefetch: how many jobs it may have in flight.
        hand: what it has.
        heard_ns: when it was last heard.
        cut_ns: since when its connection is broken; None while it stands.
        reserved: it gets nothing more until it has nothing, for a quarantined job.
        alone: it has a quarantined job, and nothing else.
        recalling: it was asked to give jobs back and has not answered.
        recall_is_vain: it had none to give, and has got none since.
        breaker: whether it fails at everything.
        acked, failed: how many jobs it did, and did not (rejected or discarded).
        allowance: how many jobs it may have in flight by what it has done; see `unproven_max`.
        most: how many jobs it has had in flight at most.
        held_back: how many jobs it held for too long.
        rank: the lower, the sooner it gets a job: among equals those that have done one come first,
            and those that held jobs for too long, and did none since, last.
        progress_ns: when it settled a job last, or got the first one into an empty hand.
        extended_ns: until when it asked to be left alone.
        recalled_ns: when it was asked to give all back that it has not begun, since it settles
            nothing; None where it was not.
        is_overdue: whether its jobs without keys were taken back since then.
        paused_ns: until when it gets nothing more, since it held jobs for too long.
        warned: of what it was warned about in the log.

    """

    __slots__ = (
        "_mark",
        "_unproven",
        "acked",
        "allowance",
        "alone",
        "assigned",
        "breaker",
        "cut_ns",
        "extended_ns",
        "failed",
        "heard_ns",
        "held_back",
        "id",
        "is_overdue",
        "most",
        "name",
        "paused_ns",
        "prefetch",
        "progress_ns",
        "rank",
        "recall_is_vain",
        "recalled_ns",
        "recalling",
        "reserved",
        "warned",
    )  # fmt: skip

    def __init__(
        self, worker_id: int, name: str, prefetch: int, config: QueueConfig, now_ns: int
    ) -> None:
        self.id = worker_id
        self.name = name
        self.prefetch = prefetch
        self.assigned = Deliveries()
        self.heard_ns = now_ns
        self.cut_ns: int | None = None
        self.reserved = self.alone = False
        self.recalling = self.recall_is_vain = False
        limits = config.breaker
        self.breaker = Breaker(limits.worker_failures_max, limits.pause_ms, limits.pause_ceiling_ms)
        self.acked = self.failed = self.held_back = self.most = 0
        self.rank = _UNPROVEN_RANK
        self._unproven = self.allowance = config.unproven_max
        self.progress_ns = now_ns
        self.extended_ns = self.paused_ns = 0
        self.recalled_ns: int | None = None
        self.is_overdue = False
        self.warned: set[str] = set()
        self._mark = 0

    def credit(self, *, now_ns: int) -> int:
        """Return how many jobs more it may have."""
        if self.cut_ns is not None or self.reserved or self.alone:
            return 0
        if now_ns < self.paused_ns or not self.breaker.allows(now_ns=now_ns):
            return 0
        return min(self.prefetch, self.allowance) - self.assigned.count

    def settled(self, now_ns: int) -> None:
        """Note that it settled a job, or has one where it had none: its time begins again."""
        self.progress_ns = now_ns
        self.extended_ns = 0
        self.recalled_ns = None
        self.is_overdue = False

    def succeeded(self, count: int) -> None:
        """Note that it did jobs."""
        self.acked += count
        self.rank = 0.0
        self.allowance = max(self._unproven, min(self.allowance, self.prefetch)) + count
        self.breaker.succeeded()

    def held(self, count: int, *, pause_ns: int, now_ns: int) -> None:
        """Note that jobs were taken back that it held for too long: it gets ever less."""
        self.held_back += count
        self.rank += 1.0
        self.allowance = max(1, min(self.allowance, self._unproven) // 2)
        self.paused_ns = now_ns + pause_ns

    def job_failed(self, acked_by_all: int, *, now_ns: int) -> None:
        """Note that it did not do a job; its breaker opens only where others do theirs."""
        self.failed += 1
        others = acked_by_all - self.acked
        if self.breaker.failures == 0:
            self._mark = others
        self.breaker.failed(now_ns=now_ns, may_open=others > self._mark)
