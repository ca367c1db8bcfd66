"""What the queue knows of one worker."""

from recovery.queue.breaker import Breaker
from recovery.queue.config import BreakerConfig
from recovery.queue.hand import Hand


class Worker:
    """A worker: what it has, when it was heard, and whether it may have more.

    Attributes:
        id: who it is; a worker that connects again keeps it.
        name: for people.
        prefetch: how many jobs it may have in hand.
        hand: what it has.
        heard_ns: when it was last heard.
        cut_ns: since when its connection is broken; None while it stands.
        reserved: it gets nothing more until its hand is empty, for a suspect.
        alone: it has a suspect, and nothing else.
        recalling: it was asked to give jobs back and has not answered.
        recall_is_vain: it had none to give, and has got none since.
        breaker: whether it fails at everything.
        acked, failed: how many jobs it did, and did not.

    """

    __slots__ = ("_mark", "acked", "alone", "breaker", "cut_ns", "failed", "hand", "heard_ns", "id",
                 "name", "prefetch", "recall_is_vain", "recalling", "reserved")  # fmt: skip

    def __init__(
        self, worker_id: int, name: str, prefetch: int, config: BreakerConfig, now_ns: int
    ) -> None:
        self.id = worker_id
        self.name = name
        self.prefetch = prefetch
        self.hand = Hand()
        self.heard_ns = now_ns
        self.cut_ns: int | None = None
        self.reserved = self.alone = False
        self.recalling = self.recall_is_vain = False
        self.breaker = Breaker(config.worker_failures_max, config.pause_ms, config.pause_ceiling_ms)
        self.acked = self.failed = 0
        self._mark = 0

    def credit(self, *, now_ns: int) -> int:
        """Return how many jobs more it may have."""
        if self.cut_ns is not None or self.reserved or self.alone:
            return 0
        if not self.breaker.allows(now_ns=now_ns):
            return 0
        return self.prefetch - self.hand.count

    def succeeded(self, count: int) -> None:
        """Note that it did jobs."""
        self.acked += count
        self.breaker.succeeded()

    def job_failed(self, acked_by_all: int, *, now_ns: int) -> None:
        """Note that it did not do a job; its breaker opens only where others do theirs."""
        self.failed += 1
        others = acked_by_all - self.acked
        if self.breaker.failures == 0:
            self._mark = others
        self.breaker.failed(now_ns=now_ns, may_open=others > self._mark)
