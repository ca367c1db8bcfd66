"""A puller's side of the protocol with one pusher: a state machine without I/O.

By `PullerState`: a hello without a token asks to be asked, a CHALLENGE has a token, and the hello
that answers it says which jobs are here. A hello without a token over a connection that was
welcomed says that all is lost: the pusher gives to others what is on the way. So that is not said
while a WELCOME may be on its way; the answer is repeated, to which there is one in any case.

What the pusher confirms extends the *lease*: until it ends, no other worker gets what this one has.
After that no job is begun until it is known that it is still ours, as where nothing could run here
for so long, or a frame took so long: what confirms a sign of life says that all are, and a WELCOME
which are not.

By the batch jobs come over another connection, from a PUSH socket that the WELCOME names, and there
is no lease, since a job may be done twice. What was sent and does not come shows by the pusher's
count; then the worker says hello again, and gets another socket.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable
from enum import IntEnum, auto
from itertools import repeat
from typing import Any, Final, NamedTuple

from p2pmsg.control import Denied
from p2pmsg.queue import frames
from p2pmsg.queue.access import DENIED_NS, PusherAccess
from p2pmsg.queue.frames import Challenge, Detail, Hello, Process, QueueWelcome, Ranges, Refusal
from p2pmsg.queue.job import ACKED, BY_BATCH, DISCARDED, GONE, HELD, REJECTED, Job, Origin
from p2pmsg.queue.reports import UNCONFIRMED_MAX, Reports
from p2pmsg.queue.taking import Arrivals, Batch
from p2pmsg.subscriber.typed import ValueType
from p2pmsg.wire import Frame, FrameError, Kind, control_frame
from recovery.checks import to_ns

_MS: Final = 1_000_000
_MS_MAX: Final = 1e12
"""30 years, in place of anything longer."""
BEAT_NS: Final = 100 * _MS
"""How often a worker that has jobs says that it lives; one that has none ten times as seldom."""
_NEVER_NS: Final = 2**63


class PullerState(IntEnum):
    """Where a puller stands at one pusher.

    ::

        NEW ──challenged──▶ ANSWERED ──welcomed──▶ JOINED
         ▲ hello without      hello with its         reports, signs of life
         │ token each beat    token each beat          │
         └── lost: jobs do not come, or cannot be read; rights have changed
    """

    NEW = auto()
    ANSWERED = auto()
    JOINED = auto()
    DENIED = auto()
    """The pusher gives us no right to `pull`; it is asked again each second."""
    REFUSED = auto()
    """It has no right to `push` here; it is asked each second who it is."""
    LEFT = auto()


class PullerEvent(IntEnum):
    """What happens to a puller at one pusher."""

    CHALLENGED = auto()
    WELCOMED = auto()
    DENIED = auto()
    REFUSED = auto()
    LOST = auto()
    """What is known of each other may not be so: begin again."""
    LEAVES = auto()


_S, _E = PullerState, PullerEvent
_ANY: Final = {
    _E.CHALLENGED: _S.ANSWERED,
    _E.WELCOMED: _S.JOINED,
    _E.DENIED: _S.DENIED,
    _E.REFUSED: _S.REFUSED,
    _E.LOST: _S.NEW,
    _E.LEAVES: _S.LEFT,
}
PULLER_TRANSITIONS: Final[dict[PullerState, dict[PullerEvent, PullerState]]] = {
    **dict.fromkeys((_S.NEW, _S.ANSWERED, _S.JOINED, _S.DENIED, _S.REFUSED), _ANY),
    _S.LEFT: {},
}


class PullerIdentity(NamedTuple):
    """Who a puller is to a pusher."""

    id: int
    """At random."""
    name: str
    """For people."""
    process: Process
    """By which the pusher sees whether it lives."""
    prefetch: int
    """How many jobs it may have in flight."""
    ceiling: int = 0
    """How many where it is fast, if that is more."""
    frame_bytes_max: int = 16 * 2**20
    """The largest frame that it takes."""


class _Terms(NamedTuple):
    """What a pusher has said of itself."""

    session: int = 0
    incarnation: int = 0
    name: str = ""
    ack_timeout_ns: int = 0
    job_timeout_ns: int = 0
    deliveries_max: int = 0
    beat_ns: int = BEAT_NS


class PullerCore:
    """One pusher, as a puller sees it.

    Args:
        identity: who the puller is.
        values: makes values of a type; None: they come as they are. One that does not fit is a
            `Misfit`.
        answered: called in any thread when jobs were acknowledged, rejected or discarded, so that a
            report may be due. Default: nothing.
        batch: what jobs are taken by where they are acknowledged by the batch; None: they are
            acknowledged one by one.

    Attributes:
        identity: see above.
        state: where it stands, by `PULLER_TRANSITIONS`.
        ready: jobs that were not begun.
        open: jobs that were begun, by delivery.
        reports: what there is to say of jobs.
        arrivals: by the batch: frames of jobs that were not begun.
        outbox: frames to send.
        invalid: frames that were dropped, by reason.
        acked, counts: jobs, as `PullerStats` has them.
        last_heard_ns: when the pusher was last heard.
        now_ns: some recent time: when jobs that are taken now were begun, to a tenth of a second.
        access: what is denied by the pusher, or to it.

    """

    def __init__(
        self,
        identity: PullerIdentity,
        *,
        values: ValueType | None = None,
        answered: Callable[[], object] = bool,
        batch: Batch | None = None,
        now_ns: int,
    ) -> None:
        self.identity = identity
        self._values = values
        self._answered = answered
        self._batch = batch
        self.access = PusherAccess()
        self.state = PullerState.NEW
        self._terms = _Terms()
        self._challenge = Challenge(0, 0)
        self._lease_ns = 0 if batch is None else _NEVER_NS
        self._beat_due_ns = self.last_heard_ns = self.now_ns = now_ns
        self.ready: deque[Job] = deque()
        self.open: dict[int, Job] = {}
        self._begun: Job | None = None
        """The job that was taken last, which may not have got to the caller."""
        self._next_delivery = 0
        self.reports = Reports(identity.id)
        self.arrivals = Arrivals()
        self.outbox: deque[bytes] = deque()
        self.invalid: Counter[str] = Counter()
        self.acked = 0
        self.counts: Counter[str] = Counter()

    def _on(self, event: PullerEvent) -> None:
        self.state = PULLER_TRANSITIONS[self.state].get(event, self.state)

    @property
    def joined(self) -> bool:
        """Whether the pusher took us on."""
        return self.state is PullerState.JOINED

    def check_access_rules(self, *, now_ns: int) -> None:
        """Give up what the pusher may not push any more; called when rights have changed."""
        self.now_ns = now_ns
        if self.joined and not self.access.may_push(self._terms.name):
            self._refuse_pusher()
        elif self.state is PullerState.REFUSED:
            self.rejoin()

    # ------------------------------------------------------------------------------- the jobs

    def take(self, *, now_ns: int) -> Job | None:
        """Begin the next job; None where there is none."""
        self._begun = None
        self.now_ns = now_ns
        if self._batch is not None:
            return self._take_by_batch(self._batch)
        if not self.ready or now_ns >= self._lease_ns:
            return None
        self._begun = job = self.ready[0]
        self.open[job.delivery] = job
        job._begun_ns = now_ns
        self.ready.popleft()
        return job

    def take_plain(self) -> Job | None:
        """Do as `take` with a job that has nothing but a value, without a look at the clock."""
        self._begun = None
        ready = self.ready
        if not ready or self.now_ns >= self._lease_ns or ready[0]._detail is not None:
            return None
        self._begun = job = ready[0]
        self.open[job.delivery] = job
        job._begun_ns = self.now_ns
        ready.popleft()
        return job

    def _take_by_batch(self, batch: Batch) -> Job | None:
        """Take the next job, of the next frame where there is none; what was taken is done."""
        if (job := batch.take()) is not None:
            return job
        if batch.core is not None:
            batch.core.collect()
        while source := self.arrivals.left or self.arrivals.frames:
            core = None if source is self.arrivals.left else self
            try:
                jobs = list(self._jobs_of(source[0].frame)[0])
                del jobs[source[0].count :]  # which were given back
            except FrameError:
                self._count("jobs")
                source.popleft()
                if core is self:
                    self.rejoin()  # it is not here, so the pusher takes it back
                continue
            is_plain = self._values is None or all(job._detail is None for job in jobs)
            batch.begin(jobs, source[0].first, core, is_plain=is_plain)
            source.popleft()
            return batch.take()
        return None

    def collect(self) -> None:
        """By the batch: have reported what is done."""
        if self._batch is not None and self._batch.core is self:
            start, stop = self._batch.unreported()
            if start < stop:
                self.reports.done.append((start, stop))
                self.acked += stop - start  # where none of these was taken back

    @property
    def has_ready(self) -> bool:
        """Whether `take` has a job."""
        arrivals = self.arrivals
        is_here = bool(self.ready) and self.now_ns < self._lease_ns
        return is_here or bool(arrivals.frames or arrivals.left)

    @property
    def ready_count(self) -> int:
        """How many jobs are here and were not begun."""
        return len(self.ready) + self.arrivals.count

    @property
    def is_missing(self) -> bool:
        """Whether jobs were sent that have not come, over the socket of the latest WELCOME."""
        return self.joined and self.arrivals.missing > 0

    def refuse_endpoint(self) -> None:
        """Note that there is nothing to connect to where jobs should come from."""
        self._count("endpoint")

    def rejoin(self) -> None:
        """Say hello again: jobs that were sent do not come, or rights have changed."""
        self._on(PullerEvent.LOST)
        self.arrivals.endpoint = ""
        self._beat_due_ns = self.now_ns

    def abandon(self) -> None:
        """Drop all jobs and report none, in a forked child: they are the parent's."""
        for job in (*self.ready, *self.open.values()):
            job._state = GONE
        self._drop_batch()
        self.arrivals = Arrivals()
        self.ready.clear()
        self.open.clear()

    def resync(self) -> None:
        """Go on after an exception that came anywhere in it: say again what is here.

        The job that was begun last may not have got to the caller, so it is begun again, unless it
        was answered for. What is lost of a frame the pusher then takes back.
        """
        begun, self._begun = self._begun, None
        if begun is not None and begun._state == HELD:
            self.open.pop(begun.delivery, None)
            self.ready.appendleft(begun)
        there = {job.delivery: job for job in self.ready if job.delivery not in self.open}
        self.ready = deque(job for job in there.values() if job._state == HELD)
        self.reports.resync()
        arrived = self.arrivals.frames
        begun_first = [delivery for delivery, _ in self._begun_by_batch()[:1]]
        if arrived and begun_first == [arrived[0].first]:
            arrived.popleft()  # it is begun
        self.arrivals.endpoint = ""
        self._on(PullerEvent.LOST)
        if self.state is PullerState.NEW and len(self.outbox) < UNCONFIRMED_MAX:
            # Now, since a WELCOME may be on its way: frames may have been dropped that it is not
            # asked about.
            self._say_hello(0, [], [])
            self._beat_due_ns = self.now_ns + self._terms.beat_ns

    def ack(self, job: Job) -> bool:
        """Note that a job is done; whether it is ours still, it is reported in any case.

        This and the following are called in any thread, also while a turn is taken: each is noted
        by one `append`, and what follows from it later.
        """
        acked = self.reports.acked
        if job._state != HELD:
            self.counts["refused"] += 1
            if job._state == GONE and job.session == self._terms.session:
                acked.append(job)
                self._answered()
            return False
        acked.append(job)
        job._state = ACKED
        self.open.pop(job.delivery, None)
        self.acked += 1
        waiting = len(acked)
        if not waiting & (waiting - 1):  # the first one, then after twice as many each time
            self._answered()
        return True

    def extend(self, job: Job, seconds: float) -> bool:
        """Let a job take `seconds` from now on."""
        if job._state != HELD:
            self.counts["refused"] += 1
            return False
        extend_ns = to_ns(seconds)
        job._extended_ns = self.now_ns + extend_ns
        if len(self.reports.extended) < frames.RANGES_MAX:
            self.reports.extended[job.delivery] = extend_ns / _MS
        return True

    def refuse(self, job: Job, state: int, reason: str, delay: float | None = None) -> bool:
        """Note that a job is `REJECTED`: it could not be done; or `DISCARDED`: no worker can do it.

        `delay`: how long it is to wait, in seconds; None: as the pusher likes.
        """
        if job._state != HELD:
            self.counts["refused"] += 1
            return False
        text = str(reason)[: frames.REASON_CHARACTERS_MAX].encode(errors="replace").decode()
        delay_ms = -1.0 if delay is None else max(0.0, float(delay)) * 1000
        refusal = Refusal(job.delivery, state == DISCARDED, text, delay_ms)
        self.reports.refusals.append((job, refusal))
        job._state = state
        self.open.pop(job.delivery, None)
        self.counts["discarded" if state == DISCARDED else "rejected"] += 1
        self._answered()
        return True

    # -------------------------------------------------------------------------------- frames in

    def receive(self, data: bytes, *, now_ns: int) -> None:
        """Take a frame from the pusher; what is malformed is counted."""
        self._begun = None
        self.now_ns = now_ns
        try:
            frame = Frame(data)
            take = self._BY_KIND.get(frame.kind)
            if take is None:
                raise FrameError("kind")
            take(self, frame)
        except FrameError as error:
            self._count(str(error))
            return
        self.last_heard_ns = now_ns

    def _receive_jobs(self, frame: Frame) -> None:
        if not self.joined or frame.session != self._terms.session:
            raise FrameError("session")
        if frame.sequence < self._next_delivery:
            raise FrameError("delivery")  # sent twice, by a pusher that was interrupted
        confirmed = 0
        if self._batch is None:
            jobs, confirmed = self._jobs_of(frame)
            self.ready.extend(jobs)
        else:
            self.arrivals.add(frame)
        self._next_delivery = frame.sequence + frame.count
        self.counts["received"] += frame.count
        self.reports.confirm(confirmed)

    def _jobs_of(self, frame: Frame) -> tuple[Iterable[Job], int]:
        """Return a frame's jobs, and what it confirms; `FrameError` where it cannot be read."""
        values, sequences, details, confirmed, delivered_ns = frames.read_jobs(frame)
        count = frame.count
        origin = Origin(
            self if self._batch is None else BY_BATCH, frame.session, frame.base_timestamp_ns,
            delivered_ns, self._terms.deliveries_max,
        )  # fmt: skip
        if self._values is not None:
            values, details = _typed(self._values, values, details, frame.base_timestamp_ns)
        each: Iterable[int] = (
            sequences if isinstance(sequences, list) else range(sequences, sequences + count)
        )
        detail: Iterable[Detail | None] = details if details is not None else repeat(None)
        deliveries: Iterable[int] = range(frame.sequence, frame.sequence + count)
        if self._batch is not None:
            deliveries = repeat(frame.sequence)  # an int for each would take a tenth more
        return map(Job, values, deliveries, each, repeat(origin), detail), confirmed

    def _receive_confirm(self, frame: Frame) -> None:
        if frame.session != self._terms.session:
            raise FrameError("session")
        self.reports.confirm(frame.sequence)
        self._extend_lease(frame.base_timestamp_ns)
        if self._batch is not None and self.joined:
            self.arrivals.sent = frames.read(frame, frames.Confirm).sent

    def _receive_challenge(self, frame: Frame) -> None:
        challenge: Challenge = frames.read(frame, Challenge)
        is_known = frame.session == self._terms.session
        is_same = is_known and challenge.incarnation == self._terms.incarnation
        if is_same and self.state is PullerState.REFUSED:
            return
        self._on(PullerEvent.CHALLENGED)
        self.arrivals.endpoint = ""
        self.reports.released = []  # they are not held, so the pusher takes them back by that
        if not is_known:
            self._forget()
        elif not is_same:
            self._drop_ready()
        self._challenge = challenge
        self._answer_challenge()
        # A hello without a token after it would be asked about, too, with a new token, and so on
        # without an end.
        self._beat_due_ns = self.now_ns + self._terms.beat_ns

    def _receive_welcome(self, frame: Frame) -> None:
        welcome: QueueWelcome = frames.read(frame, QueueWelcome)
        may_push = self.access.may_push(welcome.name)
        if may_push and bool(welcome.endpoint) != (self._batch is not None):
            raise FrameError("endpoint")
        timeout_ns, job_timeout_ns = _ns_of(welcome.ack_timeout_ms), _ns_of(welcome.job_timeout_ms)
        self._terms = _Terms(
            frame.session, welcome.incarnation, welcome.name, timeout_ns, job_timeout_ns,
            welcome.deliveries_max, min(BEAT_NS, timeout_ns // 5),
        )  # fmt: skip
        if not may_push:
            self._refuse_pusher()
            return
        self.access.allow()
        for start, stop in welcome.gone:
            self._drop(start, stop)
        self._extend_lease(frame.base_timestamp_ns)
        self.reports.confirm(welcome.confirmed)
        if not self.joined:
            self.outbox.extend(self.reports.unconfirmed)
            self.arrivals.connect(welcome.endpoint)
        self._on(PullerEvent.WELCOMED)
        self.reports.answers_recall = False
        self._beat_due_ns = self.now_ns

    def _receive_denied(self, frame: Frame) -> None:
        self.access.on_theirs(frames.read(frame, Denied), now_ns=self.now_ns)
        self._drop_denied(PullerEvent.DENIED)

    def _receive_recall(self, frame: Frame) -> None:
        recall = frames.read(frame, frames.Recall)
        if not self.joined:
            return
        count = min(recall.count, len(self.ready))
        released = frames.ranges_of([self.ready.pop().delivery for _ in range(count)])
        released += self.arrivals.give_back(recall.count)
        self.counts["given_back"] += sum(stop - start for start, stop in released)
        self.reports.released += released
        self.reports.answers_recall = True

    _BY_KIND: Final[dict[int, Callable[["PullerCore", Frame], None]]] = {
        Kind.JOBS: _receive_jobs,
        Kind.QUEUE_CONFIRM: _receive_confirm,
        Kind.QUEUE_CHALLENGE: _receive_challenge,
        Kind.QUEUE_WELCOME: _receive_welcome,
        Kind.QUEUE_RECALL: _receive_recall,
        Kind.DENIED: _receive_denied,
    }

    def _refuse_pusher(self) -> None:
        """Leave a pusher that may not push here; what it gave goes back, begun or not."""
        self.access.on_ours(self._terms.name, now_ns=self.now_ns)
        self._drop_denied(PullerEvent.REFUSED)
        self._send(Kind.QUEUE_LEAVE)

    def _drop_denied(self, event: PullerEvent) -> None:
        """Drop all that is here: it is others' now, and no answer to it counts."""
        following = self._next_delivery
        self._drop_ready()
        self._drop_batch()
        self.arrivals.connect("")
        self._forget()
        self._next_delivery = following
        self._on(event)
        self._beat_due_ns = self.now_ns + DENIED_NS

    # ------------------------------------------------------------------------------ frames out

    def flush(self, *, now_ns: int) -> None:
        """Put what was acknowledged into a report."""
        self._begun = None
        self.collect()
        if self.joined and (report := self.reports.make(now_ns=now_ns)) is not None:
            self.outbox.append(report)

    def on_silent(self, *, now_ns: int) -> None:
        """Note that a pusher that was silent is connected to again: its silence begins again."""
        self.last_heard_ns = now_ns

    def handle_timer(self, *, now_ns: int) -> None:
        """Do what is due: signs of life, jobs that take too long."""
        self.now_ns = now_ns
        self._time_out(now_ns)
        self.flush(now_ns=now_ns)
        if now_ns >= self._beat_due_ns and self.state is not PullerState.LEFT:
            self._beat(now_ns)

    def _beat(self, now_ns: int) -> None:
        """Say that we live, or hello."""
        terms, wait_ns = self._terms, self._terms.beat_ns
        if self.state in (PullerState.DENIED, PullerState.REFUSED):
            wait_ns = DENIED_NS
        elif self.joined and not (
            self.ready_count or self.open or self._begun_by_batch() or self.reports.unconfirmed
        ):
            wait_ns = min(10 * wait_ns, terms.ack_timeout_ns // 3)
        self._beat_due_ns = now_ns + wait_ns
        if len(self.outbox) >= UNCONFIRMED_MAX:
            return
        if self.joined:
            self._send(Kind.QUEUE_REPORT)
        elif self.state is PullerState.ANSWERED:
            self._answer_challenge()
        else:
            self._say_hello(0, [], [])  # 0 is no token: it is asked who it is

    def next_deadline_ns(self) -> int:
        """Return when `handle_timer` has something to do."""
        return self._beat_due_ns

    def leave(self, *, now_ns: int) -> None:
        """Give everything back: what was begun counts as rejected; by the batch, as not begun."""
        self.now_ns = now_ns
        self._drop_batch()
        for job in list(self.open.values()):
            self.refuse(job, REJECTED, "the worker closed", 0.0)
        self._drop_ready()
        self.flush(now_ns=now_ns)
        if self._terms.session:  # also while it is asked who it is
            self._send(Kind.QUEUE_LEAVE)
        self._on(PullerEvent.LEAVES)
        self._begun = None  # jobs refer to this, and the garbage collector does not look into them
        self.reports.forget()

    # --------------------------------------------------------------------------------- private

    def _answer_challenge(self) -> None:
        """Say which jobs are here, over the connection that was asked."""
        mine = [*self.reports.jobs(), *self.open.values()]
        begun = self._begun_by_batch()
        claims: list[tuple[int, int]] = []
        if self._challenge.incarnation != self._terms.incarnation:
            claims = [*((job.delivery, job.sequence) for job in mine), *begun]
        held = [*(job.delivery for job in (*mine, *self.ready)), *(each for each, _ in begun)]
        ranges = frames.ranges_of(held)
        ranges += ((each.first, each.stop) for each in self.arrivals.frames)
        ranges += self.reports.deliveries()
        self._say_hello(self._challenge.token, ranges, claims)

    def _say_hello(self, token: int, held: Ranges, claims: Ranges) -> None:
        who = self.identity
        hello = Hello(
            who.name, *who.process, who.prefetch, token, self.reports.confirmed,
            held[: frames.RANGES_MAX], claims[: frames.RANGES_MAX],
            max(who.prefetch, who.ceiling), who.frame_bytes_max, self._batch is not None,
        )  # fmt: skip
        self._send(Kind.QUEUE_HELLO, hello)

    def _send(self, kind: Kind, body: object = None) -> None:
        self.outbox.append(control_frame(kind, self.identity.id, body, timestamp_ns=self.now_ns))

    def _extend_lease(self, sign_ns: int) -> None:
        # Counted from when the sign was sent: the pusher counts from when it came, hence longer.
        until_ns = min(sign_ns, self.now_ns) + self._terms.ack_timeout_ns
        self._lease_ns = max(self._lease_ns, until_ns)

    def _begun_by_batch(self) -> list[tuple[int, int]]:
        """Return the jobs that were begun by the batch, and not reported: (delivery, sequence)."""
        batch = self._batch
        return [] if batch is None or batch.core is not self else batch.open()

    def _drop_batch(self) -> None:
        """Hand out no more of the jobs that were begun by the batch."""
        if self._batch is not None and self._batch.core is self:
            self._batch.drop_rest()

    def _drop_ready(self) -> None:
        self.counts["dropped"] += len(self.ready) + self.arrivals.clear()
        for job in self.ready:
            job._state = GONE
        self.ready.clear()
        self.reports.released = []

    def _drop(self, start: int, stop: int) -> None:
        kept = deque(job for job in self.ready if not start <= job.delivery < stop)
        self.counts["dropped"] += len(self.ready) - len(kept) + self.arrivals.drop(start, stop)
        self.ready = kept
        for job in list(self.open.values()):
            if start <= job.delivery < stop:
                self._gone(job)
        if any(start <= delivery < stop for delivery, _ in self._begun_by_batch()):
            self._drop_batch()

    def _count(self, reason: str) -> None:
        self.invalid[reason] += 1

    def _gone(self, job: Job) -> None:
        job._state = GONE
        self.open.pop(job.delivery, None)

    def _forget(self) -> None:
        """Drop all: another queue has taken the pusher's place, which knows none of our jobs.

        By the batch nobody else has them either, and they are done here.
        """
        if self._batch is not None:
            self.counts["lost"] += self.arrivals.leave()
            if self._batch.core is self:
                self._batch.core = None
        self._drop_ready()
        for job in list(self.open.values()):
            self._gone(job)
        self.reports.forget()
        self._next_delivery = 0
        self._lease_ns = 0 if self._batch is None else _NEVER_NS

    def _time_out(self, now_ns: int) -> None:
        timeout_ns = self._terms.job_timeout_ns
        if not timeout_ns:
            return
        for job in list(self.open.values()):
            if job._state != HELD:  # an exception came right after its answer
                self.open.pop(job.delivery, None)
            elif max(job._begun_ns + timeout_ns, job._extended_ns) <= now_ns:
                seconds = (now_ns - job._begun_ns) / 1e9
                reason = f"{frames.TIMED_OUT}not done after {seconds:.1f} s"
                self.refuse(job, REJECTED, reason)
                job._state = GONE


def _typed(
    kind: ValueType, values: list[Any], details: list[Detail | None] | None, pushed_ns: int
) -> tuple[list[Any], list[Detail | None] | None]:
    """Return the values of a frame as a type; a job with a `Misfit` has a detail.

    That is so since a job without one is handed out by a shorter way, which does not look at it.
    """
    made, bad = kind.convert_all(values)
    if bad:
        details = [None] * len(values) if details is None else list(details)
        for at in bad:
            details[at] = details[at] or Detail(None, 0, None, None, 1, 0, "", pushed_ns, 0)
    return made, details


def _ns_of(milliseconds: float) -> int:
    """Return a time that a pusher says; `FrameError` where it is none."""
    if not milliseconds >= 0:  # NaN is neither
        raise FrameError("time")
    return round(min(milliseconds, _MS_MAX) * _MS)
