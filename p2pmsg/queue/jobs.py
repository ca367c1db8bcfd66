"""The jobs of a pusher: accepting, writing down, handing out, counting; no socket, no clock.

::

    push ─▶ batch ─┐
    push ─▶ log ───┴▶ unsynced ─▶ JobQueue ─▶ PusherCore ─▶ outbox, job_frames ─▶ the peer's sockets
                      (until it is on the disk)     └▶ changes ─▶ log
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from p2pmsg.checks import at_least, check
from p2pmsg.errors import ConfigError, LogFailedError
from p2pmsg.publisher.packing import check_key, check_size, pack_exactly, pack_headers
from p2pmsg.queue.batching import PushBatch
from p2pmsg.queue.config import (
    BATCH_MESSAGE_BYTES_MAX,
    GATHER_WITHIN_NS,
    IDLE_ROUNDS,
    IN_FLIGHT_CEILING,
    IN_FLIGHT_MIN,
    LINGER_NS,
    PusherConfig,
)
from p2pmsg.queue.journal.records import JournalState, change_record, given_record, seen_record
from p2pmsg.queue.pusher_core import IsGone, PusherCore
from p2pmsg.queue.rules import (
    PRIORITY_MAX,
    BreakerState,
    Died,
    End,
    Given,
    JobQueue,
    JobRun,
    QueuedJob,
    QueueLimits,
    Retried,
)
from p2pmsg.queue.stats import PusherStats, WorkerStats
from transports.own_log import own_log as _log

if TYPE_CHECKING:
    from p2pmsg.queue.journal.file import Journal
    from p2pmsg.queue.pull_access import PullAccess

_ACK_TIMEOUT_S: Final = 30.0
_BATCH_ACK_TIMEOUT_S: Final = 5.0
_BATCH_WORKERS_MAX: Final = 256
"""By the batch each worker has a socket of its own. Others wait until one leaves."""
_BATCH_UNPROVEN_MAX: Final = 64
_BATCH_AHEAD_S: Final = 0.2
"""By the batch a worker may have as many jobs as it did in so much time: several times what an
acknowledgement takes, and little enough that a slow one does not collect what others could do."""
_BATCH_RECALL_WAIT_S: Final = 0.1
"""A worker does within some ms what it has; one that has it still after so long is slow."""
_BATCH_JOBS_MIN: Final = 256
"""By the batch so many jobs share a frame at least where they follow closely."""
_DELAY_MAX: Final = 366 * 86400.0
_MESSAGE_ID_BYTES_MAX: Final = 255
_NEVER_NS: Final = 2**63
_SOON_NS: Final = 2_000_000
"""When is tried again what had no space; when workers are probed after a connection broke."""
_FAILING_NS: Final = 10_000_000
"""Between two tries to write to a log that cannot be written."""
_QUIET_NS: Final = 250_000_000
"""Workers that have jobs are probed so often, in case a connection broke unnoticed."""
FRAMES_AT_ONCE: Final = 8
"""Frames of jobs, of 256 KiB each, between two looks at the time."""
_RECORDS_AT_ONCE: Final = 256
"""Changes that are written in one step: 1 to 2 ms."""
_AGAIN_BYTES: Final = 256 * 1024
_AGAIN_JOBS: Final = 250
"""Of jobs that are written again in one step."""
_KEPT_BACK_MAX: Final = 4096
"""Frames that wait for the disk; nothing is read while there are more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueIdentity:
    """Who a queue is to its workers.

    Attributes:
        name, session: of the queue.
        by_batch: how its jobs are acknowledged.
        is_gone: whether a process (host, pid, started) is known to have ended.
        admin_refusal: why dead letters are not administered over the wire; None where they are.
        access_rules: what those who ask may have; None: everything.

    """

    name: str
    session: int
    by_batch: bool
    is_gone: IsGone
    admin_refusal: str | None
    access_rules: "PullAccess | None"


class QueueJobs:
    """Keeps each job until one worker has done it.

    Args:
        config: how; checked.
        identity: whose they are.
        state, journal: what the log has, and where to write; None without one. Frames that need
            what is written are kept back until that is on the disk.
        now_ns, wall_ns: both clocks.

    Attributes:
        batch: what `push` gathers.
        core: the protocol; what is to be sent is there.
        is_failing: whether the log could not be written the last time.
        is_gathering: whether jobs follow so closely that `batch` takes them.
        duplicates: pushes whose `message_id` was known.

    """

    def __init__(
        self,
        config: PusherConfig,
        identity: QueueIdentity,
        state: JournalState,
        journal: "Journal | None",
        *,
        now_ns: int,
        wall_ns: int,
    ) -> None:
        self._config = config
        self._by_batch = identity.by_batch
        self._journal = journal
        self._syncs = journal is not None and journal.is_always
        queue = JobQueue(
            _limits(config, identity.by_batch),
            wall_offset_ns=wall_ns - now_ns,
            first_delivery=max(wall_ns, state.deliveries),  # beyond those of an earlier run
            records=journal is not None,
        )
        self.core = PusherCore(
            queue,
            name=identity.name,
            session=identity.session,
            incarnation=queue.next_delivery,
            job_timeout=0.0 if identity.by_batch else config.job_timeout,
            is_gone=identity.is_gone,
            admin_refusal=identity.admin_refusal,
            frames_at_once=FRAMES_AT_ONCE,
            access_rules=identity.access_rules,
        )
        self.core.restore(state, now_ns=now_ns)
        self._missing = state.missing
        self._store = queue.store
        jobs_min = _BATCH_JOBS_MIN if identity.by_batch else 1
        self.batch = PushBatch(config, state.next_sequence, jobs_min)
        self._unsynced: deque[tuple[int, QueuedJob]] = deque()
        """Jobs that are in the log and not yet on the disk, where they have to be before a worker
        gets them; each with up to where the log has to be there."""
        self._unsynced_bytes = 0
        self._kept_back: deque[tuple[int, bytes, bytes]] = deque()
        self._needed = 0
        """Up to where the log has to be on the disk before the next frames are sent."""
        self._has_changes = self.is_gathering = self._is_opened_logged = False
        self._idle_rounds = self._pushed_ns = self._admin_logged = 0
        self._granted = 0  # how many in flight `drain` has said there is space for
        self._probe_ns = 0
        self._pause_ns = _QUIET_NS
        self.is_failing = False
        self.duplicates = 0

    # ------------------------------------------------------------------------------ accepting

    def job(
        self, value: Any, key: Any, priority: Any, delay: Any, message_id: Any, headers: Any,
        *, now_ns: int,
    ) -> QueuedJob:  # fmt: skip
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
        if self._by_batch:
            is_plain = all(
                each in (None, 0) for each in (key, priority, delay, message_id, headers)
            )
            limit = '"each" for jobs with a key, a priority, a delay, a message_id or headers'
            check("acknowledge", "batch", is_plain, limit)
        payload = pack_exactly(value)
        raw = pack_headers(headers)
        packed = None if raw is None else bytes(raw)
        check_size("job", len(payload) + len(packed or b""), self._config.message_bytes_max)
        pushed_ns = self._store.wall_ns(now_ns)
        job = QueuedJob(0, payload, pushed_ns, key, priority, message_id, packed)
        if delay:
            delay_ns = round(delay * 1e9)
            job.due_ns, job.ready_ns = pushed_ns + delay_ns, now_ns + delay_ns
        return job

    def try_push(self, job: QueuedJob, *, now_ns: int) -> tuple[int, int] | None:
        """Accept a job; None where the queue is full.

        Returns its sequence, and up to where the log has to be synced before `push` may return with
        `fsync="always"`.
        """
        store, journal, batch = self._store, self._journal, self.batch
        if job.message_id is not None:
            known = store.dedup.find(job.message_id, now_ns=now_ns)
            if known is not None:
                self.duplicates += 1
                return known, 0 if journal is None else journal.written
        batch.seal(self._store, now_ns=now_ns)
        if not self.fits(job, now_ns=now_ns):
            return None
        sequence = job.sequence = batch.next
        if self.is_gathering and _is_plain(job):
            batch.open(self._space(now_ns), now_ns=now_ns)
            batch.append(job.payload)
            return sequence, 0
        if journal is not None:
            batch.next = sequence + 1  # first, so that after Ctrl-C no other job gets it
            try:
                journal.push(job)
            except LogFailedError:
                batch.next = sequence
                raise
        batch.next = sequence + 1
        if self._syncs and journal is not None:
            self._unsynced.append((journal.written, job))
            self._unsynced_bytes += job.size
            if job.message_id is not None:
                store.dedup.add(job.message_id, sequence, now_ns=now_ns)
            return sequence, journal.written
        self._put(job, now_ns)
        close = now_ns - self._pushed_ns < GATHER_WITHIN_NS
        if journal is None and close and not self.is_gathering:
            self.is_gathering, self._idle_rounds = True, 0
        return sequence, 0

    def _put(self, job: QueuedJob, now_ns: int) -> None:
        if _is_plain(job):
            run = JobRun(job.sequence, job.payload, [len(job.payload)], job.pushed_ns)
            self._store.push_run(run)
        else:
            self._store.push(job, now_ns=now_ns)

    def on_pushed(self, now_ns: int) -> None:
        """Note when a `try_push` has ended: what counts for gathering is the pace of its caller.

        Then `batch` takes what follows closely.
        """
        if self.is_gathering and not self.batch.ends:
            self.batch.open(self._space(now_ns), now_ns=now_ns)
        self._pushed_ns = now_ns

    def seal(self, now_ns: int) -> None:
        """Put what was gathered into the queue."""
        self.batch.seal(self._store, now_ns=now_ns)

    def begin_turn(self, now_ns: int) -> None:
        """Put what was gathered into the queue, and gather no more where nothing comes."""
        if self.is_gathering:
            self._idle_rounds = 0 if self.batch.ends else self._idle_rounds + 1
            self.batch.seal(self._store, now_ns=now_ns)
            if self._idle_rounds > IDLE_ROUNDS:
                self.is_gathering = False

    def end_turn(self, now_ns: int) -> int:
        """Let `push` gather again; return when a turn is due for what it gathers."""
        if not self.is_gathering:
            return _NEVER_NS
        self.batch.open(self._space(now_ns), now_ns=now_ns)
        return now_ns + LINGER_NS

    # ---------------------------------------------------------------------------------- space

    @property
    def in_flight(self) -> int:
        """How many jobs are neither done nor dead letters, gathered ones left out."""
        return self._store.in_flight + len(self._unsynced)

    @property
    def waits_for_disk(self) -> bool:
        """Whether jobs are handed out only when the log is on the disk."""
        return bool(self._unsynced)

    def limit(self, now_ns: int) -> str:
        """Return what `push` waits at, for people."""
        if self._by_batch:
            return f"in_flight_bytes_max ({self._config.in_flight_bytes_max}) bytes"
        return f"in_flight_max ({self._in_flight_max(now_ns)}) jobs, or their bytes"

    def fits(self, job: QueuedJob, *, now_ns: int) -> bool:
        """Whether `try_push` would accept it, without a look at what has come."""
        in_flight = self.in_flight
        if in_flight == 0:
            return True
        used = self._store.bytes + self._unsynced_bytes
        if used + job.size > self._config.in_flight_bytes_max:
            return False
        return in_flight < self._granted or in_flight < self._in_flight_max(now_ns)

    def has_space(self, refused_bytes: int, *, now_ns: int) -> bool:
        """Whether a job fits in, which may have any size.

        Half of the bytes are enough, or a worker that keeps one job would be waited for where they
        are fewer than two of the largest have. So a larger job may be refused, once, of
        `refused_bytes`: then there is space only for as large a one.
        """
        config, batch = self._config, self.batch
        in_flight = self.in_flight + len(batch.ends)
        if in_flight == 0:
            return True
        used_bytes = self._store.bytes + self._unsynced_bytes + len(batch.buffer)
        half = config.in_flight_bytes_max // 2
        size = min(config.message_bytes_max, max(half, refused_bytes))
        if used_bytes + size > config.in_flight_bytes_max:
            return False
        # It follows the pace of the workers, and may be lower a moment later, when it is pushed.
        self._granted = self._in_flight_max(now_ns)
        return in_flight < self._granted

    def _space(self, now_ns: int) -> int:
        """Return how many jobs may be gathered."""
        if self._store.bytes + self.batch.bytes_max > self._config.in_flight_bytes_max:
            return 0
        return self._in_flight_max(now_ns) - self._store.in_flight

    def _in_flight_max(self, now_ns: int) -> int:
        """Return how many jobs may be in flight: what was given, or what is done in a moment."""
        if self._by_batch:
            return _NEVER_NS
        most = self._config.in_flight_max
        if most is not None:
            return most
        done = self.core.queue.pace.within_span(now_ns=now_ns)
        return max(IN_FLIGHT_MIN, min(done, IN_FLIGHT_CEILING))

    # ------------------------------------------------------------------------------ the turns

    def set_time(self, now_ns: int, wall_ns: int) -> None:
        """Note what the wall clock is ahead of the monotonic one."""
        self._store.wall_offset_ns = wall_ns - now_ns

    @property
    def may_receive(self) -> bool:
        """Whether frames of workers are to be read: not while too many wait for the disk."""
        return len(self._kept_back) < _KEPT_BACK_MAX

    def poll(self, *, now_ns: int, has_broken: bool) -> bool:
        """Do what is due, and hand out what can be; then what is to be sent is in the outboxes.

        `has_broken`: a connection broke since the last call. False where nothing may be sent yet:
        the log cannot be written, or there is more to write.
        """
        core, journal = self.core, self._journal
        if has_broken:
            self._pause_ns = _SOON_NS
        if has_broken or now_ns >= self._probe_ns:
            # The monitor reports a break before the socket itself knows of it, so workers that may
            # be gone are sent a frame soon, and then less often: a broken connection refuses it.
            self._probe_ns = now_ns + self._pause_ns
            self._pause_ns = min(2 * self._pause_ns, _QUIET_NS)
            core.probe()
        if journal is not None:
            while self._unsynced and self._unsynced[0][0] <= journal.synced:
                job = self._unsynced[0][1]
                self._put(job, now_ns)
                self._unsynced.popleft()
                self._unsynced_bytes -= job.size
        core.handle_timer(now_ns=now_ns)
        if not self.record() or core.queue.store.changes:
            return False
        if journal is not None and journal.is_always:
            self._keep_back(journal.synced)
        return True

    def _keep_back(self, synced: int) -> None:
        """Take frames out of the outbox that say what is not yet on the disk; put back others."""
        outbox, kept_back, needed = self.core.outbox, self._kept_back, self._needed
        if kept_back or needed > synced:
            kept_back.extend((needed, *frame) for frame in outbox)
            outbox.clear()
            while kept_back and kept_back[0][0] <= synced:
                _, identity, frame = kept_back.popleft()
                outbox.append((identity, frame))

    @property
    def has_to_record(self) -> bool:
        """Whether there is more to write to the log, which can be written."""
        return bool(self._store.changes) and not self.is_failing

    def next_deadline_ns(self, *, now_ns: int) -> int:
        """Return when `poll` has something to do."""
        core = self.core
        if self.is_failing:
            return now_ns + _FAILING_NS
        is_blocked = self._store.ready and any(
            worker.blocked for worker in core.queue.workers.values()
        )
        if core.outbox or self._store.changes or is_blocked:
            return now_ns + _SOON_NS
        due_ns = core.next_deadline_ns(now_ns=now_ns)
        return self._probe_ns if due_ns is None else min(due_ns, self._probe_ns)

    def record(self) -> bool:
        """Write some of what became of jobs to the log, before frames say so.

        False where that fails. What is still to be written is left in the store's `changes`.
        """
        journal = self._journal
        if journal is None:
            return True
        changes = self._store.changes
        written = 0
        try:
            for change in changes[:_RECORDS_AT_ONCE]:
                process = None
                if isinstance(change, Given):
                    process = self.core.process_of(change.worker)
                journal.change(change, process)
                written += 1
                self._has_changes = True
            journal.allow_deliveries(self.core.queue.next_delivery)
            if self._has_changes:
                self._needed = journal.written
            self._has_changes = False
            if journal.broken is not None:
                raise LogFailedError(journal.broken)
        except OSError as error:
            self._on_log_failure(error)
        else:
            if self.is_failing:
                _log.warning("the queue's log can be written again")
            self.is_failing = False
        finally:
            del changes[:written]
        return not self.is_failing

    def write_again(self, sequences: Sequence[int]) -> int:
        """Write some jobs again as they are now, so that older records of them can be deleted.

        Returns how many of `sequences`, at least one, that was done for.
        """
        journal = self._journal
        assert journal is not None
        unsynced = self._unsynced[0][1].sequence if self._unsynced else _NEVER_NS
        count = size = 0
        for sequence in sequences[:_AGAIN_JOBS]:
            count += 1
            if sequence < unsynced:  # those that wait for the disk were written just now
                size += journal.write_again(sequence, self._records_of(sequence))
            if size > _AGAIN_BYTES:
                break
        return count

    def _records_of(self, sequence: int) -> list[bytes]:
        """Return the records that say all of a job that is to be known after a restart."""
        store, core = self._store, self.core
        dead, job = store.dead.get(sequence), store.find(sequence)
        if dead is not None:
            return [change_record(Died(dead))]
        if job is not None:
            records = [change_record(Retried(job))]
            if job.key is not None and job.holder:
                delivery, process = core.queue.next_delivery - 1, core.process_of(job.holder)
                records.append(given_record(job.holder, delivery, [sequence], process))
            return records
        assert self._journal is not None
        name = self._journal.message_id(sequence)
        seen_ns = None if name is None else store.dedup.seen_at_ns(name, sequence)
        if name is None or seen_ns is None:
            return []
        return [seen_record(name, sequence, store.wall_ns(seen_ns))]

    def _on_log_failure(self, error: OSError) -> None:
        assert self._journal is not None
        is_broken = self._journal.broken is not None
        if not self.is_failing:
            _log.error(
                "the queue's log cannot be written, and nothing is handed out until %s: %s",
                "the pusher is started again" if is_broken else "it can", error,
            )  # fmt: skip
        if is_broken:
            self._unsynced.clear()  # their `push` raises
            self._unsynced_bytes = 0
        self.is_failing = True

    def check_log(self) -> None:
        """Raise `LogFailedError` where the log cannot be forced to the disk any more."""
        if self._journal is not None and self._journal.broken is not None:
            raise LogFailedError(self._journal.broken)

    def log_warnings(self) -> None:
        """Log what is to be known of workers: that all fails, or that one asks for too much."""
        core = self.core
        breaker, warnings = core.queue.breaker, core.queue.warnings
        is_open = breaker.state is not BreakerState.CLOSED
        if is_open and not self._is_opened_logged:
            _log.warning(
                "%d jobs in a row failed, and none was done: jobs are handed out one at a time, "
                "with pauses, until one is done",
                breaker.failures,
            )
        elif self._is_opened_logged and not is_open:
            _log.warning("a job was done again: jobs are handed out as before")
        self._is_opened_logged = is_open
        if core.admin_refused and not self._admin_logged:
            _log.warning("a request for dead letters over the wire was refused: see `admin`")
        self._admin_logged = core.admin_refused
        while warnings:
            _log.warning("worker %r %s", *warnings.popleft())

    def resync(self, *, now_ns: int) -> None:
        """Put all right after an exception that came somewhere in here.

        What was to be sent is not, and workers are asked what they have.
        """
        store = self._store
        self.batch.resync(is_elsewhere=store.knows(self.batch.first))
        self.core.resync(now_ns=now_ns)
        self._kept_back.clear()
        self._unsynced = deque(each for each in self._unsynced if not store.knows(each[1].sequence))
        self._unsynced_bytes = sum(job.size for _, job in self._unsynced)
        if self._journal is not None:
            self._needed = self._journal.written

    def stats(self, *, now_ns: int, **of_sockets: Any) -> PusherStats:
        """Return the counters; `of_sockets`: what the peer counts."""
        core, queue, store = self.core, self.core.queue, self._store
        waiting = len(self.batch.ends) + len(self._unsynced)
        return PusherStats(
            pushed=store.pushed + waiting,
            restored=store.taken_over,
            retried=store.retried,
            duplicates=self.duplicates,
            done=store.done,
            dead=store.died,
            in_flight=store.in_flight + waiting,
            in_hands=queue.assigned_count,
            delayed=store.delayed,
            waiting_for_key=store.key_order.waiting,
            delivered=queue.delivered,
            failed=store.failed,
            recalled=store.ended[End.NOT_BEGUN],
            taken_back=store.ended[End.LOST],
            refused=queue.refused,
            dead_letters=len(store.dead),
            dead_letters_dropped=store.dead.dropped,
            breaker=queue.breaker.state.value,
            breaker_trips=queue.breaker.trips,
            held_back=store.ended[End.TAKEN],
            delays_capped=queue.delays_capped,
            extends_capped=queue.extends_capped,
            admin_refused=core.admin_refused,
            denied=0 if core.access_rules is None else core.access_rules.denials.count,
            log_missing=self._missing,
            workers=tuple(
                WorkerStats(
                    worker.name, worker.assigned.count, worker.trust.acked, worker.trust.failed,
                    not worker.is_cut, worker.breaker.state.value, worker.limit(now_ns=now_ns),
                    worker.trust.held_back,
                )
                for worker in queue.workers.values()
            ),
            **of_sockets,
        )  # fmt: skip


def _is_plain(job: QueuedJob) -> bool:
    """Whether a job has nothing but a value."""
    is_alone = job.key is None and job.message_id is None and job.headers is None
    return is_alone and not job.due_ns and not job.priority


def ack_timeout_of(config: PusherConfig, *, by_batch: bool) -> float:
    """Return how long a worker may be silent, in seconds."""
    if config.ack_timeout is not None:
        return config.ack_timeout
    return _BATCH_ACK_TIMEOUT_S if by_batch else _ACK_TIMEOUT_S


def check_batch_config(config: PusherConfig) -> None:
    """Raise `ConfigError` for what is not for jobs that are acknowledged by the batch."""
    limit = f'at most {BATCH_MESSAGE_BYTES_MAX} with acknowledge="batch"'
    size = config.message_bytes_max
    check("message_bytes_max", size, size <= BATCH_MESSAGE_BYTES_MAX, limit)


def _limits(config: PusherConfig, by_batch: bool) -> QueueLimits:
    limits = QueueLimits(
        ack_timeout=ack_timeout_of(config, by_batch=by_batch),
        deliveries_max=config.deliveries_max,
        retry_delay=config.retry_delay,
    )
    if not by_batch:
        return limits
    return replace(
        limits, by_batch=True, unproven_max=_BATCH_UNPROVEN_MAX, ahead=_BATCH_AHEAD_S,
        recall_wait=_BATCH_RECALL_WAIT_S, workers_max=_BATCH_WORKERS_MAX,
    )  # fmt: skip
