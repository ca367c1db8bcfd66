"""The work queue's state machine: which worker gets which job, and what becomes of it.

It knows jobs as bytes and workers as numbers. Every method takes the time; nothing here waits.

Rules, in the order in which they matter:

- A job that was accepted is in a priority queue, waiting for its key, in a heap, assigned to one
  worker, done or dead; not twice.
- Of the jobs of one key, one at most is released, so they cannot overtake one another.
- A delivery number is given once, and ends one delivery: an answer to another worker's changes
  nothing and is counted. One to a delivery that was taken from this worker does neither, except
  that a job which it has done is done.
- The worker that has the least in flight, for what it may have, gets the next; what an idle worker
  could do is asked back from the one that has the most, also where that is its only one. Workers
  that held jobs and did none since get what the others do not take; so do, for a time, those at
  which a job timed out, and those that gave all back.
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
from p2pmsg.queue.rules.store import Given, JobStore
from p2pmsg.queue.rules.worker import Breaker, BreakerState, Worker
from recovery.checks import to_ns

WARNINGS_MAX = 64
"""Warnings that wait to be taken."""
FRAME_BYTES_MIN = 64 * 1024
"""The lowest limit of a frame that a worker can have."""
_NEVER_NS = 2**63
_PACE_NS = 50_000_000
"""How long what is done is counted for `pace`."""
_LONE_WAITS = 10
"""Times `recall_wait` after which a worker's only job is asked back: it is mostly begun by then."""
_TIMED_OUT_NS = 1_000_000_000
_GAVE_ALL_NS = 20_000_000
"""For how long a worker is unconfirmed at first at which a job timed out, or that had begun none of
its jobs when it was asked. Not for ever: it may be free again, and the queue cannot see that."""
_CREDIT_PARTS = 8
"""A frame has this part of a worker's credit at least, where so much waits: for one that is fast,
what it does in 3 ms."""
_LATE_AT_ONCE = 256
"""Of a range of deliveries that a worker has no more, so many are looked up."""


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
            one of `store.failed` and these:
        recalled: taken back before they were begun.
        taken_back: several at once, from workers that died or fell silent.
        held_back: taken back from workers that live, and held them for too long, or lost the right
            to them.
        delays_capped, extends_capped: what workers asked for and did not get.
        hold_ns: see `QueueLimits.hold_timeout`; 0: for ever.
        warnings: for the log, oldest first: (worker's name, what it does), each once for a worker,
            those about jobs that did not arrive once a minute. The oldest are forgotten where they
            are not taken.

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
        self.refused = self.delivered = self.recalled = self.taken_back = self.acked = 0
        self.held_back = self.delays_capped = self.extends_capped = 0
        self.hold_ns = to_ns(limits.hold_timeout or 0.0)
        self.warnings: deque[tuple[str, str]] = deque(maxlen=WARNINGS_MAX)
        self._ack_timeout_ns = to_ns(limits.ack_timeout)
        self._late = WeakValueDictionary[tuple[int, int], QueuedJob]()
        """What workers had and may be at still, by worker and delivery."""

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
        prefetch = max(1, min(prefetch, PREFETCH_MAX))
        worker = self.workers.get(worker_id)
        if worker is None:
            if len(self.workers) >= self.limits.workers_max:
                return None
            worker = Worker(worker_id, name, prefetch, self.limits, now_ns)
            self.workers[worker_id] = worker
        worker.prefetch = prefetch
        worker.prefetch_ceiling = max(prefetch, min(ceiling, PREFETCH_MAX))
        worker.frame_bytes_max = max(frame_bytes_max, FRAME_BYTES_MIN)
        worker.last_heard_ns = now_ns
        worker.cut_ns = None
        worker.recalling = False
        worker.recalled_ns = None  # what was under way may be lost
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
        was_alone = worker.alone
        unconfirmed: list[QueuedJob] = []
        for start, stop in _minus(ours, theirs):
            found = worker.assigned.end(start, stop)
            jobs = self._alone(found)
            if ended and all(bits.bit_count() == batch.count for batch, bits in found):
                unconfirmed += jobs
            else:
                self._take_back(worker, jobs, now_ns)
        if unconfirmed:
            self._isolate(worker, unconfirmed, was_alone, now_ns)
        return _minus(theirs, ours)

    def adopt(self, worker: Worker, delivery: int, sequence: int, *, now_ns: int) -> bool:
        """Let a worker keep a job that it was given before a restart; False where it cannot."""
        if delivery >= self.next_delivery:
            return False
        job = self.store.claim(sequence, worker.id)
        if job is None:
            return False
        self.delivered += 1
        job.deliveries += 1
        job.last_ns = self.store.wall_ns(now_ns)
        job.first_ns = job.first_ns or job.last_ns
        job.holder = worker.id
        worker.assigned.add(DeliveryBatch(delivery, None, [job], now_ns, job.last_ns))
        worker.most = max(worker.most, worker.assigned.count)
        return True

    def heard(self, worker: Worker, *, now_ns: int) -> None:
        """Note a sign of life; it extends all that the worker has."""
        worker.last_heard_ns = now_ns

    def cut(self, worker_id: int, *, now_ns: int) -> None:
        """Note that a worker's connection broke."""
        worker = self.workers.get(worker_id)
        if worker is not None and worker.cut_ns is None:
            worker.cut_ns = now_ns

    def lose(self, worker_id: int, reason: str, *, now_ns: int) -> None:
        """Give all that a worker has to others: it is dead, or silent for too long."""
        worker = self.workers.pop(worker_id, None)
        if worker is not None:
            self._lose_jobs(worker, worker.assigned.batches(), reason, now_ns)
        self.store.unclaimed(worker_id, now_ns=now_ns)

    def leave(self, worker_id: int, *, now_ns: int) -> None:
        """Let a worker go that has acknowledged what it had begun; the rest was never begun."""
        worker = self.workers.pop(worker_id, None)
        if worker is not None:
            jobs = self._end_all(worker, worker.assigned.batches())
            self._take_back(worker, jobs, now_ns)
        self.store.unclaimed(worker_id, now_ns=now_ns)

    def dismiss(self, worker_id: int, reason: str, *, now_ns: int) -> None:
        """Let a worker go that may have no jobs any more; others get them at once.

        It may go on with what it had begun, keys included; none of its answers counts.
        """
        worker = self.workers.pop(worker_id, None)
        if worker is not None:
            jobs = self._end_all(worker, worker.assigned.batches())
            self.held_back += len(jobs)
            for job in jobs:  # they did not fail
                self.store.put_back_held(job, worker.name, reason, now_ns=now_ns)
            self.breaker.untried()
            self._check_alone(worker)
        self.store.unclaimed(worker_id, now_ns=now_ns)

    def resync(self, *, now_ns: int) -> None:
        """Put all right after an exception, as after a restart: no worker is known any more.

        Each is asked what it has, and may keep that; what is counted of deliveries leaves out what
        they had.
        """
        self.workers = {}
        self._late = WeakValueDictionary()
        self.next_delivery += 1  # so that it is another one than before, for the pusher's core
        self.breaker.untried()
        self.store.resync(now_ns=now_ns)
        ended = self.store.done + self.store.failed
        self.delivered = ended + self.recalled + self.taken_back + self.held_back

    # ------------------------------------------------------------------------------- dispatch

    def take(self, *, now_ns: int) -> tuple[Worker, DeliveryBatch] | None:
        """Return the next jobs to hand out, and to which worker; None where there are none now."""
        store, breaker = self.store, self.breaker
        if not (store.ready or store.oversized):
            return None
        if now_ns < store.opens_ns or not breaker.allows(now_ns=now_ns):
            return None
        if store.oversized and (found := self._take_oversized(now_ns)) is not None:
            return found
        best, best_load, able = None, math.inf, 0
        for worker in self.workers.values():
            if worker.reserved and not store.quarantined:
                worker.reserved = False
            credit = worker.credit(now_ns=now_ns)
            if credit > 0:
                able += 1
                load = worker.rank + worker.assigned.count / (worker.assigned.count + credit)
                if worker.distrusted_ns > now_ns:
                    load += 1.0
                if load < best_load:
                    best, best_load = worker, load
        if store.quarantined:
            found = self._take_quarantined(best, now_ns)
            if found is not None:
                return found
            if best is not None and best.reserved:
                return self.take(now_ns=now_ns)
        if best is None or not store.priorities.count:
            return None
        credit = best.credit(now_ns=now_ns)
        # Of what waits each gets its part; a fast one more, so that frames do not become small.
        count = max(-(-store.priorities.count // able), credit // _CREDIT_PARTS)
        count = min(count, credit, best.frame_jobs_max)
        if best.frame_jobs_max < BATCH_JOBS_MAX:
            best.frame_jobs_max = min(2 * best.frame_jobs_max, BATCH_JOBS_MAX)
        if not (breaker.state is best.breaker.state is BreakerState.CLOSED):
            count = 1
        taken = store.priorities.take(count, BATCH_BYTES)
        if isinstance(taken, JobRun):
            return self._hand_out(best, taken, None, now_ns)
        return self._hand_out(best, None, taken, now_ns) if taken else None

    def withdraw(
        self, worker: Worker, batch: DeliveryBatch, frame_bytes: int, *, now_ns: int
    ) -> None:
        """Take back what `take` returned last, and was not sent: the worker takes no such frame.

        Several jobs go out again, fewer at a time. One alone waits for a worker that takes it;
        where there is none, it has failed.
        """
        changes = self.store.changes
        if changes and isinstance(changes[-1], Given) and changes[-1].delivery == batch.first:
            changes.pop()
        jobs = self._alone(worker.assigned.end(batch.first, batch.stop))
        self.breaker.untried()
        worker.breaker.untried()
        self._check_alone(worker)
        if len(jobs) > 1:
            worker.frame_jobs_max = len(jobs) // 2
            self.delivered -= len(jobs)
            for job in jobs:
                self.store.put_back(job, now_ns=now_ns)
            return
        (job,) = jobs
        reason = (
            f"a frame of {frame_bytes:,} bytes is larger than frame_bytes_max of the worker, "
            f"{worker.frame_bytes_max:,} bytes"
        )
        if any(other.takes(frame_bytes) for other in self.workers.values()):
            self._warn(worker, f"cannot take job {job.sequence}, others can: {reason}")
            self.delivered -= 1
            self.store.put_oversized(job, frame_bytes)
        else:
            self._warn(worker, f"cannot take job {job.sequence}, nor can any other: {reason}")
            self.store.fail(job, worker.name, reason, None, now_ns=now_ns)

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
            if worker.assigned.count
            and _may_be_asked(worker)
            and self._recall_due_ns(worker) <= now_ns
        ]
        victims.sort(key=lambda worker: -worker.assigned.count)
        asked = []
        for worker in victims[:idle]:
            count = worker.assigned.count
            is_distrusted = worker.is_distrusted(now_ns=now_ns)
            asked.append((worker, count if is_distrusted else max(1, count // 2)))
        for worker, _ in asked:
            worker.recalling = True
        return asked

    def _recall_due_ns(self, worker: Worker) -> int:
        """Return when jobs may be asked back from a worker for one that is idle."""
        oldest = worker.assigned.oldest()
        if oldest is None:
            return _NEVER_NS
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
            worker.progressed(now_ns)
            worker.succeeded(count, now_ns=now_ns)
            self.pace.add(count, now_ns=now_ns)
            self.breaker.succeeded()
            self._check_alone(worker)

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
        job = self._end_one(worker, delivery)
        if job is not None:
            worker.progressed(now_ns)
            if timed_out:
                self._late[worker.id, delivery] = job
                worker.distrust(_TIMED_OUT_NS, now_ns=now_ns)
            else:
                worker.trust()
            limit_ns = to_ns(self.limits.reject_delay_max)
            if delay_ns is not None and delay_ns > limit_ns:
                self.delays_capped += 1
                self._warn(
                    worker,
                    f"rejects a job with a delay of {delay_ns / 1e9:.6g} s; "
                    f"reject_delay_max allows {limit_ns / 1e9:.6g} s",
                )
                delay_ns = limit_ns
            self.store.fail(job, worker.name, reason, delay_ns, now_ns=now_ns)
            self._worker_failed(worker, now_ns)
            self.breaker.failed(now_ns=now_ns)
            self._check_alone(worker)

    def discard(self, worker: Worker, delivery: int, reason: str, *, now_ns: int) -> None:
        """Note that a worker says no worker can do a job; it becomes a dead letter at once.

        One that says so of every job, while others do theirs, is stopped as one that rejects all.
        """
        job = self._end_one(worker, delivery)
        if job is not None:
            worker.progressed(now_ns)
            worker.trust()
            self.store.discard(job, worker.name, reason, now_ns=now_ns)
            self.breaker.untried()
            self._worker_failed(worker, now_ns)
            self._check_alone(worker)

    def extend(self, worker: Worker, extend_ns: int, *, now_ns: int) -> None:
        """Let a worker have what it has for so long from now on, within `extend_max`."""
        latest_ns = worker.progress_ns + self.hold_ns + to_ns(self.limits.extend_max)
        if now_ns + extend_ns > latest_ns and self.hold_ns:
            self.extends_capped += 1
            limit = self.limits.extend_max
            self._warn(worker, f"extends a job beyond what extend_max allows, {limit:.6g} s")
        worker.extended_ns = max(worker.extended_ns, min(now_ns + extend_ns, latest_ns))

    def release(
        self, worker: Worker, ranges: Sequence[tuple[int, int]], *, now_ns: int, answer: bool
    ) -> None:
        """Take back jobs that a worker has not begun; `answer`: it was asked to.

        It has none to give where it says so. An answer that was under way when its connection broke
        is about jobs that its hello brought back before, and it may have others.
        """
        for start, stop in ranges:
            jobs = self._alone(worker.assigned.end(start, stop))
            self._refuse(stop - start - len(jobs))
            self._take_back(worker, jobs, now_ns)
        if answer:
            worker.recalling = False
            worker.recall_is_vain = not ranges
            if ranges and not worker.assigned.count:
                worker.distrust(_GAVE_ALL_NS, now_ns=now_ns)

    # ----------------------------------------------------------------------------------- time

    def handle_timer(self, *, now_ns: int) -> list[tuple[Worker, bool]]:
        """Do what is due: delayed jobs, silent workers, connections that did not return.

        Returns workers that live and answer for nothing, and whether each lost jobs. Then it has
        to learn that these are not its any more, else to give back all that it has not begun.
        """
        self.store.handle_timer(now_ns=now_ns)
        holders: list[tuple[Worker, bool]] = []
        for worker in list(self.workers.values()):
            if worker.cut_ns is None:
                if worker.assigned.count and now_ns >= self._hold_due_ns(worker):
                    holders.append((worker, self._act_on_holder(worker, now_ns)))
            elif now_ns >= worker.last_heard_ns + self._ack_timeout_ns:
                self.lose(worker.id, "silent for ack_timeout", now_ns=now_ns)
            elif now_ns >= worker.cut_ns + to_ns(self.limits.grace):
                without_key = [b for b in worker.assigned.batches() if not _has_key(b)]
                if not worker.assigned.count:
                    self.lose(worker.id, "connection broken", now_ns=now_ns)
                elif without_key:
                    self._lose_jobs(worker, without_key, "connection broken", now_ns)
        return holders

    def next_deadline_ns(self, *, now_ns: int) -> int | None:
        """Return when `handle_timer`, `take` or `recalls` may have something to do by itself."""
        store = self.store
        times = []
        if (due_ns := store.next_deadline_ns()) is not None:
            times.append(due_ns)
        waiting = store.ready + store.oversized
        if waiting and store.opens_ns > now_ns:
            times.append(store.opens_ns)
        if waiting and (due_ns := self.breaker.next_deadline_ns()) is not None:
            times.append(due_ns)
        for worker in self.workers.values():
            if worker.cut_ns is not None:
                times.append(worker.last_heard_ns + self._ack_timeout_ns)
                if worker.cut_ns + to_ns(self.limits.grace) > now_ns:
                    times.append(worker.cut_ns + to_ns(self.limits.grace))
            if waiting and (due_ns := worker.breaker.next_deadline_ns()) is not None:
                times.append(due_ns)
            if waiting and worker.paused_ns > now_ns:
                times.append(worker.paused_ns)
            if worker.assigned.count and self.hold_ns and worker.cut_ns is None:
                times.append(self._hold_due_ns(worker))
            if worker.assigned.count and (recall_ns := self._recall_due_ns(worker)) > now_ns:
                times.append(recall_ns)
            if worker.distrusted_ns > now_ns:
                times.append(worker.distrusted_ns)
        return min(times) if times else None

    @property
    def assigned_count(self) -> int:
        """How many jobs workers have."""
        return sum(worker.assigned.count for worker in self.workers.values())

    # -------------------------------------------------------------------------------- private

    def _take_oversized(self, now_ns: int) -> tuple[Worker, DeliveryBatch] | None:
        """Give a job that is too large for some workers to another; None where none is free."""
        size, job = self.store.first_oversized()
        able = [worker for worker in self.workers.values() if worker.takes(size)]
        if not able:
            if self.workers:  # so that it fails with one of those that are left
                self.store.release_oversized(now_ns=now_ns)
            return None
        free = [
            worker
            for worker in able
            if worker.credit(now_ns=now_ns) > 0 and not (job.quarantined and worker.assigned.count)
        ]
        if not free:
            return None
        best = min(free, key=lambda one: one.order(now_ns=now_ns) + one.assigned.count)
        best.alone = job.quarantined
        return self._hand_out(best, None, [self.store.take_oversized()], now_ns)

    def _take_quarantined(
        self, best: Worker | None, now_ns: int
    ) -> tuple[Worker, DeliveryBatch] | None:
        """Give a quarantined job to a worker that has nothing else, or reserve one for it."""
        empty: Worker | None = None
        for worker in self.workers.values():
            was, worker.reserved = worker.reserved, False
            is_free = not worker.assigned.count and worker.credit(now_ns=now_ns) > 0
            order = worker.order(now_ns=now_ns)
            if is_free and (empty is None or order < empty.order(now_ns=now_ns)):
                empty = worker
            worker.reserved = was
        if empty is not None:
            job = self.store.take_quarantined()
            empty.reserved, empty.alone = False, True
            return self._hand_out(empty, None, [job], now_ns)
        if best is not None and not any(worker.reserved for worker in self.workers.values()):
            best.reserved = True
        return None

    def _hand_out(
        self, worker: Worker, run: JobRun | None, jobs: list[QueuedJob] | None, now_ns: int
    ) -> tuple[Worker, DeliveryBatch]:
        wall_ns = self.store.wall_ns(now_ns)
        batch = DeliveryBatch(self.next_delivery, run, jobs, now_ns, wall_ns)
        self.next_delivery += batch.count
        self.delivered += batch.count
        if jobs is not None:
            for job in jobs:
                job.deliveries += 1
                job.last_ns = wall_ns
                job.first_ns = job.first_ns or wall_ns
                job.holder = worker.id
            if self.store.records:
                keyed = [job.sequence for job in jobs if job.key is not None]
                if keyed:
                    self.store.changes.append(Given(worker.id, keyed, batch.first))
        if not worker.assigned.count:
            worker.progressed(now_ns)
        worker.assigned.add(batch)
        worker.most = max(worker.most, worker.assigned.count)
        worker.recall_is_vain = False
        for breaker in (self.breaker, worker.breaker):
            if breaker.state is not BreakerState.CLOSED:
                breaker.tried()
        return worker, batch

    def _end_one(self, worker: Worker, delivery: int) -> QueuedJob | None:
        found = worker.assigned.end(delivery, delivery + 1)
        if not found:
            self._refuse(1)
            return None
        return self._alone(found)[0]

    def _end_all(self, worker: Worker, batches: list[DeliveryBatch]) -> list[QueuedJob]:
        """Settle what is open of some batches; return these jobs."""
        end = worker.assigned.end
        return [job for batch in batches for job in self._alone(end(batch.first, batch.stop))]

    def _alone(self, found: list[tuple[DeliveryBatch, int]]) -> list[QueuedJob]:
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

    def _take_back(self, worker: Worker, jobs: list[QueuedJob], now_ns: int) -> None:
        """Take back what was never begun."""
        for job in jobs:
            self.recalled += 1
            self.store.put_back(job, now_ns=now_ns)
        if jobs:
            self.breaker.untried()
            worker.breaker.untried()
        self._check_alone(worker)

    def _isolate(self, worker: Worker, jobs: list[QueuedJob], was_alone: bool, now_ns: int) -> None:
        """Take back jobs none of whose frames arrived before the connection ended.

        Any of them may have ended it, or none: it counts only where it was the worker's one job.
        """
        for job in jobs:
            job.cuts += 1
        if was_alone and len(jobs) == 1:
            self._fail_cut(worker, jobs[0], now_ns)
            return
        again = [job for job in jobs if job.cuts > 1]
        for job in again:
            job.quarantined = True
        self._take_back(worker, jobs, now_ns)
        worker.cut_short(len(jobs))
        if again:
            self._warn(
                worker,
                "did not get what was sent to it, twice or more, since its connection ended (jobs: "
                f"{len(again)}). They go out one at a time, to find one that ends connections",
            )

    def _fail_cut(self, worker: Worker, job: QueuedJob, now_ns: int) -> None:
        """Take back the one job of a worker whose connection ended before it arrived."""
        times = "once" if job.cuts == 1 else f"{job.cuts} times"
        reason = f"its worker's connection ended {times} when it came ({job.size:,} bytes)"
        delay_ns = min(CUT_RETRY_NS << min(job.failures, 30), to_ns(self.limits.retry_max))
        self.store.fail(job, worker.name, reason, delay_ns, now_ns=now_ns)
        self.breaker.failed(now_ns=now_ns)
        worker.breaker.untried()
        self._check_alone(worker)
        self._warn(
            worker,
            f"never got job {job.sequence}, which was sent alone: {reason}. It may be too large "
            "for the worker, or for what is between; after deliveries_max attempts it is a "
            "dead letter",
        )

    def _lose_jobs(
        self, worker: Worker, batches: list[DeliveryBatch], reason: str, now_ns: int
    ) -> None:
        """Give to others what a lost worker had; where it had one job alone, that one failed."""
        by_batch = self.limits.by_batch
        is_alone = worker.assigned.count == 1 and not by_batch
        for job in self._end_all(worker, batches):
            self._late[worker.id, job.delivery] = job
            if is_alone:  # it counts as failed
                self.store.fail(job, worker.name, reason, 0, now_ns=now_ns)
                self.breaker.failed(now_ns=now_ns)
            else:
                self.taken_back += 1
                if by_batch:
                    self.store.put_back(job, now_ns=now_ns)
                    continue
                self.store.quarantine(job, worker.name, reason, now_ns=now_ns)
        self.breaker.untried()
        self._check_alone(worker)

    def _hold_due_ns(self, worker: Worker) -> int:
        """Return when something is to be done about a worker that answers for nothing."""
        if not self.hold_ns:
            return _NEVER_NS
        ask_ns = max(worker.progress_ns + self.hold_ns, worker.extended_ns)
        # An honest worker has begun none since it was asked, and rejects what it had begun by then.
        return ask_ns if worker.recalled_ns is None else ask_ns + self.hold_ns

    def _act_on_holder(self, worker: Worker, now_ns: int) -> bool:
        """Ask a worker that answers for nothing for its jobs, and later take them; whether it did.

        Those with keys, too: an honest one cannot be at work on them any more by then.
        """
        if worker.recalled_ns is None:
            worker.recalled_ns = now_ns
            if now_ns < self._hold_due_ns(worker):
                return False
        held_s = (now_ns - worker.progress_ns) / 1e9
        reason = f"held for {held_s:.6g} s without an answer"
        jobs = self._end_all(worker, worker.assigned.batches())
        for job in jobs:  # they did not fail
            self._late[worker.id, job.delivery] = job
            self.store.put_back_held(job, worker.name, reason, now_ns=now_ns)
        self.held_back += len(jobs)
        self.breaker.untried()
        worker.breaker.untried()
        self._check_alone(worker)
        worker.progressed(now_ns)
        worker.held(len(jobs), pause_ns=self.hold_ns, now_ns=now_ns)
        self._warn(
            worker,
            f"held {len(jobs)} jobs for {held_s:.6g} s and acknowledged none; they go to others, "
            "and it gets fewer",
        )
        return True

    def _warn(self, worker: Worker, text: str) -> None:
        """Report something about a worker to the program, once for each kind of thing."""
        kind = text.partition(" ")[0]
        if kind not in worker.warned:
            worker.warned.add(kind)
            self.warnings.append((worker.name, text))

    def _worker_failed(self, worker: Worker, now_ns: int) -> None:
        trips = worker.breaker.trips
        worker.job_failed(self.acked, now_ns=now_ns)
        if worker.breaker.trips != trips:
            self._warn(
                worker,
                f"failed at {worker.breaker.failures} jobs in a row while others did theirs, and "
                "gets one at a time, with pauses",
            )

    def _check_alone(self, worker: Worker) -> None:
        if not worker.assigned.count:
            worker.alone = False

    def _refuse(self, count: int) -> None:
        self.refused += max(0, min(count, PREFETCH_MAX))


def _may_be_asked(worker: Worker) -> bool:
    """Whether a worker may have jobs to give back."""
    return worker.cut_ns is None and not (worker.recalling or worker.recall_is_vain)


def _has_key(batch: DeliveryBatch) -> bool:
    return batch.jobs is not None and any(job.key is not None for job in batch.jobs)


def _minus(ranges: list[tuple[int, int]], others: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return what of sorted `ranges` is in none of the sorted `others`."""
    left: list[tuple[int, int]] = []
    at = 0
    for start, stop in ranges:
        while at < len(others) and others[at][1] <= start:
            at += 1
        index = at
        while start < stop and index < len(others) and others[index][0] < stop:
            low, high = others[index]
            if start < low:
                left.append((start, low))
            start = max(start, high)
            index += 1
        if start < stop:
            left.append((start, stop))
    return left
