"""The pusher's side of the protocol: frames in, frames out, no I/O. `JobQueue` decides."""

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from p2pmsg.control import Denied
from p2pmsg.queue import frames
from p2pmsg.queue.frames import Admin, Answer, Challenge, Hello, Process, QueueWelcome, Report
from p2pmsg.queue.journal.records import JournalState
from p2pmsg.queue.rules import DeadJob, End, JobQueue, Worker
from p2pmsg.wire import Frame, FrameError, Kind, control_frame
from recovery.checks import to_ns

_MS: Final = 1_000_000
_MS_MAX: Final = 1e15
"""Of what a worker asks for; beyond it there are no longer whole nanoseconds."""
_ALL: Final = 2**31
_CHECK_NS: Final = 10 * _MS
"""How often the process of a broken connection is checked: it may have ended."""
_SILENT_NS: Final = 1500 * _MS
"""From when on that of a worker is checked that gives no sign of life; an idle one gives one every
second. A child that it forked may keep its connection when it has ended."""
_LOOK_NS: Final = 500 * _MS
"""How often that is checked."""
HOLD_MARGIN_S: Final = 60.0
"""How much longer than `job_timeout` a worker may have jobs and acknowledge none, by default."""
LETTERS_MAX: Final = 100
"""How many dead letters go into one answer."""
_REPORT_BYTES_MIN: Final = 32 * 1024
_REPORT_BYTES_A_JOB: Final = 128 + 8 * frames.REASON_CHARACTERS_MAX
"""A report is no longer than this for each job that its worker had at once: an honest one names
each once, or twice where jobs were taken back and came again, and with reasons of 4 bytes each
character. So reading one costs no more than its jobs did."""
ANSWER_BYTES: Final = 2**20

if TYPE_CHECKING:
    from p2pmsg.queue.pull_access import PullAccess

IsGone = Callable[[str, int, int], bool]


class WorkerConnection:
    """A connection, and which worker's it is once it was welcomed."""

    def __init__(self, identity: bytes, token: int, user: str = "") -> None:
        self.identity = identity
        self.token = token
        self.user = user
        self.welcomed = False
        self.worker_id = 0
        self.echo_ns = 0
        self.confirm_due = False
        self.endpoint = ""
        """By the batch: that of the worker's PUSH socket; empty while there is none."""
        self.sent = 0
        """How many jobs went over that."""
        self.gone: frames.Ranges = []
        self.hello_ns = 0


class PusherCore:
    """Speaks with pullers.

    Args:
        queue: the jobs.
        name: who pushes, for people.
        session: the queue's id.
        incarnation: another one at each start.
        job_timeout: how long a job may take, in seconds; 0: as long as it likes.
        is_gone: whether the process (host, pid, started) is known to have ended.
        admin_refusal: why dead letters are not administered over the wire; None where they are.
        frames_at_once: how many frames of jobs `pump` makes at most; it is called again then.
        access_rules: what those who ask may have; None: everything.

    By the batch (`QueueLimits.by_batch`) each worker gets its jobs over a PUSH socket of its own,
    and another one each time that it is welcomed, so that nothing of before can follow.

    Attributes:
        outbox: frames to send, each with the connection's identity.
        job_frames: by the batch: frames for those sockets, each with the worker's id.
        wanted: workers for which such a socket is to be bound, which `on_channel` then reports.
        channels: workers that have one; others' are to be closed.
        invalid: frames that were dropped, by reason.
        admin_refused: requests about dead letters that were refused.
        access_rules: what those who ask may have.

    """

    def __init__(
        self,
        queue: JobQueue,
        *,
        name: str,
        session: int,
        incarnation: int,
        job_timeout: float = 0.0,
        is_gone: IsGone = lambda host, pid, started: False,
        admin_refusal: str | None = None,
        frames_at_once: int = 2**31,
        access_rules: "PullAccess | None" = None,
    ) -> None:
        self.queue = queue
        self.name = name
        self.session = session
        self.outbox: deque[tuple[bytes, bytes]] = deque()
        self.job_frames: deque[tuple[int, bytes]] = deque()
        self.wanted: deque[int] = deque()
        self.channels: set[int] = set()
        self._by_batch = queue.limits.by_batch
        self._warned_otherwise = False
        self.invalid: dict[str, int] = {}
        self._frames_at_once = frames_at_once
        self._incarnation = incarnation
        self._job_timeout = job_timeout
        self._is_gone = is_gone
        self.admin_refused = 0
        self._admin_refusal = admin_refusal
        if queue.limits.hold_timeout is None and job_timeout:
            queue.hold_ns = to_ns(job_timeout + HOLD_MARGIN_S)
        self._connections: dict[bytes, WorkerConnection] = {}
        self._unwelcomed: OrderedDict[bytes, WorkerConnection] = OrderedDict()
        self._connections_max = 2 * queue.limits.workers_max
        self._by_worker: dict[int, WorkerConnection] = {}
        self._processes: dict[int, Process] = {}
        self._serials: dict[int, int] = {}
        self._users: dict[int, str] = {}
        """Of workers, where there are rights."""
        self._absent: dict[int, Process] = {}
        self._token = incarnation  # so that no answer to another start's question fits
        self._due: list[WorkerConnection] = []
        self._check_due_ns = self._check_due_ns_ = 0
        self.access_rules = access_rules

    # ------------------------------------------------------------------------------- frames in

    def receive(self, identity: bytes, data: bytes, *, now_ns: int, user: str = "") -> None:
        """Take a frame from a puller, where there are rights of a user.

        What is malformed is counted.
        """
        try:
            frame = Frame(data)
            if frame.kind == Kind.QUEUE_ADMIN:
                self._receive_admin(identity, frame, now_ns, user)
                return
            if self.access_rules is not None and self._is_denied(
                self.access_rules, identity, frame, user, now_ns
            ):
                return
            connection = self._connection_of(identity, user)
            if frame.kind == Kind.QUEUE_REPORT:
                self._receive_report(connection, frame, now_ns)
            elif frame.kind == Kind.QUEUE_HELLO:
                self._receive_hello(connection, frame, now_ns)
            elif frame.kind == Kind.QUEUE_LEAVE:
                self._receive_leave(connection, frame, now_ns)
            else:
                raise FrameError("kind")
        except FrameError as error:
            self._count(str(error))

    def unreachable(self, identity: bytes, *, now_ns: int) -> None:
        """Note that a connection is no more."""
        connection = self._connections.pop(identity, None)
        self._unwelcomed.pop(identity, None)
        if connection is None or not connection.welcomed:
            return
        if self._by_worker.get(connection.worker_id) is connection:
            del self._by_worker[connection.worker_id]
            self.queue.cut(connection.worker_id, now_ns=now_ns)
            self._check_processes(now_ns)

    def restore(self, state: JournalState, *, now_ns: int) -> None:
        """Take over what an earlier run left in the log."""
        store = self.queue.store
        if state.is_incomplete:
            # Which worker was given what right before it is not known.
            store.close_keys(now_ns=now_ns)
            state.holders.clear()
        for job, holder in state.jobs():
            store.restore(job, holder, now_ns=now_ns)
        holders = set(state.holders.values())
        self._absent = {w: state.processes[w] for w in holders if w in state.processes}
        for dead in sorted(state.dead.values(), key=lambda dead: dead.at_ns):
            store.keep_dead(dead)
        # As they are forgotten: in the log they may have been written again.
        for message_id, (sequence, pushed_ns) in sorted(state.seen.items(), key=lambda i: i[1][1]):
            age_ns = max(0, store.wall_ns(now_ns) - pushed_ns)
            store.dedup.add(message_id, sequence, now_ns=now_ns - age_ns)

    def resync(self, *, now_ns: int) -> None:
        """Put all right after an exception, as after a restart: each worker is asked what it has.

        What was to be sent is not: it may name deliveries that are no more.
        """
        known = [(each.identity, each.user) for each in self._connections.values()]
        self.queue.resync(now_ns=now_ns)
        self._incarnation = self.queue.next_delivery
        self._token = max(self._token, self._incarnation)
        self._absent.update(self._processes)
        self._processes, self._serials, self._users = {}, {}, {}
        self._connections, self._unwelcomed, self._by_worker = {}, OrderedDict(), {}
        self._due.clear()
        self.outbox.clear()
        self.job_frames.clear()
        self.wanted.clear()
        self.channels = set()
        for identity, user in known:
            self._challenge(self._connection_of(identity, user), now_ns)

    def on_channel(self, worker_id: int, endpoint: str) -> None:
        """Note that a worker's PUSH socket is bound there; empty where none can be."""
        connection = self._by_worker.get(worker_id)
        if connection is None or not connection.welcomed:
            return
        if not endpoint:  # it says hello again
            self.queue.dismiss(worker_id, End.NOT_BEGUN, now_ns=connection.hello_ns)
            self._forget_worker(worker_id)
            return
        self.channels.add(worker_id)
        connection.endpoint = endpoint
        self._welcome(connection)

    def user_of(self, worker_id: int) -> str:
        """Return whose key a worker's connection has; "" without keys."""
        connection = self._by_worker.get(worker_id)
        return "" if connection is None else connection.user

    def on_space(self, worker_id: int, *, has_space: bool) -> None:
        """Note whether a worker's PUSH socket takes a frame; one that it did not take is lost."""
        worker = self.queue.workers.get(worker_id)
        if worker is not None:
            worker.blocked = not has_space

    def blocked(self) -> list[int]:
        """Return the workers whose PUSH socket took nothing when that was known last."""
        workers = self.queue.workers.values()
        return [each.id for each in workers if each.blocked and each.id in self.channels]

    def process_of(self, worker_id: int) -> Process:
        """Return the process of a worker."""
        return self._processes.get(worker_id) or self._absent.get(worker_id, Process())

    def probe(self) -> None:
        """Send every worker that has jobs, or a socket, a frame: a broken connection refuses it."""
        for worker_id, connection in self._by_worker.items():
            worker = self.queue.workers.get(worker_id)
            has_any = worker is not None and (worker.assigned.count or self._by_batch)
            if has_any and connection.welcomed:
                self._confirm(connection)

    def check_access_rules(self, *, now_ns: int) -> None:
        """Take the jobs of those who may not have them any more; called when rights changed."""
        access_rules = self.access_rules
        if access_rules is None:
            return
        for connection in list(self._connections.values()):
            if not access_rules.may_pull(connection.user):
                self._deny(access_rules, connection.identity, connection.user, now_ns)
                self._forget_connection(connection)
        for worker_id in [
            one for one, user in self._users.items() if not access_rules.may_pull(user)
        ]:
            self.queue.dismiss(worker_id, End.TAKEN, "no right to pull any more", now_ns=now_ns)
            self._forget_worker(worker_id)

    def _is_denied(
        self, access_rules: "PullAccess", identity: bytes, frame: Frame, user: str, now_ns: int
    ) -> bool:
        """Whether a user may not send a frame; it learns that."""
        connection = self._connections.get(identity)
        if connection is not None and connection.user != user:
            self.unreachable(identity, now_ns=now_ns)  # another one's connection has its id now
        if not access_rules.may_pull(user):
            if identity in self._connections:
                self.check_access_rules(now_ns=now_ns)  # which have changed
            else:
                self._deny(access_rules, identity, user, now_ns)
            return True
        if self._users.get(frame.session, user) != user:
            raise FrameError("worker")  # it is another's
        return False

    def _deny(self, access_rules: "PullAccess", identity: bytes, user: str, now_ns: int) -> None:
        why = access_rules.deny(user, "pull", now_ns=now_ns)
        body = Denied("pull", [self.name], why)
        self.outbox.append((identity, control_frame(Kind.DENIED, self.session, body)))

    def _connection_of(self, identity: bytes, user: str) -> WorkerConnection:
        connection = self._connections.get(identity)
        if connection is None:
            if len(self._connections) >= self._connections_max:
                if not self._unwelcomed:
                    raise FrameError("peers")
                del self._connections[self._unwelcomed.popitem(last=False)[0]]
            self._token += 1
            connection = WorkerConnection(identity, self._token, user)
            self._connections[identity] = self._unwelcomed[identity] = connection
        return connection

    def _receive_report(self, connection: WorkerConnection, frame: Frame, now_ns: int) -> None:
        worker = self._worker_of(connection, frame)
        if worker is None:
            self._challenge(connection, now_ns)
            return
        serial = frame.sequence
        if serial:
            if len(frame.data) > _REPORT_BYTES_MIN + _REPORT_BYTES_A_JOB * worker.assigned.most:
                raise FrameError("report_bytes")
            report = frames.read(frame, Report)
            last = self._serials[worker.id]
            if serial > last + 1:
                self._challenge(connection, now_ns)
                return
            if serial == last + 1:
                self._take_report(worker, report, now_ns)
                self._serials[worker.id] = serial
        else:
            connection.echo_ns = frame.base_timestamp_ns
        self.queue.heard(worker, now_ns=now_ns)
        if not connection.confirm_due:
            connection.confirm_due = True
            self._due.append(connection)

    def _worker_of(self, connection: WorkerConnection, frame: Frame) -> Worker | None:
        """Return the worker that speaks; None where it has to say first who it is."""
        if not connection.welcomed or frame.session != connection.worker_id:
            return None
        return self.queue.workers.get(connection.worker_id)

    def _take_report(self, worker: Worker, report: Report, now_ns: int) -> None:
        queue = self.queue
        for start, stop in report.acks:
            queue.ack(worker, start, min(stop, queue.next_delivery), now_ns=now_ns)
        for _, extend_ms in report.extended:
            if 0 <= extend_ms <= _MS_MAX:
                queue.extend(worker, round(extend_ms * _MS), now_ns=now_ns)
            else:
                self._count("extend")
        for delivery, discard, reason, delay_ms in (
            (r.delivery, r.discard, r.reason, r.delay_ms) for r in report.refusals
        ):
            if discard:
                queue.discard(worker, delivery, reason, now_ns=now_ns)
            else:
                delay_ns = round(min(delay_ms, _MS_MAX) * _MS) if delay_ms >= 0 else None
                timed_out = reason.startswith(frames.TIMED_OUT)
                queue.reject(worker, delivery, reason, delay_ns, timed_out=timed_out, now_ns=now_ns)
        if report.released or report.answers_recall:
            queue.release(worker, report.released, now_ns=now_ns, answer=report.answers_recall)

    def _receive_hello(self, connection: WorkerConnection, frame: Frame, now_ns: int) -> None:
        hello: Hello = frames.read(frame, Hello)
        self._check_acknowledges(hello)
        if hello.token != connection.token:
            self._challenge(connection, now_ns)
            return
        connection.gone, connection.hello_ns = [], frame.base_timestamp_ns
        if not connection.welcomed:
            known = frame.session in self.queue.workers
            worker = self.queue.join(
                frame.session, hello.name, hello.prefetch, ceiling=hello.prefetch_ceiling,
                frame_bytes_max=hello.frame_bytes_max, now_ns=now_ns,
            )  # fmt: skip
            if worker is None:
                self._count("workers_max")
                return
            before = self._by_worker.get(worker.id)
            if before is not None and before is not connection:
                self._forget_connection(before)
            self._unwelcomed.pop(connection.identity, None)
            connection.welcomed, connection.worker_id = True, worker.id
            self._by_worker[worker.id] = connection
            self._processes[worker.id] = Process(hello.host, hello.pid, hello.started)
            if self.access_rules is not None:
                self._users[worker.id] = connection.user
            if not known:
                self._serials[worker.id] = hello.confirmed
                # The latest first: of a job that it had before, it may not know what became.
                if self.queue.store.restored:  # reports of what it did before a restart may follow
                    worker.assigned.most = len(hello.claims)
                for delivery, sequence in sorted(hello.claims, reverse=True):
                    self.queue.adopt(worker, delivery, sequence, now_ns=now_ns)
                self.queue.store.unclaimed(worker.id, now_ns=now_ns)
            # Over the same connection it was asked again who it is, and nothing was lost.
            ended = before is not connection or self._by_batch
            connection.gone = self.queue.reconcile(worker, hello.held, now_ns=now_ns, ended=ended)
            if self._by_batch:
                worker.blocked, connection.endpoint, connection.sent = True, "", 0
                self.wanted.append(worker.id)
        if connection.endpoint or not self._by_batch:
            self._welcome(connection)

    def _check_acknowledges(self, hello: Hello) -> None:
        """Raise `FrameError` where a worker acknowledges jobs otherwise than this pusher has it."""
        if hello.by_batch == self._by_batch:
            return
        if not self._warned_otherwise:
            self._warned_otherwise = True
            how = "batch" if self._by_batch else "each"
            self.queue.warnings.append((hello.name, f'gets nothing: it needs acknowledge="{how}"'))
        raise FrameError("acknowledge")

    def _welcome(self, connection: WorkerConnection) -> None:
        limits = self.queue.limits
        welcome = QueueWelcome(
            self.name, self._incarnation, self._serials[connection.worker_id],
            to_ns(limits.ack_timeout) / _MS, to_ns(self._job_timeout) / _MS, connection.gone,
            limits.deliveries_max, connection.endpoint,
        )  # fmt: skip
        self._send(connection, Kind.QUEUE_WELCOME, welcome, timestamp_ns=connection.hello_ns)

    def _receive_leave(self, connection: WorkerConnection, frame: Frame, now_ns: int) -> None:
        # Also from one that was asked who it is, or came over a new connection: it knows its id,
        # which is random, and does not stay.
        worker = self.queue.workers.get(frame.session)
        if worker is not None and self._by_worker.get(worker.id) in (connection, None):
            self.queue.dismiss(worker.id, End.NOT_BEGUN, now_ns=now_ns)
            self._forget_worker(worker.id)

    def _receive_admin(self, identity: bytes, frame: Frame, now_ns: int, user: str) -> None:
        admin: Admin = frames.read(frame, Admin)
        refusal, denied = self._admin_refusal, ""
        if (
            refusal is None
            and self.access_rules is not None
            and not self.access_rules.may_admin(user)
        ):
            refusal, denied = self.access_rules.deny(user, "admin", now_ns=now_ns), self.name
        if refusal is not None:
            self.admin_refused += 1
            refused = Answer(admin.request, 0, [], refusal, denied)
            self.outbox.append((identity, control_frame(Kind.QUEUE_ANSWER, self.session, refused)))
            return
        store = self.queue.store
        letters: list[Any] = []
        if admin.action == "list":
            count = len(store.dead)
            letters = self._letters(admin)
        elif admin.action in ("retry", "purge"):
            chosen = None if admin.everything else admin.sequences
            count = store.act_on_dead(admin.action, chosen, now_ns=now_ns)
        else:
            raise FrameError("action")
        answer = Answer(admin.request, count, letters)
        self.outbox.append((identity, control_frame(Kind.QUEUE_ANSWER, self.session, answer)))

    def _letters(self, admin: Admin) -> list[Any]:
        after = admin.sequences[0] if admin.sequences else 0
        dead = sorted(self.queue.store.dead.list(), key=lambda dead: dead.job.sequence)
        letters: list[Any] = []
        size = 0
        for letter in dead:
            if letter.job.sequence < after:
                continue
            size += letter.job.size
            if letters and (len(letters) >= LETTERS_MAX or size > ANSWER_BYTES):
                break
            letters.append(letter_row(letter))
        return letters

    # ------------------------------------------------------------------------------ frames out

    def pump(self, *, now_ns: int) -> None:
        """Hand out what can be handed out, ask back what should be, confirm what came in."""
        queue, outbox, session = self.queue, self.outbox, self.session
        left = self._frames_at_once
        while left > 0 and (found := queue.take(now_ns=now_ns)) is not None:
            left -= 1
            worker, batch = found
            connection = self._by_worker[worker.id]
            frame = frames.jobs_frame(session, batch, self._serials[worker.id])
            if not worker.takes(len(frame)):
                queue.withdraw(worker, batch, len(frame), now_ns=now_ns)
                continue
            if self._by_batch:
                connection.sent += batch.count
                self.job_frames.append((worker.id, frame))
            else:
                outbox.append((connection.identity, frame))
        for worker, count in queue.recalls(now_ns=now_ns):
            self._send(self._by_worker[worker.id], Kind.QUEUE_RECALL, frames.Recall(count))
        if self._due:
            for connection in self._due:
                connection.confirm_due = False
                if connection.worker_id in self._serials:
                    self._confirm(connection)
            self._due.clear()

    def handle_timer(self, *, now_ns: int) -> None:
        """Do what is due, and hand out what is ready then."""
        self._check_processes(now_ns)
        for worker, has_lost in self.queue.handle_timer(now_ns=now_ns):
            connection = self._by_worker.get(worker.id)
            if connection is not None and has_lost:
                # Its answer is compared with what it should have.
                self._challenge(connection, now_ns)
            elif connection is not None:
                self._send(connection, Kind.QUEUE_RECALL, frames.Recall(_ALL))
        for worker_id in [w for w in self._serials if w not in self.queue.workers]:
            self._forget_worker(worker_id)
        self.pump(now_ns=now_ns)

    def next_deadline_ns(self, *, now_ns: int) -> int | None:
        """Return when `handle_timer` has something to do."""
        due_ns = self.queue.next_deadline_ns(now_ns=now_ns)
        cut = any(worker.is_cut for worker in self.queue.workers.values())
        if cut or self._absent:
            check_ns = max(self._check_due_ns, now_ns)
            due_ns = check_ns if due_ns is None else min(due_ns, check_ns)
        silent = [
            worker.last_heard_ns for worker in self.queue.workers.values() if self._knows(worker)
        ]
        if silent:
            checked_ns = max(self._check_due_ns_, min(silent) + _SILENT_NS)
            due_ns = checked_ns if due_ns is None else min(due_ns, checked_ns)
        return due_ns

    # --------------------------------------------------------------------------------- private

    def _check_processes(self, now_ns: int) -> None:
        """Take their jobs from those whose connection broke, or is silent, since they ended."""
        checks, looks = now_ns >= self._check_due_ns, now_ns >= self._check_due_ns_
        if not (checks or looks):
            return
        if looks:
            self._check_due_ns_ = now_ns + _LOOK_NS
        if checks and self._absent:
            self._check_absent(now_ns)
        for worker in list(self.queue.workers.values()):
            if checks and worker.is_cut:
                self._check_due_ns = now_ns + _CHECK_NS
            elif not (looks and now_ns >= worker.last_heard_ns + _SILENT_NS):
                continue
            if self._knows(worker) and self._is_gone(*self._processes[worker.id]):
                self.queue.dismiss(worker.id, End.LOST, "process ended", now_ns=now_ns)
                self._forget_worker(worker.id)

    def _knows(self, worker: Worker) -> bool:
        """Whether it is known which process a worker is."""
        process = self._processes.get(worker.id)
        return process is not None and bool(process[0])

    def _check_absent(self, now_ns: int) -> None:
        self._check_due_ns = now_ns + _CHECK_NS
        for worker_id, process in list(self._absent.items()):
            if worker_id in self.queue.workers or not self.queue.store.restored:
                del self._absent[worker_id]
            elif process[0] and self._is_gone(*process):
                del self._absent[worker_id]
                self.queue.store.unclaimed(worker_id, now_ns=now_ns)

    def _forget_worker(self, worker_id: int) -> None:
        self._serials.pop(worker_id, None)
        self._processes.pop(worker_id, None)
        self._users.pop(worker_id, None)
        self.channels.discard(worker_id)
        connection = self._by_worker.pop(worker_id, None)
        if connection is not None:
            connection.welcomed = False
            self._forget_connection(connection)

    def _forget_connection(self, connection: WorkerConnection) -> None:
        self._connections.pop(connection.identity, None)
        self._unwelcomed.pop(connection.identity, None)

    def _challenge(self, connection: WorkerConnection, now_ns: int) -> None:
        if connection.welcomed:
            # It has to begin again over this very connection: with a new token, and without jobs
            # on the way to it, as if the connection had been broken.
            connection.welcomed = False
            self._unwelcomed[connection.identity] = connection
            self.queue.cut(connection.worker_id, now_ns=now_ns)
            self._token += 1
            connection.token = self._token
        self._send(connection, Kind.QUEUE_CHALLENGE, Challenge(self._incarnation, connection.token))

    def _send(self, connection: WorkerConnection, kind: Kind, body: Any, **header: int) -> None:
        frame = control_frame(kind, self.session, body, **header)  # type: ignore[arg-type]
        self.outbox.append((connection.identity, frame))

    def _confirm(self, connection: WorkerConnection) -> None:
        serial, sign_ns = self._serials[connection.worker_id], connection.echo_ns
        body = frames.Confirm(connection.sent) if self._by_batch else None
        self._send(connection, Kind.QUEUE_CONFIRM, body, sequence=serial, timestamp_ns=sign_ns)

    def _count(self, reason: str) -> None:
        self.invalid[reason] = self.invalid.get(reason, 0) + 1


def letter_row(dead: DeadJob) -> list[Any]:
    """Return a dead letter as it goes over the wire."""
    job = dead.job
    history = [list(failure) for failure in job.history]
    return [
        job.sequence, job.payload, job.pushed_ns, job.key, job.priority, job.message_id,
        job.headers, job.deliveries, job.first_ns, job.last_ns, history, dead.why, dead.at_ns,
    ]  # fmt: skip
