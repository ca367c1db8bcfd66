"""The jobs of a pusher that are acknowledged one by one: accepting, handing out, counting."""

import ipaddress
import secrets
import time
from typing import TYPE_CHECKING, Any, Final

import transports
from p2pmsg.checks import at_least
from p2pmsg.errors import ConfigError, LogFailedError
from p2pmsg.publisher.batch import check_key, check_size, pack_exactly, pack_headers
from p2pmsg.queue import process_id
from p2pmsg.queue.batching import PushBatch
from p2pmsg.queue.config import (
    GATHER_WITHIN_NS,
    IDLE_ROUNDS,
    IN_FLIGHT_CEILING,
    IN_FLIGHT_MIN,
    LINGER_S,
    PusherConfig,
)
from p2pmsg.queue.journal.file import FileJournal
from p2pmsg.queue.journal.records import JournalState, push_record
from p2pmsg.queue.pull_access import access_of
from p2pmsg.queue.pusher_core import PusherCore
from p2pmsg.queue.pusher_io import FRAMES_AT_ONCE, PusherIO
from p2pmsg.queue.rules import PRIORITY_MAX, DeadJob, JobQueue, QueuedJob, QueueLimits
from p2pmsg.queue.stats import PusherStats, WorkerStats
from recovery.checks import to_ns

if TYPE_CHECKING:
    from p2pmsg.security.settings import Security

_ACK_TIMEOUT_S: Final = 30.0
_DELAY_MAX: Final = 366 * 86400.0
_NEVER_NS: Final = 2**63
_MESSAGE_ID_BYTES_MAX: Final = 255


class EachJobs:
    """Keeps each job until one worker has done it.

    Attributes:
        batch: what `push` gathers.
        session: the queue's id.
        is_failing: whether the log could not be written the last time.

    """

    def __init__(
        self,
        config: PusherConfig,
        name: str,
        place: str,
        server: transports.ZmqQueueServer,
        state: JournalState,
        journal: FileJournal | None,
        security: "Security | None",
    ) -> None:
        self._config = config
        self._server = server
        self._journal = journal
        queue = self._queue(state)
        self.session = state.session if state.session is not None else secrets.randbits(64)
        access_rules, watch = access_of(security, name, server)
        self.core = PusherCore(
            queue,
            name=name,
            session=self.session,
            incarnation=queue.next_delivery,
            job_timeout=config.job_timeout,
            is_gone=process_id.is_gone,
            admin_refusal=_admin_refusal(config.admin, place, security),
            frames_at_once=FRAMES_AT_ONCE,
            access_rules=access_rules,
        )
        self.core.restore(state, now_ns=time.monotonic_ns())
        self._missing = state.missing
        self.io = PusherIO(self.core, server, journal, access_rules=watch)
        self._syncs = journal is not None and journal.is_always
        self._store = queue.store
        self.batch = PushBatch(self._store, config, state.next_sequence)
        self._gathering = False
        self._idle_rounds = self._pushed_ns = self._duplicates = self._due_ns = 0
        self._granted = 0  # how many in flight `drain` has said there is space for

    def _queue(self, state: JournalState) -> JobQueue:
        config, now_ns, wall_ns = self._config, time.monotonic_ns(), time.time_ns()
        limits = QueueLimits(
            ack_timeout=ack_timeout_of(config),
            deliveries_max=config.deliveries_max,
            retry_delay=config.retry_delay,
        )
        return JobQueue(
            limits,
            wall_offset_ns=wall_ns - now_ns,
            first_delivery=max(wall_ns, state.deliveries),  # beyond those of an earlier run
            records=self._journal is not None,
        )

    @property
    def in_flight(self) -> int:
        """How many jobs are neither done nor dead letters, gathered ones left out."""
        return self._store.in_flight + len(self.io.unsynced)

    @property
    def limit(self) -> str:
        """What `push` waits at, for people."""
        return f"in_flight_max ({self._in_flight_max}) jobs, or their bytes"

    @property
    def is_failing(self) -> bool:
        """Whether nothing is handed out, since the log cannot be written."""
        return self.io.is_failing

    def job(
        self, value: Any, key: Any, priority: Any, delay: Any, message_id: Any, headers: Any
    ) -> QueuedJob:
        """Return a job that has no sequence yet, or raise as `push` says."""
        check_key(key)
        if type(priority) is not int or not 0 <= priority <= PRIORITY_MAX:
            raise ConfigError("priority", f"an int from 0 to {PRIORITY_MAX}", priority)
        at_least("delay", delay, 0)
        if delay > _DELAY_MAX:
            raise ConfigError("delay", f"at most {_DELAY_MAX:.0f} s", delay)
        if message_id is not None:
            ok = isinstance(message_id, str) and message_id != ""
            if not ok or len(message_id.encode(errors="replace")) > _MESSAGE_ID_BYTES_MAX:
                limit = f"a str of 1 to {_MESSAGE_ID_BYTES_MAX} bytes"
                raise ConfigError("message_id", limit, message_id)
        payload = pack_exactly(value)
        raw = pack_headers(headers)
        packed = None if raw is None else bytes(raw)
        check_size("job", len(payload) + len(packed or b""), self._config.message_bytes_max)
        job = QueuedJob(0, payload, time.time_ns(), key, priority, message_id, packed)
        if delay:
            delay_ns = round(delay * 1e9)
            job.due_ns, job.ready_ns = job.pushed_ns + delay_ns, time.monotonic_ns() + delay_ns
        return job

    def try_push(self, job: QueuedJob) -> tuple[int, int] | None:
        """Accept a job; None while the queue is full.

        Returns its sequence, and up to where the log has to be synced before `push` may return with
        `fsync="always"`.
        """
        now_ns = time.monotonic_ns()
        store, journal, batch = self._store, self._journal, self.batch
        if job.message_id is not None:
            known = store.dedup.find(job.message_id, now_ns=now_ns)
            if known is not None:
                self._duplicates += 1
                return known, 0 if journal is None else journal.written
        batch.seal()
        if not self._has_space(job.size):
            self.io.work(now_ns=now_ns)
            if not self._has_space(job.size):
                self.check_log()
                return None
        sequence = job.sequence = batch.next
        if journal is not None:
            batch.next = sequence + 1  # first, so that after Ctrl-C no other job gets it
            try:
                journal.append(push_record(job))
            except OSError as error:
                batch.next = sequence
                raise journal.failed(error) from error
        batch.next = sequence + 1
        self.io.accept(job, now_ns=now_ns)
        if self._syncs and journal is not None:
            return sequence, journal.written
        close = now_ns - self._pushed_ns < GATHER_WITHIN_NS
        if journal is None and close and not self._gathering:
            self._gathering = True
            self._idle_rounds = self._due_ns = 0
        if self._gathering:
            batch.open(self._in_flight_max)
        self.io.work(now_ns=now_ns)
        # From here, so that what counts is the caller's pace and not how long handing out takes.
        self._pushed_ns = time.monotonic_ns()
        return sequence, 0

    def work(self) -> None:
        """Hand out all that can be handed out."""
        self.batch.seal()
        self.io.work(now_ns=time.monotonic_ns())
        self.check_log()

    def check_log(self) -> None:
        """Raise `LogFailedError` where the log cannot be forced to the disk any more."""
        if self._journal is not None and self._journal.broken is not None:
            raise LogFailedError(self._journal.broken)

    def turn(self, now_ns: int) -> None:
        """Do one round."""
        if self._gathering:
            self._idle_rounds = 0 if self.batch.ends else self._idle_rounds + 1
            self.batch.seal()
            if self._idle_rounds > IDLE_ROUNDS:
                self._gathering = False
        self._due_ns = _NEVER_NS
        if not self.io.work(now_ns=now_ns):
            self._due_ns = 0
        elif self._gathering:
            self.batch.open(self._in_flight_max)
            self._due_ns = time.monotonic_ns() + to_ns(LINGER_S)

    def next_deadline_ns(self) -> int:
        """Return when the next turn is due."""
        if self._due_ns < _NEVER_NS:
            return self._due_ns
        return self.io.next_deadline_ns(now_ns=time.monotonic_ns())

    @property
    def pushed_due_ns(self) -> int:
        """When a turn is due for what was pushed; far away where for nothing."""
        return self._due_ns

    def resync(self) -> None:
        """Put all right after an exception that came somewhere in here."""
        self.batch.resync(is_elsewhere=self._store.knows(self.batch.first))
        self.io.resync(now_ns=time.monotonic_ns())
        self._gathering, self._due_ns = False, 0

    def fits(self, job: QueuedJob) -> bool:
        """Whether `try_push` would accept it, without a look at what has come."""
        return self._has_space(job.size)

    def space(self, refused_bytes: int) -> int:
        """Return how many jobs fit in, of which the first one may have any size.

        Half of the bytes are enough, or a worker that keeps one job would be waited for where they
        are fewer than two of the largest have. So a larger job may be refused, once, of
        `refused_bytes`: then there is space only for as large a one.
        """
        config, batch = self._config, self.batch
        in_flight = self.in_flight + len(batch.ends)
        if in_flight == 0:
            return 1
        used_bytes = self._store.bytes + self.io.unsynced_bytes + len(batch.buffer)
        half = config.in_flight_bytes_max // 2
        size = min(config.message_bytes_max, max(half, refused_bytes))
        if used_bytes + size > config.in_flight_bytes_max:
            return 0
        # It follows the pace of the workers, and may be lower a moment later, when it is pushed.
        self._granted = limit = self._in_flight_max
        return max(0, limit - in_flight)

    def _has_space(self, size: int) -> bool:
        config, in_flight = self._config, self.in_flight
        if in_flight == 0:
            return True
        fits = self._store.bytes + self.io.unsynced_bytes + size <= config.in_flight_bytes_max
        return fits and (in_flight < self._granted or in_flight < self._in_flight_max)

    @property
    def _in_flight_max(self) -> int:
        """How many jobs may be in flight: what was given, or what is done within a moment."""
        most = self._config.in_flight_max
        if most is not None:
            return most
        done = self.core.queue.pace.within_span(now_ns=time.monotonic_ns())
        return max(IN_FLIGHT_MIN, min(done, IN_FLIGHT_CEILING))

    def dead(self) -> list[DeadJob]:
        """Return the dead letters."""
        return self._store.dead.list()

    def act_on_dead(self, action: str, sequences: list[int] | None) -> int:
        """`retry` or purge dead letters; return how many."""
        now_ns = time.monotonic_ns()
        count = self._store.act_on_dead(action, sequences, now_ns=now_ns)
        self.io.work(now_ns=now_ns)
        return count

    def close(self) -> None:
        """Close the endpoint; the log is left to its owner."""
        self.batch.seal()
        self.io.record()
        self._server.close(linger_ms=500)

    def stats(self) -> PusherStats:
        """Return the counters."""
        core, queue, store = self.core, self.core.queue, self._store
        now_ns = time.monotonic_ns()
        waiting = len(self.batch.ends) + len(self.io.unsynced)
        invalid = dict(core.invalid)
        if self._server.malformed:
            invalid["parts"] = self._server.malformed
        return PusherStats(
            endpoint=self._server.endpoint,
            pushed=store.pushed + waiting,
            restored=store.taken_over,
            retried=store.retried,
            duplicates=self._duplicates,
            done=store.done,
            dead=store.died,
            in_flight=store.in_flight + waiting,
            in_hands=queue.assigned_count,
            delayed=store.delayed,
            waiting_for_key=store.key_order.waiting,
            delivered=queue.delivered,
            failed=store.failed,
            recalled=queue.recalled,
            taken_back=queue.taken_back,
            refused=queue.refused,
            dead_letters=len(store.dead),
            dead_letters_dropped=store.dead.dropped,
            breaker=queue.breaker.state.value,
            breaker_trips=queue.breaker.trips,
            frames_invalid=invalid,
            held_back=queue.held_back,
            delays_capped=queue.delays_capped,
            extends_capped=queue.extends_capped,
            admin_refused=core.admin_refused,
            connections_refused=self._server.refused_by_key,
            denied=0 if core.access_rules is None else core.access_rules.denials.count,
            connections_revoked=self._server.revoked,
            log_missing=self._missing,
            workers=tuple(
                WorkerStats(
                    worker.name, worker.assigned.count, worker.acked, worker.failed,
                    worker.cut_ns is None, worker.breaker.state.value,
                    min(worker.limit(now_ns=now_ns), worker.allowance), worker.held_back,
                )
                for worker in queue.workers.values()
            ),
        )  # fmt: skip


def ack_timeout_of(config: PusherConfig) -> float:
    """Return how long a worker may be silent, in seconds."""
    return _ACK_TIMEOUT_S if config.ack_timeout is None else config.ack_timeout


def _admin_refusal(admin: str, endpoint: str, security: "Security | None") -> str | None:
    """Return why dead letters are not administered over the wire; None where they are."""
    if admin == "never":
        return 'the pusher administers no dead letters over the wire (admin="never")'
    if security is not None and security.access_rules is not None:
        return None  # each key is looked at: where it comes from does not matter
    if admin == "always" or _is_local(endpoint):
        return None
    return (
        f"the pusher is bound to {endpoint}, neither loopback nor a Unix socket, so anybody could "
        'do this; PusherConfig(admin="always") allows it, and a log can be read by its directory'
    )


def _is_local(endpoint: str) -> bool:
    """Whether only this machine can connect."""
    at = transports.parse_endpoint(endpoint)
    if at.scheme != "tcp":
        return at.scheme in ("ipc", "inproc")
    try:
        return ipaddress.ip_address(at.host).is_loopback
    except ValueError:
        return at.host == "localhost"
