"""A queue, its workers, disk and network, simulated: a failing run is named by its seed.

The same cores as over sockets: `PusherCore` with `JobQueue`, `PullerCore`, the journal's records.
Connections are ordered and lose what is under way when they are cut, as TCP does.
"""

import heapq
import itertools
import random
from collections import defaultdict
from dataclasses import dataclass

from p2pmsg.queue.journal.records import JournalState, change_record, push_record, run_record
from p2pmsg.queue.pusher_core import PusherCore
from p2pmsg.queue.rules import Given, JobQueue, JobRun, QueuedJob, QueueLimits
from tests.simulation.queue_nodes import HostileNode, WorkerNode

MS = 1_000_000
WALL_NS = 1_700_000_000 * 10**9


@dataclass(frozen=True)
class Profile:
    """How bad the world is; probabilities are a job's, the others happen so often in a run."""

    jobs: int = 40
    workers: int = 3
    keys: int = 4
    prefetch: int = 8
    prefetch_ceiling: int = 0
    threads: int = 1
    slow: bool = False
    reject: float = 0.05
    crash: float = 0.0
    hang: float = 0.0
    discard: float = 0.0
    poison: float = 0.0
    mischief: float = 0.0
    hostile: int = 0
    cuts: int = 0
    stalls: int = 0
    stops: int = 0
    leaves: int = 0
    pusher_crashes: int = 0
    system_crashes: int = 0
    shortenings: int = 0
    synced: bool = False


class World:
    """One run."""

    def __init__(self, profile, seed):
        self.profile = profile
        self.rng = random.Random(seed)
        self.now = 0
        self.history = History()
        self._events = []
        self._count = 0
        self.identities = 0
        self.alive_processes = set()
        self.limits = QueueLimits(
            ack_timeout=1.0, deliveries_max=4, retry_delay=0.005, retry_max=0.05, dedup_window=60.0,
            grace=0.2, hold_timeout=0.6, extend_max=0.5, reject_delay_max=0.1, ahead=0.1,
            failures_max=30, pause=0.05, pause_max=0.2,
        )  # fmt: skip
        self.healing = False
        self.pusher = Pusher(self)
        self.workers = [WorkerNode(self, n) for n in range(profile.workers)]
        first = len(self.workers) + self.rng.randrange(100) if profile.hostile else 0
        self.workers += [HostileNode(self, first + n) for n in range(profile.hostile)]
        self.poison = set()
        self._plan()

    def at(self, time_ns, call, *arguments):
        self._count += 1
        heapq.heappush(self._events, (max(time_ns, self.now), self._count, call, arguments))

    def after(self, ms, call, *arguments):
        self.at(self.now + round(ms * MS), call, *arguments)

    def run(self, limit_s=120):
        """Run until every job is settled; return the history."""
        while self._events:
            time_ns, _, call, arguments = heapq.heappop(self._events)
            self.now = time_ns
            call(*arguments)
            if self.pusher.finished and not self.pusher.queue.assigned_count:
                break
            assert self.now < limit_s * 10**9, f"not done after {limit_s} s: {self.pusher.state()}"
        for node in self.workers:
            node.end_of_run()
        self.pusher.check()
        return self.history

    def _plan(self):
        rng, profile = self.rng, self.profile
        busy_ms = 600
        times = sorted(rng.uniform(0, busy_ms) for _ in range(profile.jobs))
        for number, ms in enumerate(times):
            self.at(round(ms * MS), self.pusher.push, number)
        self.at(busy_ms * MS + 1, self.pusher.end_pushes)
        for node in self.workers:
            self.after(rng.uniform(0, 100), node.start)
        for what in ("cuts", "stalls", "stops", "leaves", "pusher_crashes", "system_crashes",
                     "shortenings"):  # fmt: skip
            for _ in range(getattr(profile, what)):
                at_ms = rng.uniform(50, busy_ms * 1.5)
                if what == "pusher_crashes":
                    self.after(at_ms, self.pusher.crash)
                elif what == "system_crashes":
                    self.after(at_ms, self.pusher.system_crash)
                elif what == "shortenings":
                    self.after(at_ms, self.pusher.shorten)
                else:
                    self.after(at_ms, getattr(rng.choice(self.workers), what))
        self.after(4000, self._resync)

    def _resync(self):
        self.healing = True


class Pusher:
    """The pusher's process, and its journal."""

    def __init__(self, world):
        self.world = world
        self.disk = Disk(world.rng, is_synced=world.profile.synced)
        self.pushes_ended = False
        self.connections = {}
        self._timer_ns = None
        self.generation = 0
        self._start()
        self._sync()

    @property
    def finished(self):
        return self.pushes_ended and self.alive and self.queue.store.in_flight == 0

    def state(self):
        store = self.queue.store
        return {
            "in_flight": store.in_flight, "waiting": store.priorities.count,
            "delayed": store.delayed,
            "waiting for their key": store.key_order.waiting,
            "to go alone": store.alone, "assigned": self.queue.assigned_count,
            "workers": [(w.id, w.assigned.count, w.state) for w in self.queue.workers.values()],
        }  # fmt: skip

    def _start(self):
        self.alive = True
        world = self.world
        state = self.disk.open()
        self.sequence = state.next_sequence
        first_delivery = state.deliveries + 1
        self.queue = JobQueue(
            world.limits,
            wall_offset_ns=WALL_NS,
            first_delivery=first_delivery,
            records=True,
        )
        self.core = PusherCore(
            self.queue, name="pusher", session=state.session, incarnation=first_delivery,
            job_timeout=0.4, is_gone=self._is_gone,
        )  # fmt: skip
        self.core.restore(state, now_ns=world.now)

    def _sync(self):
        if self.alive:
            self.disk.sync()
        if not self.finished:
            self.world.after(100, self._sync)

    def _is_gone(self, host, pid, started):
        # Half of the machines are not this one.
        return host == f"here {self.disk.boots}" and pid not in self.world.alive_processes

    def push(self, number):
        if not self.alive:
            self.world.after(20, self.push, number)
            return
        world, rng, store = self.world, self.world.rng, self.queue.store
        kind = rng.random()
        sequence = self.sequence
        pushed_ns = WALL_NS + world.now
        key = f"k{rng.randrange(world.profile.keys)}" if kind < 0.6 else None
        if rng.random() < world.profile.poison:
            world.poison.add(sequence)
        if kind >= 0.8:
            count = rng.randrange(1, 5)
            payloads = [_value(sequence + n) for n in range(count)]
            ends = [sum(map(len, payloads[: n + 1])) for n in range(count)]
            for n, payload in enumerate(payloads):
                job = QueuedJob(sequence + n, payload, pushed_ns)
                self.disk.append(push_record(job), sequence + n)
                world.history.pushed(sequence + n, None)
            store.push_run(JobRun(sequence, b"".join(payloads), ends, pushed_ns))
            self.sequence += count
        else:
            message_id = None
            if rng.random() < 0.1:
                message_id = f"m{number % 5}"
                if store.dedup.find(message_id, now_ns=world.now) is not None:
                    return
            delay_ns = rng.randrange(100) * MS if rng.random() < 0.1 else 0
            job = QueuedJob(
                sequence, _value(sequence), pushed_ns, key, rng.choice((0, 0, 9)), message_id,
            )  # fmt: skip
            if delay_ns:
                job.due_ns, job.ready_ns = pushed_ns + delay_ns, world.now + delay_ns
            self.disk.append(push_record(job), sequence)
            world.history.pushed(sequence, key)
            store.push(job, now_ns=world.now)
            self.sequence += 1
        self.service()

    def end_pushes(self):
        self.pushes_ended = True

    def receive(self, connection, frame):
        if self.alive and connection.open:
            self.core.receive(connection.identity, frame, now_ns=self.world.now)
            self.service()

    def unreachable(self, generation, identity):
        if self.alive and generation == self.generation:
            self.core.unreachable(identity, now_ns=self.world.now)
            self.service()

    def service(self):
        now = self.world.now
        self.core.handle_timer(now_ns=now)
        changes = self.queue.store.changes
        for change in changes:
            process = self.core.process_of(change.worker) if isinstance(change, Given) else None
            self.disk.append(change_record(change, process or ("", 0, 0)))
        changes.clear()
        self.disk.allow_deliveries(self.queue.next_delivery)
        while self.core.outbox:
            identity, frame = self.core.outbox.popleft()
            connection = self.connections.get(identity)
            if connection is not None:
                connection.down(frame)
        due_ns = self.core.next_deadline_ns(now_ns=now)
        if due_ns is not None and (self._timer_ns is None or due_ns < self._timer_ns):
            self._timer_ns = max(due_ns, now + 1)
            self.world.at(self._timer_ns, self._timer, self._timer_ns, self.generation)

    def _timer(self, due_ns, generation):
        if generation == self.generation and self.alive and self._timer_ns == due_ns:
            self._timer_ns = None
            self.service()

    def crash(self):
        if not self.alive:
            return
        self.alive = False
        self.generation += 1
        self._timer_ns = None
        for connection in list(self.connections.values()):
            connection.cut(inform_pusher=False)
        self.connections.clear()
        self.world.after(self.world.rng.uniform(20, 300), self._restart)

    def system_crash(self):
        """End the pusher's machine, and the workers on it; what was not synced is gone."""
        if self.alive:
            self._crash_and_lose(self.disk.crash)
            for node in self.world.workers:
                node.end_with_machine()

    def shorten(self):
        """End the pusher's process, and lose the end of its log while it is away."""
        if self.alive:
            self._crash_and_lose(self.disk.shorten)

    def _crash_and_lose(self, damage):
        self.crash()
        for lost in damage():
            self.world.history.lost(lost)
        self.world.history.rewound(self.queue.next_delivery)

    def _restart(self):
        self._start()
        self.service()
        for node in self.world.workers:
            node.pusher_is_back()

    def check(self):
        """Nothing is left over, in memory and in the journal."""
        state = JournalState()
        for record in self.disk.records:
            state.apply(record)
        store = self.queue.store
        assert store.in_flight == 0
        assert not state.open
        assert store.bytes == 0, store.bytes
        assert not len(store.key_order)
        assert not store.key_order.waiting
        assert state.dead.keys() == {dead.job.sequence for dead in store.dead.list()}
        self.world.history.check(set(state.dead))


def _value(sequence):
    return b"\xce" + sequence.to_bytes(4, "big")


SESSION = 77
SKIPPED = 1000
"""Of numbers after a crash of the system: more than are used in between."""


class Disk:
    """A journal in memory, and how much of it is on the disk; with `is_synced`, always all."""

    def __init__(self, rng, *, is_synced):
        self.records = []
        self.boots = 0
        self._rng = rng
        self._is_synced = is_synced
        self._synced = 0
        self._pushes = {}
        self._is_incomplete = False
        self._next_sequence = self._next_delivery = 0

    def open(self):
        """Begin another run; return what the records say."""
        state = JournalState()
        for record in self.records:
            state.apply(record)
        if self._is_incomplete:  # the segment log says what was used at most
            state.is_incomplete, self._is_incomplete = True, False
            state.next_sequence = max(state.next_sequence, self._next_sequence + SKIPPED)
        state.deliveries = max(state.deliveries, self._next_delivery)  # which are reserved
        state.session = SESSION
        self._next_sequence, self._next_delivery = state.next_sequence, state.deliveries
        self._write(run_record(state.deliveries, []))
        self.sync()
        return state

    def append(self, record, pushed=None):
        """Write a record; `pushed`: the sequence, where it is a push."""
        self._write(record)
        if pushed is not None:
            self._next_sequence = pushed + 1
            self._pushes[len(self.records)] = pushed

    def allow_deliveries(self, stop):
        self._next_delivery = stop

    def sync(self):
        self._synced = len(self.records)

    def crash(self):
        """Lose what was not synced, or the end of it; return the sequences pushed in it."""
        self.boots += 1
        self._is_incomplete = not self._is_synced
        return self._cut(self._rng.randint(self._synced, len(self.records)))

    def shorten(self):
        """Lose the end although it was written; return the sequences pushed in it."""
        self._is_incomplete = True
        return self._cut(self._rng.randint(max(0, len(self.records) - 20), len(self.records)))

    def _cut(self, kept):
        del self.records[kept:]
        lost = [sequence for at, sequence in self._pushes.items() if at > kept]
        self._pushes = {at: sequence for at, sequence in self._pushes.items() if at <= kept}
        self.sync()
        return lost

    def _write(self, record):
        self.records.append(record)
        if self._is_synced:
            self.sync()


class History:
    """Pushes, and for each job each time that a worker had it in flight."""

    def __init__(self):
        self.keys = {}
        self.holds = []  # [sequence, worker, begin, end or None, how, delivery]
        self._open = {}
        self.acked = set()
        self._lost = set()
        self._rewound = []
        self.hostile_count = self.most_held = 0

    def pushed(self, sequence, key):
        assert sequence not in self.keys
        self.keys[sequence] = key

    def lost(self, sequence):
        """Note that a system crash took a push along; its worker may do it all the same."""
        self._lost.add(sequence)

    def rewound(self, delivery):
        """Note that what was delivered before this number may be done again, in order."""
        self._rewound.append(delivery)

    def hostile(self, job):
        """Note that a worker has a job that means not to do it."""
        assert job.value == job.sequence
        self.hostile_count += 1

    def began(self, worker, job, now):
        assert job.value == job.sequence
        assert job.key == self.keys[job.sequence]
        hold = [job.sequence, worker, now, None, None, job.delivery]
        assert (worker, job.delivery) not in self._open
        self._open[worker, job.delivery] = hold
        self.holds.append(hold)

    def ended(self, worker, job, how, now):
        hold = self._open.pop((worker, job.delivery), None)
        if hold is not None:
            hold[3], hold[4] = now, how
        if how == "ack":  # late or not
            self.acked.add(job.sequence)

    def check(self, dead):
        """Raise where a job is forgotten, or where jobs of one key overlap or overtake."""
        forgotten = self.keys.keys() - self.acked - dead - self._lost
        assert not forgotten, f"forgotten: {sorted(forgotten)}"
        by_key = defaultdict(list)
        for hold in self.holds:
            if self.keys[hold[0]] is not None:
                by_key[self.keys[hold[0]]].append(hold)
        for key, holds in by_key.items():
            holds.sort(key=lambda hold: (hold[2], hold[0]))
            for start, stop in itertools.pairwise((0, *self._rewound, float("inf"))):
                sequences = [hold[0] for hold in holds if start <= hold[5] < stop]
                assert sequences == sorted(sequences), f"{key} out of order: {holds}"
            for before, after in itertools.pairwise(holds):
                end = before[3]
                assert end is not None, f"{key}: {before} was never ended"
                assert end <= after[2], f"{key} with two workers: {before} and {after}"
