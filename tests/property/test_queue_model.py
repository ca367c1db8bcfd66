"""Parts of the work queue against naive models."""

from hypothesis import given
from hypothesis import strategies as st

from p2pmsg.queue.rules import DeliveryBatch, End, JobQueue, JobRun, QueuedJob, QueueLimits
from p2pmsg.queue.rules.dispatch import FRAME_BYTES_MIN
from p2pmsg.queue.rules.in_flight import Deliveries, bits_of, runs_of
from p2pmsg.queue.rules.parts import PriorityQueues
from tests.queues import job_queue


def run(sequence, count):
    return JobRun(sequence, b"x" * count, list(range(1, count + 1)), 0)


@given(st.integers(0, 2**80))
def test_bits_and_runs_say_the_same(mask):
    bits = list(bits_of(mask))

    assert sum(1 << bit for bit in bits) == mask
    assert [bit for start, stop in runs_of(mask) for bit in range(start, stop)] == bits


ranges = st.tuples(st.integers(0, 70), st.integers(0, 30)).map(lambda r: (r[0], r[0] + r[1]))


@given(st.lists(st.integers(1, 12), max_size=6), st.lists(ranges, max_size=20))
def test_a_delivery_is_settled_once(counts, settled):
    assigned, naive, first = Deliveries(), set(), 3
    for count in counts:
        assigned.add(DeliveryBatch(first, run(0, count), None, 0, 0))
        naive.update(range(first, first + count))
        first += count + 2
    for start, stop in settled:
        found = {
            batch.first + bit for batch, bits in assigned.end(start, stop) for bit in bits_of(bits)
        }
        assert found == naive & set(range(start, stop))
        naive -= found
        assert assigned.count == len(naive)
        assert {n for low, high in assigned.open_ranges() for n in range(low, high)} == naive


entries = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5), st.booleans()), max_size=30)


@given(entries, st.lists(st.integers(1, 7), min_size=1, max_size=60))
def test_priority_queues_give_the_highest_priority_and_then_the_oldest(pushed, takes):
    queues, naive, sequence = PriorityQueues(), [], 0
    late = []
    for priority, count, is_late in pushed:
        if priority == 0 and not is_late:
            queues.append_run(run(sequence, count))
            naive += [(0, sequence + n) for n in range(count)]
            sequence += count
            continue
        job = QueuedJob(sequence, b"x", 0, priority=priority)
        naive.append((-priority, sequence))
        if is_late:
            late.append(job)
        else:
            queues.append(job)
        sequence += 1
    for job in late:
        queues.put_back(job)
    found = []
    for count in takes * 40:
        taken = queues.take(count, 10**6)
        if taken is None:
            break
        if isinstance(taken, JobRun):
            part = [(0, taken.sequence + n) for n in range(taken.count)]
            assert taken.values() == b"x" * taken.count
        else:
            part = [(-job.priority, job.sequence) for job in taken]
        assert 1 <= len(part) <= count
        found += part
    if queues.count == 0:
        assert sorted(found) == sorted(naive)
        by_run = [priority for priority, _ in found]
        assert by_run == sorted(by_run)
        alone = [entry for entry in found if entry[0] < 0]
        assert alone == sorted(alone)
    assert queues.count == len(naive) - len(found)


HOLD_NS, TIMEOUT_NS, DELAY_MAX_NS = 10_000_000, 2_000_000, 5_000_000
LIMITS = {
    "hold_timeout": 0.01,
    "ack_timeout": 0.002,
    "extend_max": 0.02,
    "reject_delay_max": 0.005,
    "deliveries_max": 1000,
    "unproven_max": 3,
    "retry_delay": 0.0,
    "retry_max": 0.0,
}
STRANGERS = (1, 2, 3)
asks = st.one_of(
    st.tuples(st.just("reject"), st.sampled_from(STRANGERS), st.integers(0, 2**80)),
    st.tuples(st.just("extend"), st.sampled_from(STRANGERS), st.integers(0, 2**80)),
    st.tuples(st.just("again"), st.sampled_from(STRANGERS), st.just(0)),
    st.tuples(st.just("ack others'"), st.sampled_from(STRANGERS), st.integers(0, 40)),
    st.tuples(st.just("wait"), st.just(0), st.integers(1, 2 * HOLD_NS)),
)


@given(st.lists(st.sampled_from((None, "a", "b")), min_size=1, max_size=12), st.lists(asks))
def test_whatever_strangers_ask_for_an_honest_worker_gets_every_job(keys, moves):
    """Strangers hold, reject, extend and connect again, but do not acknowledge what they have."""
    queue, now = job_queue(**LIMITS), 0
    for number in STRANGERS:
        queue.join(number, "stranger", 2, ceiling=2**31, now_ns=now)
    for sequence, key in enumerate(keys):
        queue.store.push(QueuedJob(sequence, b"x", 0, key=key), now_ns=now)

    def step(at):
        for worker in queue.workers.values():
            queue.heard(worker, now_ns=at)
        queue.handle_timer(now_ns=at)
        while (found := queue.take(now_ns=at)) is not None:
            worker, _ = found
            assert worker.assigned.count <= worker.limit(now_ns=at)

    for what, number, amount in moves:
        step(now)
        worker = queue.workers.get(number)
        first = worker.assigned.oldest() if worker is not None else None
        if what == "wait":
            now += amount
        elif what == "again":
            queue.join(number, "stranger", 2, ceiling=2**31, now_ns=now)
        elif what == "extend":
            queue.extend(worker, amount, now_ns=now)
        elif what == "reject" and first is not None:
            queue.reject(worker, first.first, "no", amount, now_ns=now)
        elif what == "ack others'":
            mine = {n for low, high in worker.assigned.open_ranges() for n in range(low, high)}
            if amount not in mine:
                queue.ack(worker, amount, amount + 1, now_ns=now)
    assert queue.store.done == 0
    honest = queue.join(9, "honest", 4, now_ns=now)
    end = now + DELAY_MAX_NS + 20_000_000 + 60 * (6 * HOLD_NS + TIMEOUT_NS)
    while queue.store.in_flight and now < end:
        step(now)
        for batch in honest.assigned.batches():
            queue.ack(honest, batch.first, batch.first + batch.count, now_ns=now)
        now += TIMEOUT_NS
    assert (queue.store.done, queue.store.in_flight) == (len(keys), 0)
    assert queue.store.bytes == 0


moves = st.one_of(
    st.tuples(st.just("push run"), st.integers(1, 6), st.just(0)),
    st.tuples(st.just("push"), st.sampled_from((None, None, "a", "b")), st.integers(0, 1)),
    st.tuples(st.just("take"), st.integers(1, 5), st.just(0)),
    st.tuples(
        st.sampled_from(("ack", "reject", "discard", "release", "held", "ended", "again")),
        st.integers(1, 3), st.tuples(st.integers(0, 9), st.integers(1, 4)),
    ),
    st.tuples(
        st.sampled_from((End.LOST, End.NOT_BEGUN, End.TAKEN, "cut")), st.integers(1, 3), st.just(0)
    ),
    st.tuples(st.just("retry"), st.just(0), st.just(0)),
    st.tuples(st.just("wait"), st.integers(1, 3 * HOLD_NS), st.just(0)),
)  # fmt: skip


def frame_bytes(batch):
    """Of the jobs, each fourth is larger than what some workers take."""
    jobs = [batch.job(index).sequence for index in range(batch.count)]
    return sum(FRAME_BYTES_MIN + 1 if sequence % 4 == 3 else 10 for sequence in jobs)


def hand_out(queue, now):
    """Take the next jobs as `PusherCore.pump` does; whether they went out."""
    while (found := queue.take(now_ns=now)) is not None:
        worker, batch = found
        if worker.takes(frame_bytes(batch)):
            return True
        queue.withdraw(worker, batch, frame_bytes(batch), now_ns=now)
    return False


@given(st.integers(0, 3), st.lists(moves, max_size=60))
def test_what_became_of_each_delivery_is_counted_once(restored, steps):
    """As `PusherStats` has it, whatever happens to workers, and after a restart."""
    queue, now, pushed = job_queue(**LIMITS, first_delivery=100), 0, restored
    for sequence in range(restored):
        queue.store.restore(QueuedJob(sequence, b"x", 0), None, now_ns=0)
    first = queue.join(1, "one", 4, now_ns=0)
    for sequence in range(restored):
        assert queue.adopt(first, sequence, sequence, now_ns=0)

    def apply(what, number, amount):
        nonlocal pushed
        worker = queue.workers.get(number)
        if what == "push run":
            queue.store.push_run(run(pushed, number))
            pushed += number
        elif what == "push":
            job = QueuedJob(pushed, b"x", 0, key=number, priority=amount)
            queue.store.push(job, now_ns=now)
            pushed += 1
        elif what == "take":
            for _ in range(number):
                hand_out(queue, now)
        elif what == "retry":
            queue.store.act_on_dead("retry", None, now_ns=now)
        elif what == "again":
            limit = 0 if number == 1 else FRAME_BYTES_MIN
            queue.join(number, "again", 4, frame_bytes_max=limit, now_ns=now)
        elif isinstance(what, End):
            queue.dismiss(number, what, "it went", now_ns=now)
        elif what == "cut":
            queue.cut(number, now_ns=now)
        elif worker is not None and (has := worker.assigned.open_ranges()):
            at, count = amount
            start = has[at % len(has)][0]
            if what == "ack":
                queue.ack(worker, start, start + count, now_ns=now)
            elif what == "release":
                queue.release(worker, [(start, start + count)], now_ns=now, answer=True)
            elif what == "held":
                queue.reconcile(worker, has[1:], now_ns=now)
            elif what == "ended":
                queue.reconcile(worker, has[:at], now_ns=now, ended=True)
            elif what == "reject":
                queue.reject(worker, start, "no", 0, now_ns=now)
            else:
                queue.discard(worker, start, "never", now_ns=now)

    for what, number, amount in steps:
        if what == "wait":
            now += number
            for worker in list(queue.workers.values())[1:]:
                queue.heard(worker, now_ns=now)
            queue.handle_timer(now_ns=now)
        else:
            apply(what, number, amount)
        store = queue.store
        ended = store.done + sum(store.ended.values())
        assert queue.delivered == ended + queue.assigned_count
        assert pushed + store.retried == store.done + store.died + store.in_flight


TIMEOUT_OF_A_JOB_NS = 100_000_000


@given(
    st.lists(st.booleans(), min_size=1, max_size=4),
    st.lists(st.sampled_from((None, "a", "b")), min_size=1, max_size=12),
)
def test_no_job_waits_for_workers_that_hang(hung, keys):
    """They begin one job, let it time out and begin no other; one more worker does what it gets."""
    limits = QueueLimits(deliveries_max=1000, retry_delay=0.0, retry_max=0.0)
    queue, now, done = JobQueue(limits), 0, []
    begun: dict[int, int] = {}  # worker: its delivery, at first
    workers = [queue.join(n, "w", 16, now_ns=0) for n in range(len(hung) + 1)]
    hanging = [worker for worker, hangs in zip(workers, hung, strict=False) if hangs]
    for sequence, key in enumerate(keys):
        queue.store.push(QueuedJob(sequence, b"x", 0, key=key), now_ns=0)
    end = (len(hanging) + 1) * (TIMEOUT_OF_A_JOB_NS + 1_000_000_000)
    while queue.store.in_flight and now < end:
        for worker in workers:
            queue.heard(worker, now_ns=now)
        queue.handle_timer(now_ns=now)
        while (found := queue.take(now_ns=now)) is not None:
            worker, batch = found
            if worker in hanging:
                begun.setdefault(worker.id, batch.first)
        for worker in hanging:
            first = begun.get(worker.id)
            is_held = first in [low for low, _ in worker.assigned.open_ranges()]
            if is_held and now >= TIMEOUT_OF_A_JOB_NS:
                queue.reject(worker, first, "late", None, timed_out=True, now_ns=now)
        for worker, count in queue.recalls(now_ns=now):
            numbers = [n for low, high in worker.assigned.open_ranges() for n in range(low, high)]
            left = [n for n in numbers if n != begun.get(worker.id)][-count:]
            queue.release(worker, [(n, n + 1) for n in left], now_ns=now, answer=True)
        for worker in workers:
            if worker not in hanging:
                for batch in worker.assigned.batches():
                    done += [batch.job(n).sequence for n in bits_of(batch.open)]
                    queue.ack(worker, batch.first, batch.stop, now_ns=now)
        now += 1_000_000
    assert sorted(done) == [*range(len(keys))]
    for key in ("a", "b"):
        of_key = [sequence for sequence in done if keys[sequence] == key]
        assert of_key == sorted(of_key)
