"""The jobs that no worker has (waiting, delayed, restored, to go alone, dead).

::

              ┌── key taken ──▶ key order ─┐                            ┌──▶ done
    push ─────┤                            ├──▶ priorities ──▶ assigned ┤
              └── delayed ──▶ heap ────────┘        ▲                   ├──▶ failed: heap, or dead
                                                    └───────────────────┴──▶ back, or to go alone
"""

from collections import Counter
from collections.abc import Sequence
from enum import Enum, auto
from heapq import heappop, heappush
from typing import Final, NamedTuple

from p2pmsg.queue.rules.config import (
    DEAD_LETTERS_BYTES_MAX,
    DEDUP_IDS_MAX,
    HISTORY_MAX,
    QueueLimits,
)
from p2pmsg.queue.rules.in_flight import Failure, JobRun, QueuedJob, runs_of
from p2pmsg.queue.rules.parts import (
    DeadJob,
    DeadJobs,
    DedupWindow,
    KeyOrder,
    PriorityQueues,
    remove_from,
)
from recovery.checks import to_ns


class Done(NamedTuple):
    """Jobs `[start, stop)` are done."""

    start: int
    stop: int


class Failed(NamedTuple):
    """A job failed and will be tried again."""

    job: QueuedJob


class Died(NamedTuple):
    """A job became a dead letter."""

    dead: DeadJob


class Dropped(NamedTuple):
    """A dead letter was removed."""

    sequence: int


class Retried(NamedTuple):
    """A dead letter is a job again."""

    job: QueuedJob


class Given(NamedTuple):
    """A worker was given jobs with keys."""

    worker: int
    sequences: list[int]
    delivery: int
    """The first delivery number; a later such change has a higher one."""


class End(Enum):
    """How a delivery ended that did not lead to `done`, and what becomes of the job."""

    NOT_BEGUN = auto()
    """It did not arrive, or was given back: again, as if it had not been delivered."""
    TAKEN = auto()
    """The worker held it for too long, or lost the right to it: again; it did not fail."""
    LOST = auto()
    """With others, at a worker that is no more: again, alone from now on, since any of them may
    have ended that; by the batch with others, as if it had not been delivered."""
    GIVEN_UP = auto()
    """It timed out, or was the only one of a worker that is no more: it failed."""
    FAILED = auto()
    """It was rejected, or sent alone and ended the connection: it failed."""
    DISCARDED = auto()
    """It is a dead letter."""


FAILURES: Final = frozenset({End.GIVEN_UP, End.FAILED, End.DISCARDED})
MAY_BE_DONE: Final = frozenset({End.TAKEN, End.LOST, End.GIVEN_UP})
"""The worker may be at it still: if it says that it did it, that counts."""

Change = Done | Failed | Died | Dropped | Retried | Given


class JobStore:
    """Jobs by what they wait for, and counters of what became of them.

    Attributes:
        priorities: what can be handed out now.
        changes: what a journal has to record, oldest first; only with `records`.
        in_flight: jobs accepted and not yet done or dead.
        bytes: of those; a run that was handed out counts in full until all its jobs have ended.
        wall_offset_ns: what the wall clock is ahead of the monotonic one; the shell sets it.
        opens_ns: before this nothing is handed out, so that new jobs do not overtake restored ones.
        pushed, taken_over, done, died, retried: counters of jobs.
        ended: how many deliveries ended in which way, besides those that were done.

    """

    def __init__(self, limits: QueueLimits, *, wall_offset_ns: int, records: bool) -> None:
        self._limits = limits
        self.wall_offset_ns = wall_offset_ns
        self.records = records
        self.priorities = PriorityQueues()
        self.key_order = KeyOrder()
        self.dead = DeadJobs(limits.dead_letters_max, DEAD_LETTERS_BYTES_MAX)
        self.dedup = DedupWindow(limits.dedup_window, DEDUP_IDS_MAX)
        self.changes: list[Change] = []
        self.in_flight = 0
        self.bytes = self._keys_open_ns = 0
        self.opens_ns = 0
        self.pushed = self.done = self.died = self.retried = self.taken_over = 0
        self.ended: Counter[End] = Counter()
        self._runs: dict[int, JobRun] = {}
        self._jobs: dict[int, QueuedJob] = {}
        """All that is neither done nor dead, in runs as they were accepted, and on its own; where
        it waits, or which worker has it, follows from this after an exception. A job is put here
        before anything else is done with it, and taken out when it is done, or among the dead."""
        self._delayed: list[tuple[int, int, QueuedJob]] = []
        self._alone: list[tuple[int, int, QueuedJob]] = []
        self._restored: dict[int, tuple[int | None, QueuedJob]] = {}
        self._restored_due: list[tuple[int, int]] = []

    # ------------------------------------------------------------------------------------- in

    def push_run(self, run: JobRun) -> None:
        """Accept a run of plain jobs."""
        self._runs[run.first] = run
        self.in_flight += run.count
        self.pushed += run.count
        self.bytes += run.size
        self.priorities.append_run(run)

    def push(self, job: QueuedJob, *, now_ns: int) -> None:
        """Accept one job; sequences only grow."""
        self._jobs[job.sequence] = job
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
        """Hand out nothing that has a key for `ack_timeout`: workers may have any in flight.

        For a restart that does not know all that was given out or pushed before.
        """
        self._keys_open_ns = now_ns + to_ns(self._limits.ack_timeout)

    def restore(self, job: QueuedJob, holder: int | None, *, now_ns: int) -> None:
        """Take over a job from before a restart, lowest sequence first.

        It waits for the worker that may have it in flight: `grace`, and `ack_timeout` where
        it has a key and `holder` is known to have had it. One that was delayed waits until its
        time, and where the wall clock was set back no longer than its whole delay.
        """
        self.taken_over += 1
        if job.due_ns:
            since_ns = job.history[-1].at_ns if job.failures and job.history else job.pushed_ns
            left_ns = job.due_ns - max(self.wall_ns(now_ns), since_ns)
            job.ready_ns = now_ns + max(0, left_ns)
        self._take_over(job, holder, now_ns)

    def resync(self, *, now_ns: int) -> None:
        """Take over all jobs after an exception, as after a restart: workers say what they have."""
        jobs = {job.sequence: job for run in self._runs.values() for job in run.open_jobs()}
        jobs.update(self._jobs)
        for dead in self.dead.list():
            jobs.pop(dead.job.sequence, None)
        self._jobs = jobs
        self._runs = {}
        self.priorities, self.key_order = PriorityQueues(), KeyOrder()
        self._delayed, self._alone = [], []
        self._restored, self._restored_due = {}, []
        self.in_flight = self.bytes = 0
        self.dead.resync()
        for job in sorted(jobs.values(), key=lambda job: (not job.holder, job.sequence)):
            self._take_over(job, job.holder or None, now_ns)
        more = self.done + self.died + self.in_flight - self.accepted
        self.pushed += max(0, more)
        self.done += max(0, -more)

    @property
    def failed(self) -> int:
        """How many deliveries failed."""
        return sum(self.ended[how] for how in FAILURES)

    @property
    def accepted(self) -> int:
        """How many jobs there were in all; a dead letter that is tried again counts once more."""
        return self.pushed + self.taken_over + self.retried

    def knows(self, sequence: int) -> bool:
        """Whether this is the first of a run that is not done, or a job on its own."""
        return sequence in self._runs or sequence in self._jobs

    def find(self, sequence: int) -> QueuedJob | None:
        """Return a job that is neither done nor dead: the first of a run, or one on its own."""
        run = self._runs.get(sequence)
        first = None if run is None else next(iter(run.open_jobs()), None)
        if first is None or first.sequence != sequence:
            return self._jobs.get(sequence)
        return first

    def _take_over(self, job: QueuedJob, holder: int | None, now_ns: int) -> None:
        self._jobs[job.sequence] = job
        job.holder = holder or 0
        self.in_flight += 1
        self.bytes += job.size
        if job.key is not None and not self.key_order.enter(job):
            return
        self.opens_ns = now_ns + to_ns(self._limits.grace)
        is_held = holder is not None and job.key is not None
        wait = self._limits.ack_timeout if is_held else self._limits.grace
        due_ns = now_ns + to_ns(wait)
        self._restored[job.sequence] = (holder, job)
        heappush(self._restored_due, (due_ns, job.sequence))

    def keep_dead(self, dead: DeadJob) -> None:
        """Keep a dead letter, oldest first, and drop those that it leaves no space for."""
        for dropped in self.dead.add(dead):
            self._record(Dropped(dropped.job.sequence))

    def claim(self, sequence: int, worker: int) -> QueuedJob | None:
        """Give a restored job to a worker that says it has it in flight; None where it cannot be.

        With a key, only its last holder may claim it: another worker, which had it before, may
        answer late, and must not release the next job of the key.
        """
        holder, job = self._restored.get(sequence, (None, None))
        if job is None or (job.key is not None and holder != worker):
            return None
        del self._restored[sequence]
        return job

    def unclaimed(self, holder: int, *, now_ns: int) -> None:
        """Hand out restored jobs that `holder` does not have, or no longer."""
        for sequence, (last_holder, job) in list(self._restored.items()):
            if last_holder == holder:
                del self._restored[sequence]
                self._admit(job, now_ns)

    # ------------------------------------------------------------------------------------ out

    def first_alone(self) -> QueuedJob:
        """Return the next job that goes alone, where there is one."""
        return self._alone[0][2]

    def take_alone(self) -> QueuedJob:
        """Take out what `first_alone` returns."""
        return heappop(self._alone)[2]

    @property
    def alone(self) -> int:
        """How many jobs go alone."""
        return len(self._alone)

    @property
    def ready(self) -> int:
        """How many jobs may be handed out now."""
        return self.priorities.count + len(self._alone)

    @property
    def delayed(self) -> int:
        """How many jobs wait for their time, or for a worker from before a restart."""
        return len(self._delayed) + len(self._restored)

    @property
    def restored(self) -> int:
        """How many jobs wait for a worker from before a restart."""
        return len(self._restored)

    def finish_run(self, run: JobRun, bits: int) -> None:
        """Note that plain jobs are done, by their bits."""
        if self.records:
            for low, high in runs_of(bits):
                self._record_done(run.sequence + low, run.sequence + high)
        self._end_in_run(run, bits)
        self.in_flight -= bits.bit_count()
        self.done += bits.bit_count()

    def keep_alone(self, run: JobRun, bits: int, jobs: Sequence[QueuedJob]) -> None:
        """Keep jobs of a run on their own from now on; their bytes are counted so."""
        self._jobs.update((job.sequence, job) for job in jobs)
        self._end_in_run(run, bits)
        self.bytes += sum(job.size for job in jobs)

    def _end_in_run(self, run: JobRun, bits: int) -> None:
        whole = run.end(bits)
        if not whole.open:
            self._runs.pop(whole.first, None)

    def finish(self, job: QueuedJob, *, now_ns: int, leaves: bool = True) -> None:
        """Note that a job is done; `leaves`: no other worker has it, and its key is let go."""
        if not job.done:
            # One that is done is in no register: after an exception in between it would stay there.
            self._record_done(job.sequence, job.sequence + 1)
            self._jobs.pop(job.sequence, None)
            job.done = True
            self.in_flight -= 1
            self.done += 1
            self.bytes -= job.size
        if leaves:
            self._leave_key_order(job, now_ns)

    def finish_late(self, job: QueuedJob, *, now_ns: int) -> None:
        """Note that a worker did a job which it had no more; also if it is a dead letter by now.

        If another worker has it, or it waits for its key, that key is let go after that.
        """
        self.revive(job.sequence, now_ns=now_ns)
        heaps = self._delayed, self._alone
        was_here = self.priorities.remove(job) or any(remove_from(heap, job) for heap in heaps)
        self.finish(job, now_ns=now_ns, leaves=was_here)

    # ----------------------------------------------------------------------------------- back

    def put_back(self, job: QueuedJob, *, now_ns: int) -> None:
        """Take a job back that was never begun."""
        job.deliveries -= 1
        self._admit(job, now_ns)

    def end(
        self,
        job: QueuedJob,
        how: End,
        worker: str = "",
        reason: str = "",
        delay_ns: int | None = None,
        *,
        now_ns: int,
    ) -> None:
        """Take a job back whose delivery ended so; after `deliveries_max` failures it is dead.

        `delay_ns`: how long one that failed waits; None: by the configured back-off.
        """
        self.ended[how] += 1
        if how is End.NOT_BEGUN or (how is End.LOST and self._limits.by_batch):
            self.put_back(job, now_ns=now_ns)
            return
        self._note(job, worker, reason, now_ns)
        if how is End.LOST:  # any of them may have ended the worker
            job.quarantined = True
        if how in FAILURES:
            job.failures += 1
            if how is End.DISCARDED or job.failures >= self._limits.deliveries_max:
                why = "discarded" if how is End.DISCARDED else "deliveries_max"
                self._die(job, why, now_ns)
                return
            if delay_ns is None:
                delay_ns = self._limits.retry.wait_ns(job.failures - 1)
            if delay_ns:
                job.ready_ns = now_ns + delay_ns
                job.due_ns = self.wall_ns(job.ready_ns)
        if not job.done:
            self._record(Failed(job))
        self._admit(job, now_ns)

    # ---------------------------------------------------------------------------- dead letters

    def act_on_dead(self, action: str, sequences: Sequence[int] | None, *, now_ns: int) -> int:
        """`retry` or purge dead letters, all where None are named; return how many."""
        if sequences is None:
            sequences = [dead.job.sequence for dead in self.dead.list()]
        if action == "retry":
            return sum(self.revive(sequence, now_ns=now_ns) for sequence in sequences)
        return sum(map(self.purge, sequences))

    def revive(self, sequence: int, *, now_ns: int) -> bool:
        """Make a dead letter a job again, with `deliveries_max` more attempts."""
        dead = self.dead.get(sequence)
        if dead is None:
            return False
        job = dead.job
        self._jobs[sequence] = job
        self.dead.remove(sequence)
        job.failures = job.due_ns = job.ready_ns = job.cuts = job.holder = 0
        job.frame_bytes, job.quarantined = 0, False
        self.in_flight += 1
        self.bytes += job.size
        self.retried += 1
        self._record(Retried(job))
        if job.key is None or self.key_order.enter(job):
            self._admit(job, now_ns)
        return True

    def purge(self, sequence: int) -> bool:
        """Throw a dead letter away."""
        if self.dead.remove(sequence) is None:
            return False
        self._record(Dropped(sequence))
        return True

    # ----------------------------------------------------------------------------------- time

    def handle_timer(self, *, now_ns: int) -> None:
        """Release jobs whose time has come."""
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
        return now_ns + self.wall_offset_ns

    # -------------------------------------------------------------------------------- private

    def _due_ns(self, job: QueuedJob) -> int:
        """Return when a job may be handed out, by the monotonic clock."""
        ready_ns = job.ready_ns
        return max(ready_ns, self._keys_open_ns) if job.key is not None else ready_ns

    def _admit(self, job: QueuedJob, now_ns: int) -> None:
        """Put a job where it waits, once its key lets it through."""
        job.holder = 0
        due_ns = self._due_ns(job)
        if job.done:
            self.finish(job, now_ns=now_ns)
        elif due_ns > now_ns:
            heappush(self._delayed, (due_ns, job.sequence, job))
        elif job.goes_alone:
            heappush(self._alone, (-job.priority, job.sequence, job))
        else:
            self.priorities.put_back(job)

    def _note(self, job: QueuedJob, worker: str, reason: str, now_ns: int) -> None:
        job.due_ns = job.ready_ns = 0  # it was delivered, so that wait is over
        job.history.append(Failure(self.wall_ns(now_ns), worker, reason))
        del job.history[:-HISTORY_MAX]
        characters = sum(len(failure.reason) for failure in job.history)
        while characters > self._limits.history_characters_max and len(job.history) > 1:
            characters -= len(job.history.pop(0).reason)

    def _record_done(self, start: int, stop: int) -> None:
        """Note that jobs are done, in one change with those right before them."""
        last = self.changes[-1] if self.changes else None
        if isinstance(last, Done) and last.stop == start:
            self.changes[-1] = Done(last.start, stop)
        else:
            self._record(Done(start, stop))

    def _record(self, change: Change) -> None:
        if self.records:
            self.changes.append(change)

    def _die(self, job: QueuedJob, why: str, now_ns: int) -> None:
        if job.done:
            self.finish(job, now_ns=now_ns)
            return
        dead = DeadJob(job, why, self.wall_ns(now_ns))
        self._record(Died(dead))
        self.keep_dead(dead)
        self._jobs.pop(job.sequence, None)
        self.in_flight -= 1
        self.died += 1
        self.bytes -= job.size
        self._leave_key_order(job, now_ns)

    def _leave_key_order(self, job: QueuedJob, now_ns: int) -> None:
        if job.key is not None:
            following = self.key_order.leave(job)
            if following is not None:
                self._admit(following, now_ns)
