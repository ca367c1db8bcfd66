"""What the queue knows of one worker, and the breakers that stop failing ones."""

import enum
from typing import Final

from p2pmsg.queue.rules.config import AHEAD_BYTES, QueueLimits
from p2pmsg.queue.rules.in_flight import Deliveries
from p2pmsg.queue.rules.pace import Pace
from recovery.checks import to_ns
from recovery.retry import RetryPolicy

NEVER_NS: Final = 2**63
_SETBACK: Final = 1e-6
"""Decides between workers that have as much in flight: one that failed comes after others for each
time in a row, and one that has done no job yet. Else one that rejects all, and joined first, got
each job again, at once and after each pause, before anybody else did one."""
_SETBACKS_MAX: Final = 100
_DISTRUST_MOST_NS: Final = 60_000_000_000
TIMED_OUT: Final = RetryPolicy(1_000_000_000, _DISTRUST_MOST_NS)
GAVE_ALL: Final = RetryPolicy(20_000_000, _DISTRUST_MOST_NS)
"""For how long others come before a worker at which a job timed out, or that had begun none of its
jobs when it was asked. Not for ever: it may be free again, and the queue cannot see that."""


class WorkerState(enum.IntEnum):
    """Where a worker stands.

    ::

        OPEN ──ask──▶ ASKED ──gave──▶ OPEN          any ──broke──▶ CUT ──joined──▶ OPEN
          ▲             └──had none──▶ VAIN
          └────────got jobs─────────────┘
    """

    OPEN = enum.auto()
    ASKED = enum.auto()
    """It was asked to give jobs back that it has not begun, and has not answered."""
    VAIN = enum.auto()
    """It had none to give, and has got none since."""
    CUT = enum.auto()
    """Its connection broke."""


class WorkerEvent(enum.IntEnum):
    """What happens to a worker."""

    ASK = enum.auto()
    GAVE = enum.auto()
    HAD_NONE = enum.auto()
    GOT = enum.auto()
    BROKE = enum.auto()
    JOINED = enum.auto()


CUT: Final = WorkerState.CUT  # an Enum's member takes 40 ns to find
_S, _E = WorkerState, WorkerEvent
_HERE: Final = {_E.BROKE: _S.CUT, _E.JOINED: _S.OPEN}
WORKER_TRANSITIONS: Final[dict[WorkerState, dict[WorkerEvent, WorkerState]]] = {
    _S.OPEN: {**_HERE, _E.ASK: _S.ASKED},
    _S.ASKED: {**_HERE, _E.GAVE: _S.OPEN, _E.HAD_NONE: _S.VAIN},
    _S.VAIN: {**_HERE, _E.GOT: _S.OPEN},
    _S.CUT: {_E.JOINED: _S.OPEN},
}
"""An event that is not in the table of its state changes nothing: answers come late."""


class BreakerState(enum.Enum):
    """Whether jobs flow."""

    CLOSED = "closed"
    """They do."""

    OPEN = "open"
    """None does, until the pause is over."""

    HALF_OPEN = "half-open"
    """One is being tried, for as long as the pause was; then another one is."""


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
        self._pause = RetryPolicy(to_ns(pause), to_ns(pause_max))
        self._pauses = self._until_ns = self._others = 0
        self.state = BreakerState.CLOSED
        self.failures = 0
        self.trips = 0

    def succeeded(self) -> None:
        """Note that a job was done: everything flows."""
        self.failures = self._pauses = 0
        self.state = BreakerState.CLOSED

    def failed(self, *, now_ns: int, others: int | None = None) -> None:
        """Note that a job was not done. Those that were out when it opened change nothing.

        `others`: how many jobs others have done; it opens only where they did some since the first
        of these failures. None: it opens in any case.
        """
        if not self.failures:
            self._others = others or 0
        self.failures += 1
        if self.state is BreakerState.HALF_OPEN:
            self._pauses += 1
        elif (
            self.state is BreakerState.OPEN
            or self.failures < self._failures_max
            or (others is not None and others <= self._others)
        ):
            return
        else:
            self.trips += 1
        self.state = BreakerState.OPEN
        self._until_ns = now_ns + self._pause.wait_ns(self._pauses)

    def allows(self, *, now_ns: int) -> bool:
        """Whether a job may be handed out."""
        return self.state is BreakerState.CLOSED or now_ns >= self._until_ns

    def tried(self, *, now_ns: int) -> None:
        """Note that one was handed out although it is not `CLOSED`."""
        self.state = BreakerState.HALF_OPEN
        self._until_ns = now_ns + self._pause.wait_ns(self._pauses)

    def next_deadline_ns(self) -> int:
        """Return when a job may be tried."""
        return NEVER_NS if self.state is BreakerState.CLOSED else self._until_ns


class Trust:
    """What a worker did, how much it may have by that, and whether others come first.

    Attributes:
        allowance: how many jobs it may have in flight; one more for each that it does.
        acked, failed: how many jobs it did, and did not (rejected or discarded).
        held_back: how many it held for too long.
        distrusted_until_ns: until when it gets only what no other worker takes, and does not count
            as idle: it may be stuck in a job.
        paused_until_ns: until when it gets nothing.

    """

    def __init__(self, first: int) -> None:
        self._first = self.allowance = first
        self.acked = self.failed = self.held_back = 0
        self.distrusted_until_ns = self.paused_until_ns = self._signs = 0

    def succeeded(self, count: int, ceiling: int) -> None:
        """Note that it did jobs, of at most `ceiling` that it may have."""
        self.acked += count
        self.allowance = max(self._first, min(self.allowance, ceiling)) + count
        self.distrusted_until_ns = self._signs = 0

    def answered(self) -> None:
        """Note that it answered for a job: it is not stuck, or not all of it."""
        self.distrusted_until_ns = self._signs = 0

    def distrust(self, policy: RetryPolicy, *, now_ns: int) -> None:
        """Note a sign that it is stuck: others come first, for longer with each."""
        until_ns = now_ns + policy.wait_ns(self._signs)
        self.distrusted_until_ns = max(self.distrusted_until_ns, until_ns)
        self._signs += 1

    def held(self, count: int, *, until_ns: int) -> None:
        """Note that jobs were taken back that it held for too long.

        It gets nothing until then, ever less after it, and others come first until it answers for
        one.
        """
        self.held_back += count
        self.allowance = max(1, min(self.allowance, self._first) // 2)
        self.distrusted_until_ns, self.paused_until_ns = NEVER_NS, until_ns


class Hold:
    """How long a worker may have jobs and answer for none of them.

    First it is asked for those that it has not begun, and after as long again all are taken.

    Args:
        time_ns: how long; 0: for ever.

    Attributes:
        since_ns: when it answered last, or got a job while it had none.
        due_ns: when something is to be done.
        is_asked: whether it was asked.

    """

    def __init__(self, time_ns: int, *, now_ns: int) -> None:
        self._time_ns = time_ns
        self.begin(now_ns=now_ns)

    def begin(self, *, now_ns: int) -> None:
        """Begin its time again."""
        self.since_ns = now_ns
        self.due_ns = now_ns + self._time_ns if self._time_ns else NEVER_NS
        self.is_asked = False

    def extend(self, until_ns: int, most_ns: int) -> bool:
        """Let it be until then, at most `most_ns` beyond its time; whether that is not too long."""
        latest_ns = self.since_ns + self._time_ns + most_ns
        margin_ns = self._time_ns if self.is_asked else 0
        self.due_ns = max(self.due_ns, min(until_ns, latest_ns) + margin_ns)
        return until_ns <= latest_ns or not self._time_ns

    def ask(self) -> None:
        """Note that it is asked."""
        self.is_asked = True
        self.due_ns += self._time_ns


class Worker:
    """A worker: what it has, when it was heard, and whether it may have more.

    Args:
        worker_id: who it is; a worker that connects again keeps it.
        name: for people.
        limits: of the queue.
        hold_ns: how long it may have jobs and answer for none; 0: for ever.

    Attributes:
        id, name: see above.
        prefetch: how many jobs it may have in flight, however slow it is.
        prefetch_ceiling: how many, however fast.
        frame_bytes_max: the largest frame that it takes.
        assigned: what it has.
        state: see `WorkerState`.
        cut_ns: when its connection broke, of one that is `CUT`.
        last_heard_ns: when it was last heard.
        blocked: there is no way to it, or no space, for what it would get.
        breaker: whether it fails at everything.
        trust: what it may have by what it did.
        hold: how long it may still have what it has.
        warned: the kinds of warnings about it that were logged.

    """

    def __init__(
        self, worker_id: int, name: str, limits: QueueLimits, hold_ns: int, *, now_ns: int
    ) -> None:
        self.id = worker_id
        self.name = name
        self.prefetch = self.prefetch_ceiling = self.frame_bytes_max = 0
        self.assigned = Deliveries()
        self.state = WorkerState.OPEN
        self.cut_ns = self.last_heard_ns = 0
        self.blocked = False
        self.breaker = Breaker(limits.worker_failures_max, limits.pause, limits.pause_max)
        self.trust = Trust(limits.unproven_max)
        self.hold = Hold(hold_ns, now_ns=now_ns)
        self.warned: set[str] = set()
        self._pace = Pace(to_ns(limits.ahead))

    def on(self, event: WorkerEvent) -> None:
        """Go on to the state that follows."""
        self.state = WORKER_TRANSITIONS[self.state].get(event, self.state)

    @property
    def is_cut(self) -> bool:
        """Whether its connection broke."""
        return self.state is CUT

    def takes(self, frame_bytes: int) -> bool:
        """Whether it takes a frame of so many bytes."""
        return frame_bytes <= self.frame_bytes_max

    def limit(self, *, now_ns: int) -> int:
        """Return how many jobs it may have by how fast it does them, and by what it did."""
        most = self.prefetch
        if self.prefetch_ceiling > most and self.assigned.bytes < AHEAD_BYTES:
            pace = self._pace.within_span(now_ns=now_ns)
            most = max(most, min(self.prefetch_ceiling, pace))
        return min(most, self.trust.allowance)

    def credit(self, *, now_ns: int) -> int:
        """Return how many jobs more it may have."""
        has = self.assigned.count
        if self.state is CUT or self.blocked or (has and self.assigned.has_alone):
            return 0
        if now_ns < self.trust.paused_until_ns or not self.breaker.allows(now_ns=now_ns):
            return 0
        return self.limit(now_ns=now_ns) - has

    def order(self, *, now_ns: int) -> float:
        """Return its place among those that may have a job: the lower, the sooner."""
        setbacks = min(self.breaker.failures + (not self.trust.acked), _SETBACKS_MAX)
        return (now_ns < self.trust.distrusted_until_ns) + _SETBACK * setbacks

    def is_distrusted(self, *, now_ns: int) -> bool:
        """Whether it may be stuck in a job."""
        return now_ns < self.trust.distrusted_until_ns

    def succeeded(self, count: int, *, now_ns: int) -> None:
        """Note that it did jobs."""
        self._pace.add(count, now_ns=now_ns)
        self.hold.begin(now_ns=now_ns)
        self.trust.succeeded(count, self.prefetch_ceiling)
        self.breaker.succeeded()

    def failed(self, acked_by_all: int, *, now_ns: int) -> None:
        """Note that it did not do a job; its breaker opens only where others do theirs."""
        self.trust.failed += 1
        self.breaker.failed(now_ns=now_ns, others=acked_by_all - self.trust.acked)
