"""What the queue knows of one worker, and the breakers that stop failing ones."""

import enum

from p2pmsg.queue.rules.config import AHEAD_BYTES, BATCH_JOBS_MAX, QueueLimits
from p2pmsg.queue.rules.in_flight import Deliveries
from p2pmsg.queue.rules.pace import Pace
from recovery.checks import to_ns

_UNPROVEN_RANK = 1e-6
"""Decides between workers that have as much in flight."""
_UNCONFIRMED_MAX_NS = 60_000_000_000


class BreakerState(enum.Enum):
    """Whether jobs flow."""

    CLOSED = "closed"
    """They do."""

    OPEN = "open"
    """None does, until the pause is over."""

    HALF_OPEN = "half-open"
    """One is being tried."""


class Breaker:
    """Counts failures in a row.

    ::

        failures_max in a row          pause over, one job out
        CLOSED ───────────▶ OPEN ─────────────────────▶ HALF_OPEN
           ▲                  ▲   failed: pause doubles     │  │
           │                  └─────────────────────────────┘  │
           └───────────────────────── succeeded ───────────────┘

    Args:
        failures_max: how many open it.
        pause: the first pause, in seconds.
        pause_max: the longest.

    Attributes:
        state: a `BreakerState`.
        failures: how many in a row there were.
        trips: how often it opened from `CLOSED`.

    """

    def __init__(self, failures_max: int, pause: float, pause_max: float) -> None:
        self._failures_max = failures_max
        self._first_ns = self._pause_ns = to_ns(pause)
        self._ceiling_ns = to_ns(pause_max)
        self._until_ns = 0
        self.state = BreakerState.CLOSED
        self.failures = 0
        self.trips = 0

    def succeeded(self) -> None:
        """Note that a job was done: everything flows."""
        self.failures = 0
        self.state = BreakerState.CLOSED
        self._pause_ns = self._first_ns

    def failed(self, *, now_ns: int, may_open: bool = True) -> None:
        """Note that a job was not done. Those that were out when it opened change nothing."""
        self.failures += 1
        if self.state is BreakerState.HALF_OPEN:
            self._pause_ns = min(2 * self._pause_ns, self._ceiling_ns)
            self._open(now_ns)
        elif self.state is BreakerState.CLOSED and self.failures >= self._failures_max and may_open:
            self.trips += 1
            self._open(now_ns)

    def allows(self, *, now_ns: int) -> bool:
        """Whether a job may be handed out."""
        if self.state is BreakerState.CLOSED:
            return True
        return self.state is BreakerState.OPEN and now_ns >= self._until_ns

    def tried(self) -> None:
        """Note that one was handed out although it is open."""
        self.state = BreakerState.HALF_OPEN

    def untried(self) -> None:
        """Note that the one that was tried came back undone: another may be tried."""
        if self.state is BreakerState.HALF_OPEN:
            self.state = BreakerState.OPEN

    def next_deadline_ns(self) -> int | None:
        """Return when a job may be tried."""
        return self._until_ns if self.state is BreakerState.OPEN else None

    def _open(self, now_ns: int) -> None:
        self.state = BreakerState.OPEN
        self._until_ns = now_ns + self._pause_ns


class Worker:
    """A worker: what it has, when it was heard, and whether it may have more.

    Attributes:
        id: who it is; a worker that connects again keeps it.
        name: for people.
        prefetch: how many jobs it may have in flight, however slow it is.
        prefetch_ceiling: how many, however fast.
        assigned: what it has.
        last_heard_ns: when it was last heard.
        cut_ns: since when its connection is broken; None while it stands.
        blocked: there is no way to it, or no space, for what it would get.
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
        distrusted_ns: until when it gets only what no other worker takes, and does not count as
            idle: it may be stuck in a job.
        progress_ns: when it acknowledged a job last, or got one while it had none.
        extended_ns: until when it asked to be left alone.
        recalled_ns: when it was asked to give all back that it has not begun, since it acknowledges
            nothing; None where it was not.
        paused_ns: until when it gets nothing more, since it held jobs for too long.
        warned: the kinds of warnings about it that were logged.
        frame_bytes_max: the largest frame that it takes.
        frame_jobs_max: how many jobs its next frame may have.

    """

    def __init__(
        self, worker_id: int, name: str, prefetch: int, limits: QueueLimits, now_ns: int
    ) -> None:
        self.id = worker_id
        self.name = name
        self.prefetch = self.prefetch_ceiling = prefetch
        self.assigned = Deliveries()
        self.last_heard_ns = now_ns
        self.cut_ns: int | None = None
        self.reserved = self.alone = self.blocked = False
        self.recalling = self.recall_is_vain = False
        self.breaker = Breaker(limits.worker_failures_max, limits.pause, limits.pause_max)
        self.acked = self.failed = self.held_back = self.most = 0
        self.rank = _UNPROVEN_RANK
        self._unproven = self.allowance = limits.unproven_max
        self.progress_ns = now_ns
        self.extended_ns = self.paused_ns = self.distrusted_ns = self._unconfirmed_ns = 0
        self.recalled_ns: int | None = None
        self.warned: set[str] = set()
        self.frame_bytes_max = 0
        self.frame_jobs_max = BATCH_JOBS_MAX
        self._mark = 0
        self._pace = Pace(to_ns(limits.ahead))

    def takes(self, frame_bytes: int) -> bool:
        """Whether it takes a frame of so many bytes."""
        return frame_bytes <= self.frame_bytes_max

    def limit(self, *, now_ns: int) -> int:
        """Return how many jobs it may have by how fast it does them, and once it is proven."""
        if self.prefetch_ceiling <= self.prefetch or self.assigned.bytes >= AHEAD_BYTES:
            return self.prefetch
        pace = self._pace.within_span(now_ns=now_ns)
        return max(self.prefetch, min(self.prefetch_ceiling, pace))

    def credit(self, *, now_ns: int) -> int:
        """Return how many jobs more it may have."""
        if self.cut_ns is not None or self.reserved or self.alone or self.blocked:
            return 0
        if now_ns < self.paused_ns or not self.breaker.allows(now_ns=now_ns):
            return 0
        return min(self.limit(now_ns=now_ns), self.allowance) - self.assigned.count

    def order(self, *, now_ns: int) -> float:
        """Return its place among those that may have a job; see `rank`."""
        return self.rank + self.is_distrusted(now_ns=now_ns)

    def is_distrusted(self, *, now_ns: int) -> bool:
        """Whether it may be stuck in a job."""
        return now_ns < self.distrusted_ns

    def distrust(self, first_ns: int, *, now_ns: int) -> None:
        """Note a sign that it is stuck: others come first, twice as long with each."""
        self._unconfirmed_ns = min(max(first_ns, 2 * self._unconfirmed_ns), _UNCONFIRMED_MAX_NS)
        self.distrusted_ns = now_ns + self._unconfirmed_ns

    def trust(self) -> None:
        """Note that it answered for a job: it is not stuck, or not all of it."""
        self.distrusted_ns = self._unconfirmed_ns = 0

    def progressed(self, now_ns: int) -> None:
        """Note that it acknowledged a job, or has one where it had none: its time begins again."""
        self.progress_ns = now_ns
        self.extended_ns = 0
        self.recalled_ns = None

    def succeeded(self, count: int, *, now_ns: int) -> None:
        """Note that it did jobs."""
        self._pace.add(count, now_ns=now_ns)
        self.acked += count
        self.rank = 0.0
        self.trust()
        self.allowance = max(self._unproven, min(self.allowance, self.prefetch_ceiling)) + count
        self.breaker.succeeded()

    def held(self, count: int, *, pause_ns: int, now_ns: int) -> None:
        """Note that jobs were taken back that it held for too long: it gets ever less."""
        self.held_back += count
        self.rank += 1.0
        self.allowance = max(1, min(self.allowance, self._unproven) // 2)
        self.paused_ns = now_ns + pause_ns

    def cut_short(self, count: int) -> None:
        """Note that so many jobs did not arrive: it gets half of them, until it does some."""
        fewer = max(self._unproven, count // 2)
        self.allowance = min(self.allowance, fewer)

    def job_failed(self, acked_by_all: int, *, now_ns: int) -> None:
        """Note that it did not do a job; its breaker opens only where others do theirs."""
        self.failed += 1
        others = acked_by_all - self.acked
        if self.breaker.failures == 0:
            self._mark = others
        self.breaker.failed(now_ns=now_ns, may_open=others > self._mark)
