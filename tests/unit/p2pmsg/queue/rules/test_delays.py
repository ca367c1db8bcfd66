"""Delays count by the monotonic clock; what the log says of them, by the wall clock, is bounded."""

from p2pmsg.queue.journal.records import JournalState, change_record, push_record
from p2pmsg.queue.rules import End, QueuedJob
from tests.queues import job_queue

S = 10**9
HOUR, DAY = 3600 * S, 86_400 * S
WALL_NS = 1_700_000_000 * S
GRACE_NS = S


class Run:
    """One incarnation of a queue with a log; `wall_offset_ns` is what the wall clock is ahead."""

    def __init__(self, records=(), *, wall_offset_ns=WALL_NS, now_ns=0):
        self.records, self.now_ns = list(records), now_ns
        self.queue = job_queue(
            grace=GRACE_NS / S, retry_delay=1.0, wall_offset_ns=wall_offset_ns, records=True
        )
        self.store = self.queue.store
        state = JournalState()
        for record in records:
            state.apply(record)
        for job, holder in state.jobs():
            self.store.restore(job, holder, now_ns=now_ns)
        self.worker = self.queue.join(1, "w", 10, now_ns=now_ns)

    def push(self, delay_ns=0, key=None):
        job = QueuedJob(len(self.records), b"", self.store.wall_ns(self.now_ns), key)
        if delay_ns:
            job.due_ns, job.ready_ns = job.pushed_ns + delay_ns, self.now_ns + delay_ns
        self.records.append(push_record(job))
        self.store.push(job, now_ns=self.now_ns)

    def take(self, now_ns):
        """Go to a time; return the sequence of the job that is handed out, or None."""
        self.now_ns = now_ns
        self.queue.heard(self.worker, now_ns=now_ns)
        self.queue.handle_timer(now_ns=now_ns)
        taken = self.queue.take(now_ns=now_ns)
        return None if taken is None else taken[1].job(0).sequence

    def reject(self, delay_ns=None):
        delivery = self.queue.next_delivery - 1
        self.queue.reject(self.worker, delivery, "no", delay_ns, now_ns=self.now_ns)
        self.note()

    def note(self):
        self.records += map(change_record, self.store.changes)
        self.store.changes.clear()

    def again(self, *, wall_ns):
        """Return the next incarnation, which begins at 0 by the monotonic clock."""
        self.note()
        return Run(self.records, wall_offset_ns=wall_ns)

    @property
    def wall_ns(self):
        return self.store.wall_ns(self.now_ns)


def test_a_step_of_the_clock_moves_no_delay_after_others_of_a_key():
    run = Run()
    run.push(key="k")
    run.push(9 * S, key="k")
    assert run.take(0) == 0
    run.store.wall_offset_ns += HOUR
    run.queue.ack(run.worker, 0, 1, now_ns=0)
    assert [run.take(now_ns) for now_ns in (9 * S - 1, 9 * S)] == [None, 1]


def test_times_of_deliveries_and_failures_are_of_the_clock_as_it_is():
    run = Run()
    run.push()
    run.store.wall_offset_ns += HOUR
    assert run.take(S) == 0
    run.reject()
    assert run.take(2 * S) == 0
    run.queue.discard(run.worker, run.queue.next_delivery - 1, "bad", now_ns=2 * S)
    (dead,) = run.store.dead.list()
    one_ns, two_ns = (WALL_NS + HOUR + seconds * S for seconds in (1, 2))
    assert (dead.job.first_ns, dead.job.last_ns, dead.at_ns) == (one_ns, two_ns, two_ns)
    assert [failure.at_ns for failure in dead.job.history] == [one_ns, two_ns]


def test_what_push_delayed_keeps_its_time_over_restarts():
    run = Run()
    run.push(3 * DAY)
    assert run.take(DAY) is None
    again = run.again(wall_ns=run.wall_ns + HOUR)
    last_ns = 2 * DAY - HOUR
    assert [again.take(now_ns) for now_ns in (last_ns - 1, last_ns)] == [None, 0]


def test_what_push_delayed_waits_no_longer_where_the_clock_was_set_back():
    run = Run()
    run.push(5 * S)
    again = run.again(wall_ns=run.wall_ns - DAY)
    assert [again.take(now_ns) for now_ns in (5 * S - 1, 5 * S)] == [None, 0]


def test_what_was_taken_back_from_a_worker_after_its_delay_waits_no_more():
    run = Run()
    run.push(5 * S)
    assert run.take(5 * S) == 0
    run.queue.dismiss(1, End.TAKEN, "revoked", now_ns=run.now_ns)
    again = run.again(wall_ns=run.wall_ns - DAY)
    assert again.take(GRACE_NS) == 0
