"""A puller's side of the protocol with one pusher: a state machine without I/O.

::

    NEW ── CHALLENGE: hello, with its token ──▶ WAITING ── WELCOME ──▶ JOINED
       ▲  a hello without token every beat       that hello every beat  │  reports, signs of life
       └── CHALLENGE: the pusher does not know this connection; the lease ended ┘
           DENIED: no right to `pull` there; or the pusher has none to `push` here

A hello without token over a connection that was welcomed says that all is lost: the pusher gives to
others what is on the way. So none is sent while a WELCOME may be on its way, for `_WAITING_NS`.

What the pusher confirms extends the *lease*: until it ends, no other worker gets what this one has.

By the batch jobs come over another connection, from a PUSH socket that the WELCOME names, and there
is no lease, since a job may be done twice. What was sent and does not come shows by the pusher's
count; then the worker says hello again, and gets another socket.
"""

from collections import deque
from collections.abc import Callable, Iterable
from itertools import chain, repeat
from typing import Any, Final

from p2pmsg.control import Denied
from p2pmsg.queue import frames
from p2pmsg.queue.access import DENIED_NS, PusherAccess
from p2pmsg.queue.frames import Detail, Hello, Process, QueueWelcome, Refusal, Report
from p2pmsg.queue.job import ACKED, BY_BATCH, DISCARDED, GONE, HELD, REJECTED, Job, Origin
from p2pmsg.queue.taking import Arrived, Batch
from p2pmsg.subscriber.typed import ValueType
from p2pmsg.wire import Frame, FrameError, Kind, control_frame
from recovery.checks import to_ns

_MS: Final = 1_000_000
_MS_MAX: Final = 1e12
"""30 years, in place of anything longer."""
BEAT_MS: Final = 100.0
"""How often a worker that has jobs says that it lives; one that has none ten times as seldom."""
_UNCONFIRMED_MAX: Final = 10
"""So often `ack_timeout` jobs may be `unconfirmed`."""
_WAITING_NS: Final = 5_000_000_000
"""How long an answer to a CHALLENGE is repeated: a busy process may take seconds for what came."""
UNCONFIRMED_MAX: Final = 64
"""Reports on their way; further answers wait for the next one."""
Ranges = list[tuple[int, int]]
_NEVER_NS: Final = 2**63


class PullerCore:
    """One pusher, as a puller sees it.

    Args:
        puller_id: who it is, at random.
        name: for people.
        prefetch: how many jobs it may have in flight.
        process: by which the pusher sees whether it lives.
        ceiling: how many jobs it may have where it is fast, if that is more.
        frame_bytes_max: the largest frame that it takes.
        values: makes values of a type; None: they come as they are. One that does not fit is a
            `Misfit`.
        answered: called in any thread when jobs were acknowledged, rejected or discarded, so that a
            report may be due. Default: nothing.
        batch: what jobs are taken by where they are acknowledged by the batch; None: they are
            acknowledged one by one.

    Attributes:
        ready: jobs that were not begun.
        unconfirmed: the same, once the lease has ended: it is not known whether they are still
            ours, as where nothing could run here for so long, or a frame took so long. What
            confirms a sign of life says so.
        open: jobs that were begun, by delivery.
        outbox: frames to send.
        invalid: frames that were dropped, by reason.
        acked, rejected, discarded: jobs. refused: answers that came too late.
        given_back: jobs given back when asked. dropped: not begun, and no longer ours.
        arrived: by the batch: frames of jobs that were not begun.
        left: the same of a pusher that is no more; nobody else has them.
        lost: by the batch: jobs that were sent and did not come before their pusher ended.
        endpoint: by the batch: where jobs come from; empty where there is nothing to connect to.
        access: what is denied by the pusher, or to it.

    """

    def __init__(
        self,
        puller_id: int,
        name: str,
        prefetch: int,
        process: Process,
        *,
        ceiling: int = 0,
        frame_bytes_max: int = 16 * 2**20,
        values: ValueType | None = None,
        answered: Callable[[], object] = bool,
        batch: Batch | None = None,
        now_ns: int,
    ) -> None:
        self.id = puller_id
        self.name = name
        self.prefetch = prefetch
        self.prefetch_ceiling = max(prefetch, ceiling)
        self._frame_bytes_max = frame_bytes_max
        self.pusher = ""
        self.ready: deque[Job] = deque()
        self.unconfirmed: deque[Job] = deque()
        self.open: dict[int, Job] = {}
        self._begun: Job | None = None
        self.outbox: deque[bytes] = deque()
        self.invalid: dict[str, int] = {}
        self.acked = self.rejected = self.discarded = self.refused = 0
        self.given_back = self.dropped = self.received = 0
        self.joined = self.leaving = False
        self._batch = batch
        self.arrived: deque[Arrived] = deque()
        self.left: deque[Arrived] = deque()
        self._done: Ranges = []
        self.lost = self._sent = self._came = 0
        self.endpoint = ""
        self.last_heard_ns = now_ns
        self._answered = answered
        self._values = values
        self.access = PusherAccess()
        self._denied_at = (0, 0, 0)
        self._rules = 0
        self.now_ns = now_ns
        """Some recent time: when jobs that are taken now were begun, to a tenth of a second."""
        self._process = process
        self._session = self._incarnation = 0
        self._token = self._waits_until_ns = 0
        self._claims_all = False
        self._ack_timeout_ns = self._job_timeout_ns = 0
        self._lease_ns = 0 if batch is None else _NEVER_NS
        self._unconfirmed_ns = self._unconfirmed_since_ns = self._deliveries_max = 0
        self._beat_ns = self._idle_beat_ns = round(BEAT_MS * _MS)
        self._beat_due_ns = now_ns
        self._serial = self._confirmed = self._next_delivery = 0
        self._acked: list[Job] = []
        self.acks_waiting = self._acked.__len__
        self._refusals: list[tuple[Job, Refusal]] = []
        self._released: Ranges = []
        self._extended: dict[int, float] = {}
        self._answers_recall = False
        self._unconfirmed: deque[tuple[int, bytes, list[Job], Ranges]] = deque()

    def check_access_rules(self, *, now_ns: int) -> None:
        """Give up what the pusher may not push any more; called when rights have changed."""
        self.now_ns = now_ns
        self._rules += 1
        if self.joined and not self.access.may_push(self.pusher):
            self._denied_at = self._session, self._incarnation, self._rules
            self._refuse_pusher(now_ns)

    # ------------------------------------------------------------------------------- the jobs

    def take(self, *, now_ns: int) -> Job | None:
        """Begin the next job; None where there is none."""
        self._begun = None
        self.now_ns = now_ns
        if self._batch is not None:
            return self._take_by_batch(self._batch)
        if now_ns >= self._lease_ns and self.ready:
            self._end_lease()
        if not self.ready:
            return None
        self._begun = job = self.ready[0]
        self.open[job.delivery] = job
        job._begun_ns = now_ns
        self.ready.popleft()
        return job

    def _take_by_batch(self, batch: Batch) -> Job | None:
        """Take the next job, of the next frame where there is none; what was taken is done."""
        if (job := batch.take()) is not None:
            return job
        if batch.core is not None:
            batch.core.collect()
        while source := self.left or self.arrived:
            core = None if source is self.left else self
            try:
                jobs = list(self._jobs_of(source[0].frame)[0])
                del jobs[source[0].count :]  # which were given back
            except FrameError:
                self._count("jobs")
                source.popleft()
                if core is self:
                    self._say_again(self.now_ns)  # it is not here, so the pusher takes it back
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
                self._done.append((start, stop))
                self.acked += stop - start  # where none of these was taken back

    @property
    def ready_count(self) -> int:
        """How many jobs are here and were not begun."""
        by_batch = sum(each.count for each in (*self.arrived, *self.left))
        return len(self.ready) + len(self.unconfirmed) + by_batch

    @property
    def is_missing(self) -> bool:
        """Whether jobs were sent that have not come, over the socket of the latest WELCOME."""
        return self.joined and self._sent > self._came

    def refuse_endpoint(self) -> None:
        """Note that there is nothing to connect to where jobs should come from."""
        self._count("endpoint")

    def rejoin(self, *, now_ns: int) -> None:
        """By the batch: say hello again, as jobs that were sent do not come."""
        self._say_again(now_ns)

    def take_plain(self) -> Job | None:
        """Do as `take` with a job that has nothing but a value, without a look at the lease."""
        self._begun = None
        ready = self.ready
        if not ready or ready[0]._detail is not None:
            return None
        self._begun = job = ready[0]
        self.open[job.delivery] = job
        job._begun_ns = self.now_ns
        ready.popleft()
        return job

    def abandon(self) -> None:
        """Drop all jobs and report none, in a forked child: they are the parent's."""
        for job in (*self.ready, *self.unconfirmed, *self.open.values()):
            job._state = GONE
        self._drop_batch()
        self.arrived.clear()
        self.left.clear()
        self.ready.clear()
        self.unconfirmed.clear()
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
        elsewhere = {*self.open, *(job.delivery for job in self.unconfirmed)}
        there = {job.delivery: job for job in self.ready if job.delivery not in elsewhere}
        self.ready = deque(job for job in there.values() if job._state == HELD)
        if self._unconfirmed:
            serial, _, jobs, done = self._unconfirmed[-1]
            self._serial = max(self._serial, serial)
            reported = {*map(id, jobs)}
            while self._acked and id(self._acked[0]) in reported:
                del self._acked[0]
            while self._refusals and id(self._refusals[0][0]) in reported:
                del self._refusals[0]
            self._done = [each for each in self._done if each not in done]
        if self._begun_by_batch() and self.arrived:
            assert self._batch is not None
            if self.arrived[0].first == self._batch.first:
                self.arrived.popleft()  # it is begun
        self.joined = False
        self.endpoint = ""
        self._token = 0
        if not self.leaving and len(self.outbox) < UNCONFIRMED_MAX:
            # Now, since a WELCOME may be on its way: frames may have been dropped that it is not
            # asked about.
            self._say_hello(0, [], [], self.now_ns)
            self._beat_due_ns = self.now_ns + self._beat_ns

    def ack(self, job: Job) -> bool:
        """Note that a job is done; whether it is ours still, it is reported in any case.

        This and the following are called in any thread, also while a turn is taken: each is noted
        by one `append`, and what follows from it later.
        """
        if job._state != HELD:
            self.refused += 1
            if job._state == GONE and job.session == self._session:
                self._acked.append(job)
                self._answered()
            return False
        self._acked.append(job)
        job._state = ACKED
        self.open.pop(job.delivery, None)
        self.acked += 1
        waiting = len(self._acked)
        if not waiting & (waiting - 1):  # the first one, then after twice as many each time
            self._answered()
        return True

    def reject(self, job: Job, reason: str, delay: float | None) -> bool:
        """Note that a job could not be done."""
        delay_ms = -1.0 if delay is None else max(0.0, float(delay)) * 1000
        is_ours = self._refuse(job, REJECTED, reason, delay_ms)
        self._answered()
        return is_ours

    def discard(self, job: Job, reason: str) -> bool:
        """Note that no worker can do a job."""
        is_ours = self._refuse(job, DISCARDED, reason, -1.0)
        self._answered()
        return is_ours

    def extend(self, job: Job, seconds: float) -> bool:
        """Let a job take `seconds` from now on."""
        if job._state != HELD:
            self.refused += 1
            return False
        extend_ns = to_ns(seconds)
        job._extended_ns = self.now_ns + extend_ns
        if len(self._extended) < frames.RANGES_MAX:
            self._extended[job.delivery] = extend_ns / _MS
        return True

    def _refuse(self, job: Job, state: int, reason: str, delay_ms: float) -> bool:
        if job._state != HELD:
            self.refused += 1
            return False
        is_discard = state == DISCARDED
        text = str(reason)[: frames.REASON_CHARACTERS_MAX].encode(errors="replace").decode()
        refusal = Refusal(job.delivery, is_discard, text, delay_ms)
        self._refusals.append((job, refusal))
        job._state = state
        self.open.pop(job.delivery, None)
        if is_discard:
            self.discarded += 1
        else:
            self.rejected += 1
        return True

    @property
    def unsent(self) -> int:
        """How many answers wait to be sent."""
        answers = len(self._acked) + len(self._done) + len(self._refusals) + len(self._released)
        return answers + len(self._extended) + self._answers_recall

    @property
    def has_unconfirmed(self) -> bool:
        """Whether the pusher does not know yet what became of some jobs, joined or not."""
        return bool(self._acked or self._done or self._refusals or self._unconfirmed)

    # -------------------------------------------------------------------------------- frames in

    def receive(self, data: bytes, *, now_ns: int) -> None:
        """Take a frame from the pusher; what is malformed is counted."""
        self.now_ns = now_ns
        try:
            frame = Frame(data)
            if frame.kind == Kind.JOBS:
                self._receive_jobs(frame, now_ns)
            elif frame.kind == Kind.QUEUE_CONFIRM:
                self._receive_confirm(frame)
            elif frame.kind == Kind.QUEUE_CHALLENGE:
                self._receive_challenge(frame, now_ns)
            elif frame.kind == Kind.QUEUE_WELCOME:
                self._receive_welcome(frame, now_ns)
            elif frame.kind == Kind.QUEUE_RECALL:
                self._receive_recall(frame)
            elif frame.kind == Kind.DENIED:
                self._receive_denied(frame, now_ns)
            else:
                raise FrameError("kind")
        except FrameError as error:
            self._count(str(error))
            return
        self.last_heard_ns = now_ns

    def _receive_jobs(self, frame: Frame, now_ns: int) -> None:
        if not self.joined or frame.session != self._session:
            raise FrameError("session")
        if frame.sequence < self._next_delivery:
            raise FrameError("delivery")  # sent twice, by a pusher that was interrupted
        count = frame.count
        if self._batch is None:
            jobs, confirmed = self._jobs_of(frame)
            self.ready.extend(jobs)
        else:
            self.arrived.append(Arrived(frame))
            self._came, confirmed = self._came + count, 0
        self._next_delivery = frame.sequence + count
        self.received += count
        if now_ns >= self._lease_ns:
            self._end_lease()
        self._confirm(confirmed)

    def _jobs_of(self, frame: Frame) -> tuple[Iterable[Job], int]:
        """Return a frame's jobs, and what it confirms; `FrameError` where it cannot be read."""
        values, sequences, details, confirmed, delivered_ns = frames.read_jobs(frame)
        count = frame.count
        origin = Origin(
            self if self._batch is None else BY_BATCH, frame.session, frame.base_timestamp_ns,
            delivered_ns, self._deliveries_max,
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
        if frame.session != self._session:
            raise FrameError("session")
        self._confirm(frame.sequence)
        self._extend_lease(frame.base_timestamp_ns)
        if self._batch is not None and self.joined:
            self._sent = frames.read(frame, frames.Confirm).sent

    def _receive_challenge(self, frame: Frame, now_ns: int) -> None:
        who = frames.read(frame, frames.Challenge)
        self.joined, self.endpoint = False, ""
        if self._denied_at == (frame.session, who.incarnation, self._rules) and self.access.denial:
            return  # it is the one that may not push here
        self._released = []  # they are not held, so the pusher takes them back by that
        self._claims_all = False
        if frame.session != self._session:
            self._forget()
        elif who.incarnation != self._incarnation:
            self._drop_ready()
            self._claims_all = True
        self._token, self._waits_until_ns = who.token, now_ns + _WAITING_NS
        self._answer_challenge(now_ns)
        # A hello without a token after it would be asked about, too, with a new token, and so on
        # without an end.
        self._beat_due_ns = now_ns + self._beat_ns

    def _receive_welcome(self, frame: Frame, now_ns: int) -> None:
        welcome: QueueWelcome = frames.read(frame, QueueWelcome)
        if not self.access.may_push(welcome.name):
            self._session, self.pusher = frame.session, welcome.name
            self._denied_at = frame.session, welcome.incarnation, self._rules
            self._refuse_pusher(now_ns)
            return
        if bool(welcome.endpoint) != (self._batch is not None):
            raise FrameError("endpoint")
        ack_timeout_ns = _ns_of(welcome.ack_timeout_ms)
        job_timeout_ns = _ns_of(welcome.job_timeout_ms)
        self.access.allow()
        self._session, self._incarnation = frame.session, welcome.incarnation
        self._ack_timeout_ns, self._job_timeout_ns = ack_timeout_ns, job_timeout_ns
        self._deliveries_max = welcome.deliveries_max
        self._beat_ns = min(round(BEAT_MS * _MS), self._ack_timeout_ns // 5)
        self._idle_beat_ns = min(10 * self._beat_ns, self._ack_timeout_ns // 3)
        self.pusher = welcome.name
        for start, stop in welcome.gone:
            self._drop(start, stop)
        self._extend_lease(frame.base_timestamp_ns)
        self._confirm(welcome.confirmed)
        if not self.joined:
            self.outbox.extend(report for _, report, *_ in self._unconfirmed)
            self.endpoint, self._sent, self._came = welcome.endpoint, 0, 0
        self.joined = True
        self._token = 0
        self._answers_recall = False
        self._beat_due_ns = now_ns

    def _receive_recall(self, frame: Frame) -> None:
        recall = frames.read(frame, frames.Recall)
        if not self.joined:
            return
        released: list[int] = []
        by_batch: Ranges = []
        while (self.ready or self.unconfirmed) and len(released) < recall.count:
            released.append((self.unconfirmed or self.ready).pop().delivery)
        left = recall.count
        while self.arrived and left > 0:
            last = self.arrived[-1]
            stop, last.stop = last.stop, max(last.first, last.stop - left)
            by_batch.append((last.stop, stop))
            left -= stop - last.stop
            if not last.count:
                self.arrived.pop()
        self.given_back += len(released) + recall.count - left
        self._released += frames.ranges_of(released) + by_batch
        self._answers_recall = True

    def _receive_denied(self, frame: Frame, now_ns: int) -> None:
        self.access.on_theirs(frames.read(frame, Denied), now_ns=now_ns)
        self._drop_denied(now_ns)

    def _refuse_pusher(self, now_ns: int) -> None:
        """Leave a pusher that may not push here; what it gave goes back, begun or not."""
        self.access.on_ours(self.pusher, now_ns=now_ns)
        self._drop_denied(now_ns)
        self._send(Kind.QUEUE_LEAVE, None, now_ns)

    def _drop_denied(self, now_ns: int) -> None:
        """Drop all that is here: it is others' now, and no answer to it counts."""
        self._drop_ready()
        self._drop_batch()
        self._sent = 0
        session, following = self._session, self._next_delivery
        self._forget()
        self._session, self._next_delivery = session, following
        self._beat_due_ns = now_ns + DENIED_NS

    # ------------------------------------------------------------------------------ frames out

    def flush(self, *, now_ns: int) -> None:
        """Put what was acknowledged into a report."""
        self.collect()
        if not self.joined or len(self._unconfirmed) >= UNCONFIRMED_MAX or not self.unsent:
            return
        # Other threads may append meanwhile: only what is copied is taken away.
        acked, done = self._acked[: frames.RANGES_MAX], self._done
        refusals = self._refusals[: frames.RANGES_MAX]
        report = Report(
            frames.ranges_of([job.delivery for job in acked]) + done,
            [refusal for _, refusal in refusals],
            self._released,
            self._answers_recall,
            list(self._extended.items()),
        )
        serial, acked_count, refused_count = self._serial + 1, len(acked), len(refusals)
        frame = control_frame(
            Kind.QUEUE_REPORT, self.id, report, sequence=serial, timestamp_ns=now_ns
        )
        jobs = acked + [job for job, _ in refusals] if refusals else acked
        self._unconfirmed.append((serial, frame, jobs, done))
        self._serial = serial
        self.outbox.append(frame)
        del self._acked[:acked_count], self._refusals[:refused_count]
        self._released, self._done = [], []
        self._extended = {}
        self._answers_recall = False

    def on_silent(self, *, now_ns: int) -> None:
        """Note that a pusher that was silent is connected to again: its silence begins again."""
        self.last_heard_ns = now_ns

    def on_coming(self, *, now_ns: int) -> None:
        """Note that bytes come: a confirmation of `unconfirmed` jobs may be among them."""
        last_ns = self._unconfirmed_since_ns + _UNCONFIRMED_MAX * self._ack_timeout_ns
        self._unconfirmed_ns = max(
            self._unconfirmed_ns, min(now_ns + self._ack_timeout_ns, last_ns)
        )

    def handle_timer(self, *, now_ns: int) -> None:
        """Do what is due: signs of life, jobs that take too long, a lease that ended."""
        self.now_ns = now_ns
        if self.ready and now_ns >= self._lease_ns:
            self._end_lease()
        if self.unconfirmed and now_ns >= self._unconfirmed_ns:
            self._begin_again()
        self._time_out(now_ns)
        self.flush(now_ns=now_ns)
        if now_ns >= self._beat_due_ns and not self.leaving:
            here = self.ready_count or self.open or self._begun_by_batch()
            busy = here or self._unconfirmed or not self.joined
            self._beat_due_ns = now_ns + (self._beat_ns if busy else self._idle_beat_ns)
            if self.access.denial is not None:
                self._beat_due_ns = now_ns + DENIED_NS
            if len(self.outbox) < UNCONFIRMED_MAX:
                if self.joined:
                    self._send(Kind.QUEUE_REPORT, None, now_ns)
                elif self._token and now_ns < self._waits_until_ns:
                    self._answer_challenge(now_ns)
                else:
                    self._say_hello(0, [], [], now_ns)  # 0 is no token: it is asked who it is

    def next_deadline_ns(self) -> int:
        """Return when `handle_timer` has something to do."""
        due_ns = self._beat_due_ns
        if self.ready:
            due_ns = min(due_ns, self._lease_ns)
        if self.unconfirmed:
            due_ns = min(due_ns, self._unconfirmed_ns)
        return due_ns

    def leave(self, *, now_ns: int) -> None:
        """Give everything back: what was begun counts as rejected; by the batch, as not begun."""
        self._drop_batch()
        for job in list(self.open.values()):
            self._refuse(job, REJECTED, "the worker closed", 0.0)
        self._drop_ready()
        self.flush(now_ns=now_ns)
        self.leaving = True
        if self._session:  # also while it is asked who it is
            self._send(Kind.QUEUE_LEAVE, None, now_ns)
        self.joined = False
        self._begun = None  # jobs refer to this, and the garbage collector does not look into them
        self._unconfirmed.clear()

    # --------------------------------------------------------------------------------- private

    def _answer_challenge(self, now_ns: int) -> None:
        """Say which jobs are here, over the connection that was asked."""
        unconfirmed_jobs = self._unconfirmed_jobs()
        begun = self._begun_by_batch()
        claims = [*((job.delivery, job.sequence) for job in unconfirmed_jobs), *begun]
        if not self._claims_all:
            claims = []
        here = (*unconfirmed_jobs, *self.ready, *self.unconfirmed)
        held = frames.ranges_of([*(job.delivery for job in here), *(each for each, _ in begun)])
        held += ((each.first, each.stop) for each in self.arrived)
        held += chain(self._done, *(done for _, _, _, done in self._unconfirmed))
        self._say_hello(self._token, held, claims, now_ns)

    def _say_hello(self, token: int, held: Ranges, claims: Ranges, now_ns: int) -> None:
        hello = Hello(
            self.name, *self._process, self.prefetch, token, self._confirmed,
            held[: frames.RANGES_MAX], claims[: frames.RANGES_MAX],
            self.prefetch_ceiling, self._frame_bytes_max, self._batch is not None,
        )  # fmt: skip
        self._send(Kind.QUEUE_HELLO, hello, now_ns)

    def _send(self, kind: Kind, body: object, now_ns: int) -> None:
        self.outbox.append(control_frame(kind, self.id, body, timestamp_ns=now_ns))

    def _extend_lease(self, sign_ns: int) -> None:
        # Counted from when the sign was sent: the pusher counts from when it came, hence longer.
        self._lease_ns = max(self._lease_ns, min(sign_ns, self.now_ns) + self._ack_timeout_ns)
        if self.unconfirmed and self._lease_ns > self.now_ns:
            self.ready.extend(self.unconfirmed)
            self.unconfirmed.clear()

    def _confirm(self, serial: int) -> None:
        if serial > self._serial:
            raise FrameError("serial")
        unconfirmed = self._unconfirmed
        while unconfirmed and unconfirmed[0][0] <= serial:
            unconfirmed.popleft()
        self._confirmed = max(self._confirmed, serial)

    def _unconfirmed_jobs(self) -> list[Job]:
        """Return the jobs of which the pusher does not know what became of them.

        Those that are done by the batch are left out: they may be done twice.
        """
        found = [job for _, _, jobs, _ in self._unconfirmed for job in jobs]
        return [*found, *self._acked, *(job for job, _ in self._refusals), *self.open.values()]

    def _begun_by_batch(self) -> list[tuple[int, int]]:
        """Return the jobs that were begun by the batch, and not reported: (delivery, sequence)."""
        batch = self._batch
        return [] if batch is None or batch.core is not self else batch.open()

    def _drop_batch(self) -> None:
        """Hand out no more of the jobs that were begun by the batch."""
        if self._batch is not None and self._batch.core is self:
            self._batch.drop_rest()

    def _end_lease(self) -> None:
        """Begin no more jobs until it is known that they are ours: the lease has ended."""
        if not self.unconfirmed:
            self._unconfirmed_since_ns = self.now_ns
        self._unconfirmed_ns = max(self._unconfirmed_ns, self.now_ns + self._ack_timeout_ns)
        self.unconfirmed.extend(self.ready)
        self.ready.clear()

    def _begin_again(self) -> None:
        # The pusher may have heard us all the while, and only its answers were lost: say again
        # what we have.
        self._say_again(self.now_ns)
        self._drop_ready()

    def _say_again(self, now_ns: int) -> None:
        self.joined, self.endpoint = False, ""
        self._token = 0
        self._beat_due_ns = now_ns

    def _drop_ready(self) -> None:
        by_batch = sum(each.count for each in self.arrived)
        self.dropped += len(self.ready) + len(self.unconfirmed) + by_batch
        self.arrived.clear()
        for job in (*self.ready, *self.unconfirmed):
            job._state = GONE
        self.ready.clear()
        self.unconfirmed.clear()
        self._released = []

    def _drop(self, start: int, stop: int) -> None:
        self.ready = self._without(self.ready, start, stop)
        self.unconfirmed = self._without(self.unconfirmed, start, stop)
        for each in self.arrived:
            if start < each.stop and each.first < stop:
                self.dropped += each.stop - max(start, each.first)
                each.stop = max(start, each.first)
        self.arrived = deque(each for each in self.arrived if each.count)
        for job in list(self.open.values()):
            if start <= job.delivery < stop:
                self._gone(job)
        if any(start <= delivery < stop for delivery, _ in self._begun_by_batch()):
            self._drop_batch()

    def _without(self, jobs: deque[Job], start: int, stop: int) -> deque[Job]:
        kept = deque(job for job in jobs if not start <= job.delivery < stop)
        self.dropped += len(jobs) - len(kept)
        return kept

    def _count(self, reason: str) -> None:
        self.invalid[reason] = self.invalid.get(reason, 0) + 1

    def _gone(self, job: Job) -> None:
        job._state = GONE
        self.open.pop(job.delivery, None)

    def _forget(self) -> None:
        """Drop all: another queue has taken the pusher's place, which knows none of our jobs.

        By the batch nobody else has them either, and they are done here.
        """
        if self._batch is not None:
            self.left.extend(self.arrived)
            self.arrived.clear()
            self._done = []
            self.lost += max(0, self._sent - self._came)
            self._sent = self._came = 0
            if self._batch.core is self:
                self._batch.core = None
        self._begin_again()
        for job in list(self.open.values()):
            self._gone(job)
        self._unconfirmed.clear()
        self._acked.clear()
        self._refusals.clear()
        self._next_delivery = 0
        self._lease_ns = 0 if self._batch is None else _NEVER_NS
        self._confirmed = self._serial

    def _time_out(self, now_ns: int) -> None:
        if not self._job_timeout_ns:
            return
        for job in list(self.open.values()):
            if job._state != HELD:  # an exception came right after its answer
                self.open.pop(job.delivery, None)
                continue
            until_ns = max(job._begun_ns + self._job_timeout_ns, job._extended_ns)
            if until_ns <= now_ns:
                seconds = (now_ns - job._begun_ns) / 1e9
                reason = f"{frames.TIMED_OUT}not done after {seconds:.1f} s"
                self._refuse(job, REJECTED, reason, -1.0)
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
