"""The jobs that no worker has (waiting, delayed, restored, quarantined, dead), and what follows.

::

              ┌── key taken ──▶ key order ─┐                            ┌──▶ done
    push ─────┤                            ├──▶ priorities ──▶ assigned ┤
              └── delayed ──▶ heap ────────┘        ▲                   ├──▶ failed: heap, or dead
                                                    └───────────────────┴──▶ back, or quarantined
"""

from heapq import heappop, heappush
from typing import NamedTuple

from p2pmsg.queue.rules.config import QueueConfig
from p2pmsg.queue.rules.dead import DeadJob, DeadJobs
from p2pmsg.queue.rules.dedup import DedupWindow
from p2pmsg.queue.rules.job import Failure, JobRun, QueuedJob
from p2pmsg.queue.rules.priorities import KeyOrder, PriorityQueues, Taken
from recovery._checks import ms_to_ns


class Done(NamedTuple):
    """Jobs `[start, stop)` are done with."""

    start: int
    stop: int


class Failed(NamedTuple):
    """A job failed and will be tried again."""

    job: QueuedJob


class Died(NamedTuple):
    """A job became a dead letter."""

    dead: DeadJob


class Dropped(NamedTuple):
    """A dead letter is no more."""

    sequence: int


class Retried(NamedTuple):
    """A dead letter is a job again."""

    job: QueuedJob


class Given(NamedTuple):
    """A worker was given jobs with keys."""

    worker: int
    sequences: list[int]
    delivery: int
    """The first delivery number, by which later such changes are told from earlier ones."""


Change = Done | Failed | Died | Dropped | Retried | Given


class JobStore:
    """Jobs by what they wait for, and the counters of what became of them.

    Attributes:
        priorities: what can be handed out now.
        changes: what a journal has to record, oldest first; only with `records`.
        in_flight: jobs accepted and not yet done or dead.
        bytes: of those, but for runs of plain jobs that are in a hand in part.
        opens_ns: before this time nothing is handed out, so that new jobs do not overtake restored
            ones.
        pushed, done, failed, died, retried: counters of jobs.

    """

    def __init__(self, config: QueueConfig, *, wall_offset_ns: int, records: bool) -> None:
        self._config = config
        self._wall_offset_ns = wall_offset_ns
        self.records = records
        self.priorities = PriorityQueues()
        self.key_order = KeyOrder()
        self.dead = DeadJobs(config.dead_letters_max, config.dead_letters_bytes_max)
        self.dedup = DedupWindow(config.dedup_window_ms, config.dedup_ids_max)
        self.changes: list[Change] = []
        self.in_flight = 0
        self.bytes = self._keys_open_ns = 0
        self.opens_ns = 0
        self.pushed = self.done = self.failed = self.died = self.retried = 0
        self._delayed: list[tuple[int, int, QueuedJob]] = []
        self._suspects: list[tuple[int, int, QueuedJob]] = []
        self._restored: dict[int, tuple[int | None, QueuedJob]] = {}
        self._restored_due: list[tuple[int, int]] = []

    # ------------------------------------------------------------------------------------- in

    def push_run(self, run: JobRun) -> None:
        """Accept a run of plain jobs."""
        self.in_flight += run.count
        self.pushed += run.count
        self.bytes += run.size
        self.priorities.append_run(run)

    def push(self, job: QueuedJob, *, now_ns: int) -> None:
        """Accept one job; sequences only grow."""
        self.in_flight += 1
        self.pushed += 1
        self.bytes += job.size
        if job.message_id is not None:
            self.dedup.add(job.message_id, job.sequence, now_ns=now_ns)
        if job.key is not None and not self.key_order.enter(job):
            return
        due_ns = self._due_ns(job)
        if due_ns > now_ns:
            heappush(self._delayed, (due_ns, job.sequence, job))
        else:
            self.priorities.append(job)

    def close_keys(self, *, now_ns: int) -> None:
        """Hand out nothing that has a key for `ack_timeout_ms`: workers may have any in flight.

        For a restart that does not know what was given out before, or even pushed.
        """
        self._keys_open_ns = now_ns + ms_to_ns(self._config.ack_timeout_ms)

    def restore(self, job: QueuedJob, holder: int | None, *, now_ns: int) -> None:
        """Take over a job of before a restart, lowest sequence first.

        It waits for a while for the worker that may have it in flight: `grace_ms`, and
        `ack_timeout_ms` where it has a key and is known to have been with `holder`.
        """
        self.in_flight += 1
        self.bytes += job.size
        if job.key is not None and not self.key_order.enter(job):
            return
        self.opens_ns = now_ns + ms_to_ns(self._config.grace_ms)
        is_held = holder is not None and job.key is not None
        wait_ms = self._config.ack_timeout_ms if is_held else self._config.grace_ms
        due_ns = now_ns + ms_to_ns(wait_ms)
        self._restored[job.sequence] = (holder, job)
        heappush(self._restored_due, (due_ns, job.sequence))

    def restore_dead(self, dead: DeadJob) -> None:
        """Take over a dead letter of before a restart, oldest first."""
        self._keep_dead(dead)

    def claim(self, sequence: int, worker: int) -> QueuedJob | None:
        """Give a restored job to a worker who says it has it in flight; None where it cannot be.

        With a key, it is whose is known to be: that of another, who had it before, may be out of
        date, and the next job of the key must not be let go by it.
        """
        holder, job = self._restored.get(sequence, (None, None))
        if job is None or (job.key is not None and holder != worker):
            return None
        del self._restored[sequence]
        return job

    def unclaimed(self, holder: int, *, now_ns: int) -> None:
        """Let go of restored jobs that `holder` does not have, or no longer."""
        for sequence, (whose, job) in list(self._restored.items()):
            if whose == holder:
                del self._restored[sequence]
                self._admit(job, now_ns)

    # ------------------------------------------------------------------------------------ out

    def take(self, count_max: int) -> Taken | None:
        """Take out what is handed out next."""
        taken = self.priorities.take(count_max, self._config.parcel_bytes)
        return taken or None

    def take_suspect(self) -> QueuedJob | None:
        """Take out the next job that has to go out alone."""
        return heappop(self._suspects)[2] if self._suspects else None

    @property
    def quarantined(self) -> int:
        """How many jobs have to go out alone."""
        return len(self._suspects)

    @property
    def delayed(self) -> int:
        """How many jobs wait for their time, or for a worker of before a restart."""
        return len(self._delayed) + len(self._restored)

    @property
    def restored(self) -> int:
        """How many jobs wait for a worker of before a restart."""
        return len(self._restored)

    def finish_run(self, start: int, stop: int) -> None:
        """Note that plain jobs are done."""
        self.in_flight -= stop - start
        self.done += stop - start
        if self.records:
            self.changes.append(Done(start, stop))

    def finish(self, job: QueuedJob, *, now_ns: int) -> None:
        """Note that a job is done."""
        self.in_flight -= 1
        self.done += 1
        self.bytes -= job.size
        if self.records:
            self.changes.append(Done(job.sequence, job.sequence + 1))
        self._leave_key_order(job, now_ns)

    # ----------------------------------------------------------------------------------- back

    def put_back(self, job: QueuedJob, *, now_ns: int) -> None:
        """Take a job back that was never begun."""
        job.deliveries -= 1
        self._admit(job, now_ns)

    def quarantine(self, job: QueuedJob, worker: str, reason: str, *, now_ns: int) -> None:
        """Take a job back that was lost with others, so that nobody knows which was to blame."""
        job.quarantined = True
        self._note(job, worker, reason, now_ns)
        self._record_failed(job)
        heappush(self._suspects, (-job.priority, job.sequence, job))

    def put_back_held(self, job: QueuedJob, worker: str, reason: str, *, now_ns: int) -> None:
        """Take a job back from a worker that held it for too long; the job is not to blame."""
        self._note(job, worker, reason, now_ns)
        self._record_failed(job)
        self._admit(job, now_ns)

    def fail(
        self, job: QueuedJob, worker: str, reason: str, delay_ns: int | None, *, now_ns: int
    ) -> None:
        """Take a job back that failed; with `deliveries_max` failures it dies.

        `delay_ns` None: by the configured back-off.
        """
        self.failed += 1
        job.blamed += 1
        self._note(job, worker, reason, now_ns)
        if job.blamed >= self._config.deliveries_max:
            self._die(job, "deliveries_max", now_ns)
            return
        if delay_ns is None:
            exponent = min(job.blamed - 1, 40)
            delay_ms = self._config.retry_delay_ms * 2**exponent
            delay_ns = ms_to_ns(min(delay_ms, self._config.retry_ceiling_ms))
        job.due_ns = now_ns + delay_ns + self._wall_offset_ns if delay_ns else 0
        self._record_failed(job)
        self._admit(job, now_ns)

    def discard(self, job: QueuedJob, worker: str, reason: str, *, now_ns: int) -> None:
        """Make a job a dead letter at a worker's wish."""
        job.blamed += 1
        self._note(job, worker, reason, now_ns)
        self._die(job, "discarded", now_ns)

    # ---------------------------------------------------------------------------- dead letters

    def revive(self, sequence: int, *, now_ns: int) -> bool:
        """Make a dead letter a job again, with all its deliveries before it."""
        dead = self.dead.remove(sequence)
        if dead is None:
            return False
        job = dead.job
        job.blamed, job.due_ns, job.quarantined = 0, 0, False
        self.in_flight += 1
        self.bytes += job.size
        self.retried += 1
        if self.records:
            self.changes.append(Retried(job))
        if job.key is None or self.key_order.enter(job):
            self._admit(job, now_ns)
        return True

    def purge(self, sequence: int) -> bool:
        """Throw a dead letter away."""
        if self.dead.remove(sequence) is None:
            return False
        if self.records:
            self.changes.append(Dropped(sequence))
        return True

    # ----------------------------------------------------------------------------------- time

    def handle_timer(self, *, now_ns: int) -> None:
        """Let jobs go whose time has come."""
        delayed = self._delayed
        while delayed and delayed[0][0] <= now_ns:
            self._admit(heappop(delayed)[2], now_ns)
        waiting = self._restored_due
        while waiting and waiting[0][0] <= now_ns:
            found = self._restored.pop(heappop(waiting)[1], None)
            if found is not None:
                self._admit(found[1], now_ns)
        self.dedup.expire(now_ns=now_ns)

    def next_deadline_ns(self) -> int | None:
        """Return when `handle_timer` has something to do."""
        heaps = (self._delayed, self._restored_due)
        return min((heap[0][0] for heap in heaps if heap), default=None)

    def wall_ns(self, now_ns: int) -> int:
        """Return the time in ns since the epoch."""
        return now_ns + self._wall_offset_ns

    # -------------------------------------------------------------------------------- private

    def _due_ns(self, job: QueuedJob) -> int:
        """Return when a job may be handed out, by the monotonic clock."""
        due_ns = job.due_ns - self._wall_offset_ns if job.due_ns else 0
        return max(due_ns, self._keys_open_ns) if job.key is not None else due_ns

    def _admit(self, job: QueuedJob, now_ns: int) -> None:
        """Put a job where it waits, once its key lets it through."""
        due_ns = self._due_ns(job)
        if due_ns > now_ns:
            heappush(self._delayed, (due_ns, job.sequence, job))
        elif job.quarantined:
            heappush(self._suspects, (-job.priority, job.sequence, job))
        else:
            self.priorities.put_back(job)

    def _note(self, job: QueuedJob, worker: str, reason: str, now_ns: int) -> None:
        job.history.append(Failure(self.wall_ns(now_ns), worker, reason))
        del job.history[: -self._config.history_max]
        characters = sum(len(failure.reason) for failure in job.history)
        while characters > self._config.history_characters_max and len(job.history) > 1:
            characters -= len(job.history.pop(0).reason)

    def _record_failed(self, job: QueuedJob) -> None:
        if self.records:
            self.changes.append(Failed(job))

    def _die(self, job: QueuedJob, why: str, now_ns: int) -> None:
        self.in_flight -= 1
        self.died += 1
        self.bytes -= job.size
        dead = DeadJob(job, why, self.wall_ns(now_ns))
        if self.records:
            self.changes.append(Died(dead))
        self._keep_dead(dead)
        self._leave_key_order(job, now_ns)

    def _keep_dead(self, dead: DeadJob) -> None:
        gone = self.dead.add(dead)
        if self.records:
            self.changes.extend(Dropped(other.job.sequence) for other in gone)

    def _leave_key_order(self, job: QueuedJob, now_ns: int) -> None:
        if job.key is not None:
            following = self.key_order.leave(job)
            if following is not None:
                self._admit(following, now_ns)
