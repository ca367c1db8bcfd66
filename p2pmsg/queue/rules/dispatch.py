"""The work queue's state machine: which worker gets which job, and what becomes of it.

It knows jobs as bytes and workers as numbers. Every method takes the time; nothing here waits.

Rules, in the order in which they matter:

- A job that was accepted is in a priority queue, waiting for its key, in a heap, assigned to one
  worker, done or dead; not twice.
- Of the jobs of one key, one at most is released, so they cannot overtake one another.
- A delivery number is given once, and ends one delivery, as `End` says; an answer to another
  worker's changes nothing and is counted. One to a delivery that was taken from this worker does
  neither, except that a job which it has done is done.
- The worker that has the least in flight, for what it may have, gets the next; what an idle worker
  could do is asked back from the one that has the most, also where that is its only one. Workers
  that held jobs and answered for none since get what the others do not take; so do, for a time,
  those at which a job timed out, and those that gave all back.
- A job that did not arrive before its worker's connection ended is put back; at the second time it
  goes out alone, and where the connection ends then, too, that counts as a failure of the job.
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from weakref import WeakValueDictionary

from p2pmsg.queue.rules.config import (
    BATCH_BYTES,
    BATCH_JOBS_MAX,
    CUT_RETRY_NS,
    PREFETCH_MAX,
    QueueLimits,
)
from p2pmsg.queue.rules.in_flight import DeliveryBatch, JobRun, QueuedJob, bits_of
from p2pmsg.queue.rules.pace import Pace
from p2pmsg.queue.rules.store import MAY_BE_DONE, End, Given, JobStore
from p2pmsg.queue.rules.worker import (
    CUT,
    GAVE_ALL,
    NEVER_NS,
    TIMED_OUT,
    Breaker,
    BreakerState,
    Worker,
    WorkerEvent,
    WorkerState,
)
from recovery import RangeSet
from recovery.checks import to_ns

WARNINGS_MAX = 64
"""Warnings that wait to be taken."""
FRAME_BYTES_MIN = 64 * 1024
"""The lowest limit of a frame that a worker can have."""
_PACE_NS = 50_000_000
"""How long what is done is counted for `pace`."""
_LONE_WAITS = 10
"""Times `recall_wait` after which a worker's only job is asked back: it is mostly begun by then."""
_CREDIT_PARTS = 8
"""A frame has this part of a worker's credit at least, where so much waits: for one that is fast,
what it does in 3 ms."""
_LATE_AT_ONCE = 256
"""Of a range of deliveries that a worker has no more, so many are looked up."""
Found = list[tuple[DeliveryBatch, int]]
"""Batches, each with bits for some of its jobs."""


class JobQueue:
    """Hands jobs to workers.

    Args:
        limits: how it works.
        wall_offset_ns: what the wall clock is ahead of the monotonic one.
        first_delivery: the first delivery number. After a restart it has to be beyond those given
            before, so that workers can acknowledge what they have in flight.
        records: whether `store.changes` is wanted, by a journal.

    Attributes:
        store: the jobs that no worker has, and counters.
        workers: by id.
        breaker: whether everything fails.
        next_delivery: the next delivery number.
        pace: how many jobs all workers do within 50 ms.
        refused: answers to deliveries that were not the worker's, or no longer.
        delivered: deliveries made, or kept by `adopt`. Each is done, with a worker, or counted in
            `store.ended`.
        delays_capped, extends_capped: what workers asked for and did not get.
        hold_ns: see `QueueLimits.hold_timeout`; 0: for ever.
        warnings: for the log, oldest first: (worker's name, what it does), each once for a worker.
            The oldest are forgotten where they are not taken.

    """

    def __init__(
        self,
        limits: QueueLimits,
        *,
        wall_offset_ns: int = 0,
        first_delivery: int = 0,
        records: bool = False,
    ) -> None:
        self.limits = limits
        self.store = JobStore(limits, wall_offset_ns=wall_offset_ns, records=records)
        self.workers: dict[int, Worker] = {}
        self.breaker = Breaker(limits.failures_max, limits.pause, limits.pause_max)
        self.next_delivery = first_delivery
        self.pace = Pace(_PACE_NS)
        self.refused = self.delivered = self.acked = 0
        self.delays_capped = self.extends_capped = 0
        self.hold_ns = to_ns(limits.hold_timeout or 0.0)
        self.warnings: deque[tuple[str, str]] = deque(maxlen=WARNINGS_MAX)
        self._late = WeakValueDictionary[tuple[int, int], QueuedJob]()
        """What workers had and may be at still, by worker and delivery."""
        self._reserved: Worker | None = None
        """A worker that gets nothing more until it has nothing, for a job that goes alone."""

    # -------------------------------------------------------------------------------- workers

    def join(
        self,
        worker_id: int,
        name: str,
        prefetch: int,
        *,
        ceiling: int = 0,
        frame_bytes_max: int = 16 * 2**20,
        now_ns: int,
    ) -> Worker | None:
        """Take a worker on, or back after its connection broke; None where there are too many.

        `prefetch`: how many jobs it may have; `ceiling`: how many if it is fast; `frame_bytes_max`:
        the largest frame that it takes.
        """
        worker = self.workers.get(worker_id)
        if worker is None:
            if len(self.workers) >= self.limits.workers_max:
                return None
            worker = Worker(worker_id, name, self.limits, self.hold_ns, now_ns=now_ns)
            self.workers[worker_id] = worker
        worker.prefetch = max(1, min(prefetch, PREFETCH_MAX))
        worker.prefetch_ceiling = max(worker.prefetch, min(ceiling, PREFETCH_MAX))
        worker.frame_bytes_max = max(frame_bytes_max, FRAME_BYTES_MIN)
        worker.last_heard_ns = now_ns
        worker.on(WorkerEvent.JOINED)
        return worker

    def reconcile(
        self, worker: Worker, held: Iterable[tuple[int, int]], *, now_ns: int, ended: bool = False
    ) -> list[tuple[int, int]]:
        """Compare what a worker says it has with what it should have.

        What it never got goes to others; `ended`: its connection ended meanwhile, perhaps because
        of one of these jobs. Returns what it has and should not.
        """
        ours = worker.assigned.open_ranges()
        theirs = sorted(held)
        was_alone = worker.assigned.has_alone
        cut: list[QueuedJob] = []
        for start, stop in _minus(ours, theirs):
            found = worker.assigned.end(start, stop)
            jobs = self._one_by_one(found)
            if ended and all(bits.bit_count() == batch.count for batch, bits in found):
                cut += jobs
            else:
                self._end(worker, jobs, End.NOT_BEGUN, now_ns=now_ns)
        if cut:
            self._on_cut_jobs(worker, cut, was_alone, now_ns)
        return _minus(theirs, ours)

    def adopt(self, worker: Worker, delivery: int, sequence: int, *, now_ns: int) -> bool:
        """Let a worker keep a job that it was given before a restart; False where it cannot."""
        if delivery >= self.next_delivery:
            return False
        job = self.store.claim(sequence, worker.id)
        if job is None:
            return False
        self.delivered += 1
        self._count_delivery(worker, job, self.store.wall_ns(now_ns))
        worker.assigned.add(DeliveryBatch(delivery, None, [job], now_ns, job.last_ns))
        return True

    def heard(self, worker: Worker, *, now_ns: int) -> None:
        """Note a sign of life; it extends all that the worker has."""
        worker.last_heard_ns = now_ns

    def cut(self, worker_id: int, *, now_ns: int) -> None:
        """Note that a worker's connection broke."""
        worker = self.workers.get(worker_id)
        if worker is not None and not worker.is_cut:
            worker.cut_ns = now_ns
            worker.on(WorkerEvent.BROKE)

    def dismiss(self, worker_id: int, how: End, reason: str = "", *, now_ns: int) -> None:
        """Let a worker go, and give all that it has to others.

        Its deliveries end as `NOT_BEGUN` where it said that it leaves: it answered for the others;
        as `LOST` where it is dead, or silent for too long; as `TAKEN` where it may have no jobs
        any more. It may go on with what it had begun, keys included.
        """
        worker = self.workers.pop(worker_id, None)
        if worker is not None:
            self._end_batches(worker, worker.assigned.batches(), how, reason, now_ns)
        self.store.unclaimed(worker_id, now_ns=now_ns)

    def resync(self, *, now_ns: int) -> None:
        """Put all right after an exception, as after a restart: no worker is known any more.

        Each is asked what it has, and may keep that; what is counted of deliveries leaves out what
        they had.
        """
        self.workers = {}
        self._late = WeakValueDictionary()
        self._reserved = None
        self.next_delivery += 1  # so that it is another one than before, for the pusher's core
        self.store.resync(now_ns=now_ns)
        self.delivered = self.store.done + sum(self.store.ended.values())

    # ------------------------------------------------------------------------------- dispatch

    def take(self, *, now_ns: int) -> tuple[Worker, DeliveryBatch] | None:
        """Return the next jobs to hand out, and to which worker; None where there are none now."""
        store, breaker = self.store, self.breaker
        if not store.ready or now_ns < store.opens_ns or not breaker.allows(now_ns=now_ns):
            return None
        if store.alone and (found := self._take_alone(now_ns)) is not None:
            return found
        if not store.priorities.count:
            return None
        reserved = self._reserved if store.alone else None
        best, best_credit, best_load, able = None, 0, math.inf, 0
        for worker in self.workers.values():
            credit = worker.credit(now_ns=now_ns)
            if credit > 0 and worker is not reserved:
                able += 1
                has = worker.assigned.count
                load = worker.order(now_ns=now_ns) + has / (has + credit)
                if load < best_load:
                    best, best_credit, best_load = worker, credit, load
        if best is None:
            return None
        # Of what waits each gets its part; a fast one more, so that frames do not become small.
        count = max(-(-store.priorities.count // able), best_credit // _CREDIT_PARTS)
        count = min(count, best_credit, BATCH_JOBS_MAX)
        if not (breaker.state is best.breaker.state is BreakerState.CLOSED):
            count = 1
        taken = store.priorities.take(count, min(BATCH_BYTES, best.frame_bytes_max // 2))
        if isinstance(taken, JobRun):
            return self._hand_out(best, taken, None, now_ns)
        return self._hand_out(best, None, taken, now_ns) if taken else None

    def withdraw(
        self, worker: Worker, batch: DeliveryBatch, frame_bytes: int, *, now_ns: int
    ) -> None:
        """Take back what `take` returned last, and was not sent: the worker takes no such frame.

        Each job goes alone then, to a worker that takes it; where there is none, it has failed.
        """
        jobs = self._one_by_one(worker.assigned.end(batch.first, batch.stop))
        is_one = len(jobs) == 1
        if is_one and not any(other.takes(frame_bytes) for other in self.workers.values()):
            reason = (
                f"a frame of {frame_bytes:,} bytes is larger than frame_bytes_max of the worker, "
                f"{worker.frame_bytes_max:,} bytes"
            )
            self._warn(worker, f"cannot take job {jobs[0].sequence}, nor can any other: {reason}")
            self._end(worker, jobs, End.FAILED, reason, now_ns=now_ns)
            return
        self.delivered -= len(jobs)
        for job in jobs:
            job.frame_bytes = frame_bytes if is_one else job.size
            self.store.put_back(job, now_ns=now_ns)

    def recalls(self, *, now_ns: int) -> list[tuple[Worker, int]]:
        """Return the workers to ask for jobs that they have not begun, each with how many."""
        if self.store.ready or self.breaker.state is not BreakerState.CLOSED:
            return []
        idle = sum(
            not worker.assigned.count
            and worker.credit(now_ns=now_ns) > 0
            and not worker.is_distrusted(now_ns=now_ns)
            for worker in self.workers.values()
        )
        if not idle:
            return []
        victims = [
            worker
            for worker in self.workers.values()
            if worker.state is WorkerState.OPEN and self._recall_due_ns(worker) <= now_ns
        ]
        victims.sort(key=lambda worker: -worker.assigned.count)
        asked = []
        for worker in victims[:idle]:
            count = worker.assigned.count
            is_distrusted = worker.is_distrusted(now_ns=now_ns)
            asked.append((worker, count if is_distrusted else max(1, count // 2)))
            worker.on(WorkerEvent.ASK)
        return asked

    def _recall_due_ns(self, worker: Worker) -> int:
        """Return when jobs may be asked back from a worker for one that is idle."""
        oldest = worker.assigned.oldest()
        if oldest is None:
            return NEVER_NS
        waits = 1 if worker.assigned.count > 1 else _LONE_WAITS
        return oldest.sent_ns + waits * to_ns(self.limits.recall_wait)

    # --------------------------------------------------------------------- acknowledgements

    def ack(self, worker: Worker, start: int, stop: int, *, now_ns: int) -> None:
        """Note that a worker did the jobs of deliveries `[start, stop)`."""
        found = worker.assigned.end(start, stop)
        store, count = self.store, 0
        for batch, bits in found:
            count += bits.bit_count()
            if batch.run is not None:
                store.finish_run(batch.run, bits)
                if not batch.open:
                    store.bytes -= batch.size
            else:
                for index in bits_of(bits):
                    store.finish(batch.job(index), now_ns=now_ns)
        late = self._ack_late(worker, start, stop, now_ns) if count < stop - start else 0
        self._refuse(stop - start - count - late)
        if count:
            self.acked += count
            worker.succeeded(count, now_ns=now_ns)
            self.pace.add(count, now_ns=now_ns)
            self.breaker.succeeded()

    def _ack_late(self, worker: Worker, start: int, stop: int, now_ns: int) -> int:
        """Note that a worker did jobs which had been taken from it; return how many."""
        count = 0
        for delivery in range(start, min(stop, start + _LATE_AT_ONCE)) if self._late else ():
            job = self._late.pop((worker.id, delivery), None)
            if job is not None:
                self.store.finish_late(job, now_ns=now_ns)
                count += 1
        return count

    def reject(
        self,
        worker: Worker,
        delivery: int,
        reason: str,
        delay_ns: int | None,
        *,
        timed_out: bool = False,
        now_ns: int,
    ) -> None:
        """Note that a worker could not do a job; it is tried again after a delay.

        A delay beyond `reject_delay_max` is cut to it, and counted. `timed_out`: nobody there has
        said so, it took too long; the worker may be at it still, and others come first.
        """
        limit_ns = to_ns(self.limits.reject_delay_max)
        is_long = delay_ns is not None and delay_ns > limit_ns
        how = End.GIVEN_UP if timed_out else End.FAILED
        text = f"{(delay_ns or 0) / 1e9:.6g} s; reject_delay_max allows {limit_ns / 1e9:.6g} s"
        delay_ns = limit_ns if is_long else delay_ns
        if self._answer(worker, delivery, how, reason, delay_ns, now_ns):
            if timed_out:
                worker.trust.distrust(TIMED_OUT, now_ns=now_ns)
            if is_long:
                self.delays_capped += 1
                self._warn(worker, f"rejects a job with a delay of {text}")
            self.breaker.failed(now_ns=now_ns)

    def discard(self, worker: Worker, delivery: int, reason: str, *, now_ns: int) -> None:
        """Note that a worker says no worker can do a job; it becomes a dead letter at once.

        One that says so of every job, while others do theirs, is stopped as one that rejects all.
        """
        self._answer(worker, delivery, End.DISCARDED, reason, None, now_ns)

    def extend(self, worker: Worker, extend_ns: int, *, now_ns: int) -> None:
        """Let a worker have what it has for so long from now on, within `extend_max`."""
        limit = self.limits.extend_max
        if not worker.hold.extend(now_ns + extend_ns, to_ns(limit)):
            self.extends_capped += 1
            self._warn(worker, f"extends a job beyond what extend_max allows, {limit:.6g} s")

    def release(
        self, worker: Worker, ranges: Sequence[tuple[int, int]], *, now_ns: int, answer: bool
    ) -> None:
        """Take back jobs that a worker has not begun; `answer`: it was asked to.

        It has none to give where it says so.
        """
        for start, stop in ranges:
            jobs = self._one_by_one(worker.assigned.end(start, stop))
            self._refuse(stop - start - len(jobs))
            self._end(worker, jobs, End.NOT_BEGUN, now_ns=now_ns)
        if answer:
            worker.on(WorkerEvent.GAVE if ranges else WorkerEvent.HAD_NONE)
            if ranges and not worker.assigned.count:
                worker.trust.distrust(GAVE_ALL, now_ns=now_ns)

    # ----------------------------------------------------------------------------------- time

    def handle_timer(self, *, now_ns: int) -> list[tuple[Worker, bool]]:
        """Do what is due: delayed jobs, silent workers, connections that did not return.

        Returns workers that live and answer for nothing, and whether each lost jobs. Then it has
        to learn that these are not its any more, else to give back all that it has not begun.
        """
        self.store.handle_timer(now_ns=now_ns)
        holders: list[tuple[Worker, bool]] = []
        for worker in list(self.workers.values()):
            if worker.state is not CUT:
                if worker.assigned.count and now_ns >= worker.hold.due_ns:
                    holders.append((worker, self._act_on_holder(worker, now_ns)))
            elif now_ns >= worker.last_heard_ns + to_ns(self.limits.ack_timeout):
                self.dismiss(worker.id, End.LOST, "silent for ack_timeout", now_ns=now_ns)
            elif now_ns >= worker.cut_ns + to_ns(self.limits.grace):
                if not worker.assigned.count:
                    self.dismiss(worker.id, End.LOST, now_ns=now_ns)
                without_key = [b for b in worker.assigned.batches() if not _has_key(b)]
                self._end_batches(worker, without_key, End.LOST, "connection broken", now_ns)
        return holders

    def next_deadline_ns(self, *, now_ns: int) -> int | None:
        """Return when `handle_timer`, `take` or `recalls` may have something to do by itself."""
        store = self.store
        times = [] if (due_ns := store.next_deadline_ns()) is None else [due_ns]
        if store.ready:
            times += self._waits(now_ns)
        for worker in self.workers.values():
            if worker.trust.distrusted_until_ns > now_ns:
                times.append(worker.trust.distrusted_until_ns)
            if worker.state is CUT:
                times.append(worker.last_heard_ns + to_ns(self.limits.ack_timeout))
                if worker.cut_ns + to_ns(self.limits.grace) > now_ns:
                    times.append(worker.cut_ns + to_ns(self.limits.grace))
            elif worker.assigned.count:
                if self.hold_ns:
                    times.append(worker.hold.due_ns)
                if (recall_ns := self._recall_due_ns(worker)) > now_ns:
                    times.append(recall_ns)
        return min(times) if times else None

    def _waits(self, now_ns: int) -> list[int]:
        """Return until when it is not handed out what could be."""
        waits = [self.store.opens_ns, self.breaker.next_deadline_ns()]
        for worker in self.workers.values():
            waits += worker.breaker.next_deadline_ns(), worker.trust.paused_until_ns
        return [time_ns for time_ns in waits if time_ns > now_ns]

    @property
    def assigned_count(self) -> int:
        """How many jobs workers have."""
        return sum(worker.assigned.count for worker in self.workers.values())

    # -------------------------------------------------------------------------------- private

    def _take_alone(self, now_ns: int) -> tuple[Worker, DeliveryBatch] | None:
        """Give a job that goes alone to a worker that has nothing, or reserve one for it."""
        self._reserved = None
        job = self.store.first_alone()
        able = [each for each in self.workers.values() if each.takes(job.frame_bytes)]
        if not able:  # so that it fails with one of those that are left
            able = [*self.workers.values()]
        free = [each for each in able if each.credit(now_ns=now_ns) > 0]
        if not free:
            return None
        best = min(
            free,
            key=lambda one: (one.assigned.count > 0, one.order(now_ns=now_ns), one.assigned.count),
        )
        if best.assigned.count:
            self._reserved = best
            return None
        return self._hand_out(best, None, [self.store.take_alone()], now_ns)

    def _hand_out(
        self, worker: Worker, run: JobRun | None, jobs: list[QueuedJob] | None, now_ns: int
    ) -> tuple[Worker, DeliveryBatch]:
        wall_ns = self.store.wall_ns(now_ns)
        batch = DeliveryBatch(self.next_delivery, run, jobs, now_ns, wall_ns)
        self.next_delivery += batch.count
        self.delivered += batch.count
        if jobs is not None:
            for job in jobs:
                self._count_delivery(worker, job, wall_ns)
            if self.store.records:
                keyed = [job.sequence for job in jobs if job.key is not None]
                if keyed:
                    self.store.changes.append(Given(worker.id, keyed, batch.first))
        if not worker.assigned.count:
            worker.hold.begin(now_ns=now_ns)
        worker.assigned.add(batch)
        worker.on(WorkerEvent.GOT)
        for breaker in (self.breaker, worker.breaker):
            if breaker.state is not BreakerState.CLOSED:
                breaker.tried(now_ns=now_ns)
        return worker, batch

    def _count_delivery(self, worker: Worker, job: QueuedJob, wall_ns: int) -> None:
        job.deliveries += 1
        job.last_ns = wall_ns
        job.first_ns = job.first_ns or wall_ns
        job.holder = worker.id

    def _one_by_one(self, found: Found) -> list[QueuedJob]:
        """Return the jobs that ended one by one; their bytes are counted so from now on."""
        jobs = []
        for batch, bits in found:
            each = []
            for index in bits_of(bits):
                each.append(batch.job(index))
                each[-1].delivery = batch.first + index
            if batch.run is not None:
                self.store.keep_alone(batch.run, bits, each)
                if not batch.open:
                    self.store.bytes -= batch.size
            jobs += each
        return jobs

    def _end(
        self,
        worker: Worker,
        jobs: list[QueuedJob],
        how: End,
        reason: str = "",
        delay_ns: int | None = None,
        *,
        now_ns: int,
    ) -> None:
        """Give to others what ended at a worker; see `JobStore.end`."""
        for job in jobs:
            if how in MAY_BE_DONE:
                self._late[worker.id, job.delivery] = job
            self.store.end(job, how, worker.name, reason, delay_ns, now_ns=now_ns)

    def _end_batches(
        self, worker: Worker, batches: list[DeliveryBatch], how: End, reason: str, now_ns: int
    ) -> None:
        """End what is open of some batches; what a lost worker had alone has failed."""
        if how is End.LOST and worker.assigned.count == 1 and not self.limits.by_batch:
            how = End.GIVEN_UP
        found = [one for each in batches for one in worker.assigned.end(each.first, each.stop)]
        if found and how is End.GIVEN_UP:
            self.breaker.failed(now_ns=now_ns)
        self._end(worker, self._one_by_one(found), how, reason, 0, now_ns=now_ns)

    def _answer(
        self,
        worker: Worker,
        delivery: int,
        how: End,
        reason: str,
        delay_ns: int | None,
        now_ns: int,
    ) -> bool:
        """End a job that its worker did not do; whether it was its."""
        jobs = self._one_by_one(worker.assigned.end(delivery, delivery + 1))
        if not jobs:
            self._refuse(1)
            return False
        worker.hold.begin(now_ns=now_ns)
        if how is not End.GIVEN_UP:
            worker.trust.answered()
        self._end(worker, jobs, how, reason, delay_ns, now_ns=now_ns)
        trips = worker.breaker.trips
        worker.failed(self.acked, now_ns=now_ns)
        if worker.breaker.trips != trips:
            self._warn(
                worker,
                f"failed at {worker.breaker.failures} jobs in a row while others did theirs, and "
                "gets one at a time, with pauses",
            )
        return True

    def _on_cut_jobs(
        self, worker: Worker, jobs: list[QueuedJob], was_alone: bool, now_ns: int
    ) -> None:
        """Take back jobs none of whose frames arrived before the connection ended.

        Any of them may have ended it, or none: it counts only where it was the worker's one job,
        and is so large that it may have.
        """
        for job in jobs:
            job.cuts += 1
            job.quarantined |= job.cuts > 1
        again = sum(job.quarantined for job in jobs)
        if not (was_alone and len(jobs) == 1 and jobs[0].size > FRAME_BYTES_MIN):
            self._end(worker, jobs, End.NOT_BEGUN, now_ns=now_ns)
            if again:
                self._warn(
                    worker,
                    "did not get what was sent to it, twice or more, since its connection ended "
                    f"(jobs: {again}). They go out one at a time, to find the one that ends it",
                )
            return
        (job,) = jobs
        times = "once" if job.cuts == 1 else f"{job.cuts} times"
        reason = f"its worker's connection ended {times} when it came ({job.size:,} bytes)"
        delay_ns = self.limits.retry.wait_ns(job.failures, first_ns=CUT_RETRY_NS)
        self._end(worker, jobs, End.FAILED, reason, delay_ns, now_ns=now_ns)
        self.breaker.failed(now_ns=now_ns)
        self._warn(
            worker,
            f"never got job {job.sequence}, which was sent alone: {reason}. It may be too large "
            "for the worker, or for what is between; after deliveries_max attempts it is a "
            "dead letter",
        )

    def _act_on_holder(self, worker: Worker, now_ns: int) -> bool:
        """Ask a worker that answers for nothing for its jobs, and later take them; whether it did.

        Those with keys, too: an honest one has begun none since it was asked, rejected by then what
        it had begun, and cannot be at work on them any more.
        """
        hold, count = worker.hold, worker.assigned.count
        if not hold.is_asked:
            hold.ask()
            if now_ns < hold.due_ns:
                return False
        held_s = (now_ns - hold.since_ns) / 1e9
        reason = f"held for {held_s:.6g} s without an answer"
        self._end_batches(worker, worker.assigned.batches(), End.TAKEN, reason, now_ns)
        worker.trust.held(count, until_ns=now_ns + self.hold_ns)
        self._warn(
            worker,
            f"held {count} jobs for {held_s:.6g} s and acknowledged none; they go to others, "
            "and it gets fewer",
        )
        return True

    def _warn(self, worker: Worker, text: str) -> None:
        """Report something about a worker to the program, once for each kind of thing."""
        kind = text.partition(" ")[0]
        if kind not in worker.warned:
            worker.warned.add(kind)
            self.warnings.append((worker.name, text))

    def _refuse(self, count: int) -> None:
        self.refused += max(0, min(count, PREFETCH_MAX))


def _has_key(batch: DeliveryBatch) -> bool:
    return batch.jobs is not None and any(job.key is not None for job in batch.jobs)


def _minus(ranges: list[tuple[int, int]], others: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return what of `ranges` is in none of the sorted `others`."""
    covered = RangeSet(others)
    return [left for start, stop in ranges for left in covered.missing(start, stop)]
