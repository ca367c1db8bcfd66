"""A queue, its workers and the network between them, simulated: a failing run is named by its seed.

The same cores as over sockets: `PusherCore` with `JobQueue`, `PullerLine`, the journal's records.
Connections are ordered and lose what is under way when they are cut, as TCP does.
"""

import heapq
import random
from collections import deque
from dataclasses import dataclass

from p2pmsg.queue.frames import Report
from p2pmsg.queue.job import GONE, HELD, Job
from p2pmsg.queue.journal import JournalState, change_record, head_record, push_record
from p2pmsg.queue.puller_line import Process, PullerLine
from p2pmsg.queue.pusher_core import PusherCore
from p2pmsg.wire import Kind, control_frame
from recovery.queue import BreakerConfig, Given, JobQueue, Lot, QueueConfig, QueuedJob
from tests.simulation.queue_history import History

MS = 1_000_000
WALL_NS = 1_700_000_000 * 10**9
SESSION = 77


@dataclass(frozen=True)
class Profile:
    """How bad the world is; probabilities are a job's, the others happen so often in a run."""

    jobs: int = 40
    workers: int = 3
    keys: int = 4
    prefetch: int = 8
    threads: int = 1
    slow: bool = False
    reject: float = 0.05
    crash: float = 0.0
    hang: float = 0.0
    discard: float = 0.0
    poison: float = 0.0
    mischief: float = 0.0
    cuts: int = 0
    stalls: int = 0
    stops: int = 0
    leaves: int = 0
    pusher_crashes: int = 0


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
        self.config = QueueConfig(
            ack_timeout_ms=1000, grace_ms=200, deliveries_max=4, retry_delay_ms=5,
            retry_ceiling_ms=50, dedup_window_ms=60_000,
            breaker=BreakerConfig(failures_max=30, pause_ms=50, pause_ceiling_ms=200),
        )  # fmt: skip
        self.healing = False
        self.pusher = Pusher(self)
        self.workers = [WorkerNode(self, n) for n in range(profile.workers)]
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
            if self.pusher.finished and not self.pusher.queue.in_hands:
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
        for what in ("cuts", "stalls", "stops", "leaves", "pusher_crashes"):
            for _ in range(getattr(profile, what)):
                at_ms = rng.uniform(50, busy_ms * 1.5)
                if what == "pusher_crashes":
                    self.after(at_ms, self.pusher.crash)
                else:
                    self.after(at_ms, getattr(rng.choice(self.workers), what))
        self.after(4000, self._heal)

    def _heal(self):
        self.healing = True


class Pusher:
    """The pusher's process, and its journal."""

    def __init__(self, world):
        self.world = world
        self.journal = [head_record(SESSION, 0)]
        self.sequence = 0
        self.pushes_ended = False
        self.deliveries = 1
        self.connections = {}
        self._timer_ns = None
        self.generation = 0
        self._start(JournalState())

    @property
    def finished(self):
        return self.pushes_ended and self.alive and self.queue.store.in_flight == 0

    def state(self):
        store = self.queue.store
        return {
            "in_flight": store.in_flight, "lanes": store.lanes.count, "delayed": store.delayed,
            "gates": store.gates.waiting, "suspects": store.suspects, "hands": self.queue.in_hands,
            "workers": [(w.id, w.hand.count, w.cut_ns) for w in self.queue.workers.values()],
        }  # fmt: skip

    def _start(self, state):
        self.alive = True
        world = self.world
        self.queue = JobQueue(
            world.config, wall_offset_ns=WALL_NS, first_delivery=self.deliveries, records=True
        )
        self.core = PusherCore(
            self.queue, name="pusher", session=SESSION, incarnation=self.deliveries,
            job_timeout_ms=400, is_gone=self._is_gone,
        )  # fmt: skip
        for job, holder in state.jobs():
            self.queue.store.restore(job, holder, now_ns=world.now)
        holders = {holder for holder, _ in state.holders.values()}
        self.core.expect({w: state.processes[w] for w in holders})
        for dead in state.dead.values():
            self.queue.store.dead.add(dead)
        for name, (sequence, _) in state.seen.items():
            self.queue.store.dedup.add(name, sequence, now_ns=world.now)

    def _is_gone(self, host, pid, started):
        # Half of the machines are not this one.
        return host == "here" and pid not in self.world.alive_processes

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
                self.journal.append(push_record(job))
                world.history.pushed(sequence + n, None)
            store.push_lot(Lot(sequence, b"".join(payloads), ends, pushed_ns))
            self.sequence += count
        else:
            message_id = None
            if rng.random() < 0.1:
                message_id = f"m{number % 5}"
                if store.dedup.find(message_id, now_ns=world.now) is not None:
                    return
            due_ns = pushed_ns + rng.randrange(100) * MS if rng.random() < 0.1 else 0
            job = QueuedJob(
                sequence, _value(sequence), pushed_ns, key, rng.choice((0, 0, 9)), message_id,
                None, due_ns,
            )  # fmt: skip
            self.journal.append(push_record(job))
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
            self.journal.append(change_record(change, process or ("", 0, 0)))
        changes.clear()
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
        self.deliveries = self.queue.next_delivery + 1000
        for connection in list(self.connections.values()):
            connection.cut(tell_pusher=False)
        self.connections.clear()
        self.world.after(self.world.rng.uniform(20, 300), self._restart)

    def _restart(self):
        state = JournalState()
        for record in self.journal:
            state.apply(record)
        self._start(state)
        self.service()
        for node in self.world.workers:
            node.pusher_is_back()

    def check(self):
        """Nothing is left over, in memory and in the journal."""
        state = JournalState()
        for record in self.journal:
            state.apply(record)
        store = self.queue.store
        assert store.in_flight == 0
        assert not state.open
        assert store.bytes == 0, store.bytes
        assert not len(store.gates)
        assert not store.gates.waiting
        assert state.dead.keys() == {dead.job.sequence for dead in store.dead.list()}
        self.world.history.check(set(state.dead), self.sequence)


class Connection:
    """One TCP connection between a worker and the pusher."""

    def __init__(self, world, node):
        world.identities += 1
        self.identity = b"%d" % world.identities
        self.world = world
        self.node = node
        self.open = True
        self.due = [0, 0]
        self.stalled_ns = 0
        self.delay_ms = world.rng.choice((0.2, 2.0, 20.0))
        world.pusher.connections[self.identity] = self

    def up(self, frame):
        self._send(0, self.world.pusher.receive, self, frame)

    def down(self, frame):
        self._send(1, self.node.receive, self, frame)

    def _send(self, way, call, *arguments):
        world = self.world
        due = world.now + round(world.rng.uniform(0.05, self.delay_ms) * MS)
        self.due[way] = max(due, self.due[way] + 1, self.stalled_ns)
        if self.open:
            world.at(self.due[way], call, *arguments)

    def cut(self, tell_pusher=True):
        if not self.open:
            return
        self.open = False
        world = self.world
        if tell_pusher:
            pusher = world.pusher
            world.after(
                world.rng.uniform(0.1, 50), pusher.unreachable, pusher.generation, self.identity
            )
            pusher.connections.pop(self.identity, None)
        self.node.lost_connection(self)


class WorkerNode:
    """A worker's process: it dies, and is started again under another id."""

    def __init__(self, world, number):
        self.world = world
        self.number = number
        self.line = None
        self.connection = None
        self.stopped = False
        self.inbox = deque()
        self.pipe = deque()
        self.life = 0
        self.busy = {}
        self.waiting_for_pusher = False
        self._timer_ns = None

    def start(self):
        world = self.world
        self.life += 1
        self.pid = self.number * 1000 + self.life
        world.alive_processes.add(self.pid)
        host = "here" if self.number % 2 else ""
        self.line = PullerLine(
            self.pid, f"w{self.pid}", world.profile.prefetch, Process(host, self.pid, 1),
            now_ns=world.now,
        )  # fmt: skip
        self.busy = dict.fromkeys(range(world.profile.threads))
        self.pipe.clear()
        self.inbox.clear()
        self.stopped = False
        self._timer_ns = None
        self._connect()

    def _connect(self):
        if self.line is None or (self.connection is not None and self.connection.open):
            return
        if not self.world.pusher.alive:
            self.waiting_for_pusher = True
            return
        self.connection = Connection(self.world, self)
        while self.pipe:
            self.connection.up(self.pipe.popleft())
        if not self.stopped:
            self.service()

    def pusher_is_back(self):
        if self.waiting_for_pusher:
            self.waiting_for_pusher = False
            self.world.after(self.world.rng.uniform(1, 300), self._connect)

    def lost_connection(self, connection):
        if connection is self.connection and self.line is not None:
            self.world.after(self.world.rng.uniform(50, 300), self._connect)

    # ------------------------------------------------------------------------------- protocol

    def receive(self, connection, frame):
        # What was received before a cut is in the process's hands, or waits until it goes on.
        if self.line is None or not connection.open or connection is not self.connection:
            return
        if self.stopped:
            self.inbox.append(frame)
            return
        self.line.receive(frame, now_ns=self.world.now)
        self.service()

    def service(self):
        line, now = self.line, self.world.now
        line.handle_timer(now_ns=now)
        self._look_for_gone()
        for thread, job in self.busy.items():
            if job is None:
                self._begin(thread)
                if self.line is None or self.line is not line:
                    return
        line.flush(now_ns=now)
        held = len(line.ready) + len(line.open)
        assert held <= line.prefetch, (held, line.prefetch)
        while line.outbox:
            frame = line.outbox.popleft()
            if self.connection is not None and self.connection.open:
                self.connection.up(frame)
            else:
                self.pipe.append(frame)
        due_ns = line.next_deadline_ns()
        if self._timer_ns is None or due_ns < self._timer_ns:
            self._timer_ns = max(due_ns, now + 1)
            self.world.at(self._timer_ns, self._timer, self._timer_ns, self.life)

    def _timer(self, due_ns, life):
        if life == self.life and self._timer_ns == due_ns and self.line is not None:
            self._timer_ns = None
            if not self.stopped:
                self.service()

    def end_of_run(self):
        """A stopped worker had its jobs as long as its lease lasted."""
        if self.line is not None:
            for job in self.busy.values():
                if job is not None:
                    self.world.history.gone(self.pid, job, self._hold_end())

    def _look_for_gone(self):
        for job in self.busy.values():
            if job is not None and job._state == GONE:
                self.world.history.gone(self.pid, job, self._hold_end())

    def _hold_end(self):
        return min(self.world.now, self.line._lease_ns)

    # ----------------------------------------------------------------------------- application

    def _begin(self, thread):
        world, rng, profile = self.world, self.world.rng, self.world.profile
        job = self.line.take(now_ns=world.now)
        if job is None:
            return
        world.history.began(self.pid, job, world.now)
        self.busy[thread] = job
        bad = not world.healing
        if job.sequence in world.poison or (bad and rng.random() < profile.crash):
            return world.after(rng.uniform(0, 3), self._crash, self.life)
        if bad and rng.random() < profile.hang:
            ms = rng.uniform(300, 2500)
        else:
            ms = rng.expovariate(0.25) * (10 if profile.slow and self.number == 0 else 1)
        world.after(ms, self._end, self.life, thread, job)
        if rng.random() < profile.mischief:
            self._mischief(job)

    def _end(self, life, thread, job):
        world, rng, profile = self.world, self.world.rng, self.world.profile
        if life != self.life or self.line is None:
            return
        if self.stopped:
            world.after(20, self._end, life, thread, job)
            return
        self.line.handle_timer(now_ns=world.now)
        self._look_for_gone()
        self.busy[thread] = None
        roll = rng.random()
        if roll < profile.reject and not world.healing:
            how, done = "reject", self.line.reject(job, "no", rng.choice((None, 0.0, 0.01)))
        elif roll < profile.reject + profile.discard:
            how, done = "discard", self.line.discard(job, "never")
        else:
            how, done = "ack", self.line.ack(job)
        world.history.ended(self.pid, job, how, done, self._hold_end())
        if rng.random() < profile.mischief:
            self.line.ack(job)
        self.service()

    def _mischief(self, job):
        """Say what is not true: settle what is not ours, or say what nobody understands."""
        rng = self.world.rng
        target = rng.choice(self.world.workers)
        if target.connection is None or not target.connection.open:
            return
        number = rng.randrange(4)
        if number == 3:
            others = target.line.open if target.line is not None and target is not self else ()
            for delivery in others:
                self.line._acked.append(Job(0, delivery, job.sequence, None, None))
            return
        if number == 0:
            frame = rng.randbytes(rng.randrange(80))
        elif number == 1:
            report = Report([(0, 2**62), (job.delivery, job.delivery + 1)])
            frame = control_frame(Kind.QUEUE_REPORT, 4711, report, sequence=1)
        else:
            frame = control_frame(Kind.QUEUE_HELLO, self.pid, [1, 2, 3])
        Connection(self.world, _Stranger()).up(frame)

    # --------------------------------------------------------------------------------- trouble

    def _crash(self, life):
        if life == self.life and self.line is not None:
            self._end_process()
            if self.connection is not None:
                self.connection.cut()

    def _end_process(self):
        world = self.world
        for job in self.busy.values():
            if job is not None and job._state == HELD:
                world.history.died(self.pid, job, self._hold_end())
        self.line = None
        self.life += 1
        world.alive_processes.discard(self.pid)
        world.after(world.rng.uniform(20, 400), self.start)

    def cuts(self):
        if self.line is not None and self.connection is not None:
            self.connection.cut()

    def stalls(self):
        if self.connection is not None:
            ms = self.world.rng.choice((100, 500, 1500, 3000))
            self.connection.stalled_ns = self.world.now + ms * MS

    def stops(self):
        if self.line is not None:
            self.stopped = True
            self.world.after(self.world.rng.choice((100, 500, 1500, 3000)), self._go_on, self.life)

    def _go_on(self, life):
        if life != self.life or self.line is None:
            return
        self.stopped = False
        while self.inbox:
            self.line.receive(self.inbox.popleft(), now_ns=self.world.now)
        self.service()

    def leaves(self):
        if self.line is None or self.stopped:
            return
        for job in self.busy.values():
            if job is not None and job._state == HELD:
                self.world.history.died(self.pid, job, self._hold_end())
        self.line.leave(now_ns=self.world.now)
        connection = self.connection
        while self.line.outbox and connection is not None:
            connection.up(self.line.outbox.popleft())
        self._end_process()
        if connection is not None:
            self.world.after(50, connection.cut)


class _Stranger:
    def receive(self, connection, frame):
        pass

    def lost_connection(self, connection):
        pass


def _value(sequence):
    return b"\xce" + sequence.to_bytes(4, "big")
