"""A subscriber in the simulator: the real peer, and an application that checks what it gets."""

from collections import Counter
from functools import partial
from inspect import CO_GENERATOR
from pathlib import Path
from random import Random

import p2pmsg
import transports
from p2pmsg import Subscriber
from p2pmsg.message import Message
from p2pmsg.peers.subscriber import MANY, Settings, SubscriberPeer
from p2pmsg.subscriber.conflation import batch_of
from p2pmsg.subscriber.typed import UNTYPED
from p2pmsg.toolkit import GapPolicy, matches, parse_start
from recovery import Loss, Rewound
from recovery.checks import to_ns
from recovery.nack import GAPS_MAX
from tests.simulation.simulator.cursor import SimulatedCursor
from tests.simulation.simulator.oracle import Oracle
from tests.simulation.simulator.process import SimulatedProcess
from tests.simulation.simulator.publisher import SimulatedPublisher
from tests.unit.p2pmsg.interrupts import interrupt_at

_CHECK_EVERY = 64
"""After how many turns the ledgers are compared with what the application saw."""
_INTERRUPTS = 0.005
"""Part of the application's calls that are interrupted."""
_LOOK_AGAIN_S = 0.0005
_COMMITS_PER_S = 50.0
_FRAME_BYTES_MAX = 64 * 1024
_FEW_MAX = 3
_CALLS_MAX = 60
_STOPS = 0.95
"""How often it waits where nothing is there that it knows of; else it looks for more first."""
_OURS = str(Path(p2pmsg.__file__).parent)
_NOT_OURS = f"{_OURS}/testing"


def _is_ours(code):
    """Whether it is a function of p2pmsg; a generator may as well be one that is thrown away."""
    name = code.co_filename
    is_of_it = name.startswith(_OURS) and not name.startswith(_NOT_OURS)
    return is_of_it and not code.co_flags & CO_GENERATOR


class WatchedPolicy(GapPolicy):
    """A policy for gaps by which the application hears of every loss, whatever else is done."""

    def __init__(self, policy, on_loss):
        self.any_conflates, self.any_skips = policy.any_conflates, policy.any_skips
        self.callables = []
        self.skips, self.conflates = policy.skips, policy.conflates
        self._on_loss = on_loss

    def of(self, topic):
        """Return what reports a loss of any topic."""
        return self._on_loss


class _Face(Subscriber):
    """What the application of one incarnation receives by."""

    def __init__(self, peer, driver):
        self._peer, self._driver = peer, driver
        self._on_open()


class SimulatedReader:
    """Reads as `receive`, `receive_many` and a loop do in turn.

    Some of its calls are interrupted, as by Ctrl-C: what they did not return comes again.

    Args:
        face: what it calls.
        peer: of the face.
        rng: chooses how each message is taken.
        deliver: gets what comes.
        interrupts: part of the calls that are interrupted.

    """

    def __init__(self, face, peer, rng, deliver, *, interrupts):
        self._face, self._peer = face, peer
        self._rng = rng
        self._deliver = deliver
        self._interrupts = interrupts

    @property
    def left(self):
        """How many messages were taken, and not returned to the application yet."""
        return self._peer.reading.left

    def waits(self):
        """Whether it waits for the next message; else it looks for it a little later."""
        return self._rng.random() < 0.9

    def count_max(self):
        """Return how many messages it takes at a time."""
        rng = self._rng
        return MANY if rng.random() < 0.5 else 1 + int(rng.random() * _FEW_MAX)

    def read(self):
        """Make one call; return whether there may be more."""
        rng, peer = self._rng, self._peer
        reading = peer.reading
        is_there = reading.left or reading.is_reporting or peer.core.ready.entries
        if not is_there and rng.random() < _STOPS:
            return False
        call, taken = partial(self._face.receive, 0.0), []
        if rng.random() < 0.5:
            call = partial(self._face.receive_many, self.count_max(), 0.0)
        try:
            if rng.random() < self._interrupts:
                step = int(rng.random() * _CALLS_MAX)
                interrupt_at(step, lambda: taken.append(call()), _is_ours, "call")
            else:
                taken.append(call())
        except TimeoutError:
            return False
        for one in taken:
            self._deliver(batch_of(one) if isinstance(one, Message) else one)
        return True


class SimulatedSubscriber(SimulatedProcess):
    """A subscriber and its application; made by `Simulation.add_subscriber`.

    Args:
        name: of the subscriber.
        network: carries the frames.
        history: what was published.
        publishers: whom it connects to.
        topics: what it takes. Default: all.
        start: as for `Subscriber`. Default: latest.
        config: its settings. Default: `NetworkOptions.subscriber`.
        policy: what to do about gaps. Default: wait.

    Attributes:
        oracle: watches what the application of the current incarnation gets.
        reader: the application of the current incarnation.
        sources: whom it connects to, one a line; `publishers` those of them that publish.
        cursor: its durable position; None without one.
        joins: what each publisher had published when its session was joined:
            (session, topic) to (earliest kept, next). With a cursor former incarnations' count,
            too.
        joined: the sessions that were joined, as far as their publishers lived to see it.
        whole: sessions that began after their place was known; all of them is wanted.

    """

    def __init__(
        self, name, network, history, publishers, *,
        topics=(), start="latest", config=None, policy=None,
    ):  # fmt: skip
        super().__init__(name, network, history)
        self.sources = list(publishers)
        self.publishers = [one for one in publishers if isinstance(one, SimulatedPublisher)]
        self.topics = list(topics)
        self.start = parse_start(start)
        self.policy = policy or GapPolicy("wait")
        self.config = config or network.options.subscriber
        self._places = [transports.parse_endpoint(place.endpoint) for place in self.sources]
        self._stopped_until_ns = 0
        self._frozen_until_ns = 0
        self._hurried = False
        self._is_resting = self._is_waiting = False
        self._turns = 0
        self.joins = {}
        self.whole = set()
        self.joined = set()
        self.cursor = None
        if network.options.cursor:
            self.cursor = SimulatedCursor(name, network, history)
        self._commit_later()
        self.revive()

    @property
    def core(self):
        """The engine, or None while it is dead."""
        driver = self.host.driver
        return None if driver is None else driver.peer.core

    def revive(self):
        """Start: where the cursor says, or as one that knows nothing of the former one."""
        if self.peer is not None or self.is_gone:
            return
        network, cursor = self._network, self.cursor
        deadline_ns = to_ns(self.config.repair_timeout)
        if len(self.publishers) < len(self.sources):
            deadline_ns //= 2  # a relay gives up before its subscribers do
        is_latest = self.policy.any_conflates
        self.oracle = Oracle(self.name, self._history, deadline_ns, conflate=is_latest)
        self._rewound = Counter()
        self._is_resting = self._is_waiting = False
        settings = Settings(
            self._places, self.topics, self.start, WatchedPolicy(self.policy, self._on_loss),
            "wait", UNTYPED, self.name, self.config,
            None if cursor is None else cursor.config, ("explicit", None),
            network.security, None,
        )  # fmt: skip
        peer = SubscriberPeer(settings, self.host)
        driver = self.host.thread_driver(peer)
        face = _Face(peer, driver)
        self._face = face
        if cursor is not None:
            cursor.begin(peer.core, face)
        recorded = set() if cursor is None else cursor.recorded
        self.joins = {key: head for key, head in self.joins.items() if key[0] in recorded}
        self.whole &= recorded
        self.joined &= recorded
        # Its choices are its own, so that they change nothing of what the network does.
        choices = Random(f"{network.options.seed} {self.name} {self.crashes}")
        # After one, all that is on its way is asked for again, which a slow path would not bear.
        interrupts = 0.0 if network.options.bytes_per_s else _INTERRUPTS
        self.reader = SimulatedReader(
            face, peer, choices, self._deliver_batch,
            interrupts=interrupts,
        )  # fmt: skip
        network.note(f"{self.name} starts")
        driver.start()
        self._wait()

    def crash(self):
        """Crash."""
        if self.core is None:
            return
        self._on_joins(self.core)  # it may die as it writes down that it has joined
        self._network.note(f"{self.name} crashes")
        super().crash()
        if self.cursor is not None:
            self.cursor.crash()

    def take_forged(self, place, data, *, spoofed):
        """Take a datagram that a stranger sent to the group of a publisher."""
        self.host.take_forged(data, spoofed=spoofed, endpoint=place.endpoint)
        self.pump()

    def cut(self, line, *, recovery):
        """Cut a connection of the data path, and the recovery channels too; they come back."""
        if self.core is None:
            return
        self._network.note(f"{self.name} is cut from {line}, recovery {recovery}")
        self.host.cut(line, recovery=recovery)
        self.pump()

    def stop_reading(self, seconds):
        """Let the application take nothing for a while."""
        self._stopped_until_ns = self._network.clock.now_ns + to_ns(seconds)
        self._network.at(self._stopped_until_ns, self._read)

    def stop_process(self, seconds):
        """Let the whole process do nothing for a while."""
        until_ns = self._network.clock.now_ns + to_ns(seconds)
        self._frozen_until_ns = max(self._frozen_until_ns, until_ns)
        if self.host.driver is not None:
            self.host.driver.freeze(self._frozen_until_ns)
        self._network.at(self._frozen_until_ns, self._read)

    @property
    def is_frozen(self):
        """Whether the whole process stands still."""
        return self._network.clock.now_ns < self._frozen_until_ns

    def hurry(self):
        """Read as fast as frames come, from now on."""
        self._hurried = True
        self._stopped_until_ns = self._frozen_until_ns = 0
        if self.host.driver is not None:
            self.host.driver.thaw()
        self.pump()
        self._read()

    def hand_over(self, stream, output):
        """Give the application what comes next; a test may put something else in its place."""
        if self.cursor is not None:
            self.cursor.take(stream, output)
        self.oracle.take(stream, output, now_ns=self._network.clock.now_ns)

    @property
    def streams(self):
        """The streams of the current incarnation."""
        return [] if self.core is None else self.core.streams

    def wants(self, topic):
        """Whether it takes a topic."""
        return matches(topic, self.topics or ["*"])

    # ------------------------------------------------------------------ the application

    def _wait(self):
        """Wait for messages, as a thread does in `receive`; or look for them a little later."""
        peer, driver = self.peer, self.host.driver
        if peer is None or driver is None or self._is_waiting:
            return
        self._is_waiting = True
        if self.reader.waits():
            driver.begin(peer.fill(None, None, self.reader.count_max()), partial(self._look, peer))
        else:
            self._network.after(_LOOK_AGAIN_S, self._look, peer)

    def _look(self, peer, _=None):
        if peer is self.peer:
            self._is_waiting = False
            self._read()

    def _read(self):
        """Read all that is ready, if the application does read now, and wait for more."""
        is_stopped = self._network.clock.now_ns < self._stopped_until_ns
        if self._is_waiting or self.is_frozen or is_stopped:
            return
        while self.peer is not None and not self._is_resting and self.reader.read():
            pass
        if not self._is_resting:
            self._wait()

    def _read_on(self, peer):
        if peer is self.peer:
            self._is_resting = False
            self._read()

    def _on_loss(self, report):
        self._deliver(report.session, report.topic, report.loss)

    def _deliver_batch(self, batch):
        self._deliver(batch.session, batch.topic, batch)

    def _deliver(self, session, topic, output):
        stream = self._stream_of(session, topic)
        self._rewound[session, topic] += isinstance(output, Rewound)
        self._network.note(f"{self.name} reads {topic} {_describe(output)}")
        self.hand_over(stream, output)
        seconds = 0.0 if self._hurried else self._network.options.read_time
        if seconds and not self._is_resting:
            self._is_resting = True
            self._network.after(seconds, self._read_on, self.peer)

    def _stream_of(self, session, topic):
        """Return the stream that something is of: the first one, until it is said to be rewound."""
        assert self.core is not None
        peer = self.core.peers[session]
        streams = [one for one in peer.former if one.topic == topic]
        if topic in peer.streams:
            streams.append(peer.streams[topic])
        return streams[min(self._rewound[session, topic], len(streams) - 1)]

    def commit(self):
        """Commit everything that the application got, durably."""
        if self.cursor is not None:
            self.cursor.commit(self.streams, all_of_it=True)

    def _commit_later(self):
        if self.cursor is not None:
            self._network.after_chance(_COMMITS_PER_S, self._commit_some)

    def _commit_some(self):
        if self.cursor is not None and not self._hurried:
            if not self.is_frozen:
                self.cursor.commit(self.streams)
            self._commit_later()

    # --------------------------------------------------------------------------- checks

    def _on_turn(self):
        core = self.core
        if core is None:
            return
        if self.cursor is not None:
            self.cursor.look(core)
        self._on_joins(core)
        self._turns += 1
        if self._turns % _CHECK_EVERY == 0:
            self.check_streams()

    def _on_joins(self, core):
        """Remember where the streams stood when a session was joined."""
        for publisher in self.publishers:
            sending = publisher.core
            if sending is None or (session := sending.session) in self.joined:
                continue
            peer = core.peers.get(session)
            if peer is not None and peer.joined:
                self.joined.add(session)
                met = set() if self.cursor is None else self.cursor.met
                if peer.start == parse_start(0) or publisher.endpoint in met:
                    self.whole.add(session)
                for topic, head in sending.heads().items():
                    self.joins[session, topic] = head

    def check_streams(self):
        """Check the ledgers and the bounds; done now and then by itself."""
        if self.core is None:
            return
        stats = self._face.stats()
        if stats.bytes_held > self.config.receive_bytes + _FRAME_BYTES_MAX:
            self._history.complain(f"{self.name} holds {stats.bytes_held} bytes")
        for ledger in stats.streams:
            self.oracle.check_ledger(ledger)
        for stream in self.core.streams:
            if len(list(stream.receiver.missing_ranges)) > GAPS_MAX:
                self._history.complain(f"{self.name} has more gaps than GAPS_MAX")


def _describe(output):
    if isinstance(output, Loss):
        return f"lost {output.start} {output.stop} {output.reason.value}"
    return f"{output.sequence} {len(output)}"
