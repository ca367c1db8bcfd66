"""The processes of a simulated queue: workers, honest and hostile, and their puller's side."""

from collections import deque

from p2pmsg.queue.frames import Report
from p2pmsg.queue.job import Job
from p2pmsg.queue.puller_core import Process, PullerCore, PullerIdentity
from p2pmsg.wire import Kind, control_frame

MS = 1_000_000
_NO_SEQUENCE = 2**62
"""What a liar says that it did: what it says it has after a pusher's restart has to be believed."""


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

    def cut(self, inform_pusher=True):
        if not self.open:
            return
        self.open = False
        world = self.world
        if inform_pusher:
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
        self.incarnation = 0
        self.busy = {}
        self.waiting_for_pusher = False
        self._timer_ns = None

    def start(self):
        world = self.world
        self.incarnation += 1
        self.pid = self.number * 1000 + self.incarnation
        world.alive_processes.add(self.pid)
        host = f"here {world.pusher.disk.boots}" if self.number % 2 else ""
        identity = PullerIdentity(
            self.pid, f"w{self.pid}", Process(host, self.pid, 1), world.profile.prefetch,
            max(world.profile.prefetch, world.profile.prefetch_ceiling),
        )  # fmt: skip
        self.line = PullerCore(identity, now_ns=world.now)
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
        self._check_gone()
        for thread, job in self.busy.items():
            if job is None:
                self._begin(thread)
                if self.line is None or self.line is not line:
                    return
        line.flush(now_ns=now)
        held = line.ready_count + len(line.open)
        assert held <= line.identity.ceiling, (held, line.identity.ceiling)
        history = self.world.history
        history.most_held = max(history.most_held, held)
        while line.outbox:
            frame = line.outbox.popleft()
            if self.connection is not None and self.connection.open:
                self.connection.up(frame)
            else:
                self.pipe.append(frame)
        due_ns = line.next_deadline_ns()
        if self._timer_ns is None or due_ns < self._timer_ns:
            self._timer_ns = max(due_ns, now + 1)
            self.world.at(self._timer_ns, self._timer, self._timer_ns, self.incarnation)

    def _timer(self, due_ns, incarnation):
        if incarnation == self.incarnation and self._timer_ns == due_ns and self.line is not None:
            self._timer_ns = None
            if not self.stopped:
                self.service()

    def end_of_run(self):
        """A stopped worker had its jobs as long as its lease lasted."""
        if self.line is not None:
            for job in self.busy.values():
                if job is not None:
                    self.world.history.ended(self.pid, job, "gone", self._hold_end())

    def _check_gone(self):
        for job in self.busy.values():
            if job is not None and job.state == "gone":
                self.world.history.ended(self.pid, job, "gone", self._hold_end())

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
            return world.after(rng.uniform(0, 3), self._crash, self.incarnation)
        if bad and rng.random() < profile.hang:
            ms = rng.uniform(300, 2500)
        else:
            ms = rng.expovariate(0.25) * (10 if profile.slow and self.number == 0 else 1)
        world.after(ms, self._end, self.incarnation, thread, job)
        if rng.random() < profile.mischief:
            self._mischief(job)

    def _end(self, incarnation, thread, job):
        world, rng, profile = self.world, self.world.rng, self.world.profile
        if incarnation != self.incarnation or self.line is None:
            return
        if self.stopped:
            world.after(20, self._end, incarnation, thread, job)
            return
        self.line.handle_timer(now_ns=world.now)
        self._check_gone()
        self.busy[thread] = None
        roll = rng.random()
        if roll < profile.reject and not world.healing:
            how = "reject"
            self.line.reject(job, "no", rng.choice((None, 0.0, 0.01)))
        elif roll < profile.reject + profile.discard:
            how = "discard"
            self.line.discard(job, "never")
        else:
            how = "ack"
            job.ack()
        world.history.ended(self.pid, job, how, self._hold_end())
        if rng.random() < profile.mischief:
            self.line.ack(job)
            if job.state == "gone":  # that is believed
                world.history.acked.add(job.sequence)
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
                self.line.reports.acked.append(Job(0, delivery, _NO_SEQUENCE, None, None))
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

    def _crash(self, incarnation):
        if incarnation == self.incarnation and self.line is not None:
            self._end_process()
            if self.connection is not None:
                self.connection.cut()

    def _end_process(self):
        world = self.world
        for job in self.busy.values():
            if job is not None and job.state == "held":
                world.history.ended(self.pid, job, "died", self._hold_end())
        self.line = None
        self.incarnation += 1
        world.alive_processes.discard(self.pid)
        world.after(world.rng.uniform(20, 400), self.start)

    def end_with_machine(self):
        """The pusher's machine ended, and this is on it, as every other worker is."""
        if self.line is not None and self.number % 2:
            self._end_process()
            if self.connection is not None:
                self.connection.cut()

    def cuts(self):
        if self.line is not None and self.connection is not None:
            self.connection.cut()

    def stalls(self):
        if self.connection is not None:
            ms = self.world.rng.choice((100, 500, 1500, 3000))
            self.connection.stalled_ns = self.world.now + ms * MS
            self._miss_heartbeats(ms)

    def stops(self):
        if self.line is not None:
            self.stopped = True
            ms = self.world.rng.choice((100, 500, 1500, 3000))
            self.world.after(ms, self._go_on, self.incarnation)
            self._miss_heartbeats(ms)

    def _miss_heartbeats(self, ms):
        """Have ZeroMQ end the connection at the pusher where it answers none for so long."""
        timeout_ms = 1.1e3 * self.world.limits.ack_timeout
        if ms > timeout_ms and self.connection is not None:
            self.world.after(timeout_ms, self.connection.cut)

    def _go_on(self, incarnation):
        if incarnation != self.incarnation or self.line is None:
            return
        self.stopped = False
        while self.inbox:
            self.line.receive(self.inbox.popleft(), now_ns=self.world.now)
        self.service()

    def leaves(self):
        if self.line is None or self.stopped:
            return
        for job in self.busy.values():
            if job is not None and job.state == "held":
                self.world.history.ended(self.pid, job, "died", self._hold_end())
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


KINDS = ("holder", "rejecter", "extender", "flapper", "hoarder")
_CENTURIES_S = 1e10


class HostileNode(WorkerNode):
    """Takes what it gets and never does it; each of a kind.

    `holder` answers nothing, `rejecter` wants each job to wait for centuries, `extender` asks for
    centuries, `flapper` holds and reconnects all the time, `hoarder` claims space for a million.
    """

    def __init__(self, world, number):
        super().__init__(world, number)
        self.kind = KINDS[number % len(KINDS)]

    def start(self):
        super().start()
        if self.kind == "hoarder":
            self.line.identity = self.line.identity._replace(prefetch=1_000_000, ceiling=1_000_000)
        if self.kind == "flapper":
            self.world.after(self.world.rng.uniform(30, 300), self._flap, self.incarnation)

    def _flap(self, incarnation):
        if incarnation == self.incarnation and self.line is not None:
            self.cuts()
            self.world.after(self.world.rng.uniform(30, 300), self._flap, incarnation)

    def service(self):
        # It does not time out what it holds, as an honest line would.
        self.line._time_out = lambda now_ns: None
        super().service()

    def _begin(self, thread):
        line, now = self.line, self.world.now
        while (job := line.take(now_ns=now)) is not None:
            self.world.history.hostile(job)
            if self.kind == "rejecter":
                line.reject(job, "x" * 4096, _CENTURIES_S)
            elif self.kind == "extender":
                line.extend(job, _CENTURIES_S)
