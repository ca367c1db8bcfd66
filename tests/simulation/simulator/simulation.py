"""Seeded simulations of whole systems: publishers, subscribers, and a network that misbehaves."""

import math
from collections import Counter

from p2pmsg.testing.drained import knows_all, knows_all_of_relay
from recovery.checks import to_ns
from recovery.heartbeat import INTERVAL_MAX_S
from tests.simulation.simulator.invariants import final_violations, relay_violations
from tests.simulation.simulator.network import SimulatedNetwork
from tests.simulation.simulator.options import NetworkOptions
from tests.simulation.simulator.oracle import History
from tests.simulation.simulator.publisher import SimulatedPublisher
from tests.simulation.simulator.relay import SimulatedRelay
from tests.simulation.simulator.subscriber import SimulatedSubscriber

_STEP_S = 0.02
_CALM_S = 0.5
_QUIET_KINDS = frozenset({"HEARTBEAT", "JOINED", "ADMITTED"})


class Simulation:
    """The real cores, driven by discrete events, over a simulated network.

    ::

        simulation = Simulation(NetworkOptions(seed=7, loss=0.1))
        publisher = simulation.add_publisher()
        subscriber = simulation.add_subscriber(start="earliest")
        simulation.run(1.0)
        simulation.heal()
        simulation.drain(20.0)
        simulation.check()

    Args:
        options: the circumstances. Default: a clean network.
        log: called with a line for everything that happens, such as `print`. Default: none.

    Attributes:
        options: the circumstances.
        publishers, subscribers, relays: the simulated processes.
        network: carries the frames, loses some of them, and has the clock.

    """

    def __init__(self, options=None, *, log=None):
        self.options = options or NetworkOptions()
        self.publishers = []
        self.subscribers = []
        self.relays = []
        self.network = SimulatedNetwork(self.options, log)
        self._history = History()
        self._resynced = False

    @property
    def clock(self):
        """The time."""
        return self.network.clock

    @property
    def trace(self):
        """A hash of everything that has happened: the same options give the same one."""
        return self.network.trace

    @property
    def published(self):
        """How many messages publishers have accepted."""
        return sum(map(len, self._history.published.values()))

    @property
    def delivered(self):
        """How many messages applications got, in the current incarnations of their subscribers."""
        return sum(seen.delivered for one in self.subscribers for seen in one.oracle.seen.values())

    @property
    def lost(self):
        """How many messages were reported lost, by reason, in subscribers' current incarnations."""
        total = Counter()
        for one in self.subscribers:
            for seen in one.oracle.seen.values():
                total.update(seen.reasons)
        return dict(total)

    @property
    def frames_sent(self):
        """How many frames were put on the way, by kind."""
        return dict(self.network.kinds)

    def add_publisher(self, config=None):
        """Add a publisher, which publishes at random from now on.

        Args:
            config: its settings. Default: `NetworkOptions.publisher`.

        """
        name = f"p{len(self.publishers)}"
        publisher = SimulatedPublisher(name, self.network, self._history, config)
        self.publishers.append(publisher)
        return publisher

    def add_relay(self, upstreams=None, *, log=False):
        """Add a relay.

        Args:
            upstreams: whom it connects to, relays too. Default: all publishers.
            log: whether it has a local log.

        """
        name = f"r{len(self.relays)}"
        upstreams = self.publishers if upstreams is None else upstreams
        relay = SimulatedRelay(name, self.network, self._history, upstreams, log=log)
        self.relays.append(relay)
        return relay

    def add_subscriber(self, publishers=None, **options):
        """Add a subscriber and an application that reads what it gets.

        Args:
            publishers: whom it connects to, relays too. Default: all publishers that there are.
            options: as of `SimulatedSubscriber`.

        """
        name = f"s{len(self.subscribers)}"
        places = self.publishers if publishers is None else publishers
        subscriber = SimulatedSubscriber(name, self.network, self._history, places, **options)
        self.subscribers.append(subscriber)
        return subscriber

    def run(self, seconds):
        """Let so many `seconds` pass."""
        self.network.run_until(self.clock.now_ns + to_ns(seconds))
        self._check_publishers()
        for subscriber in self.subscribers:
            subscriber.check_streams()

    def run_until(self, is_so, timeout):
        """Run from event to event until what `is_so` returns is true.

        False after `timeout`, in seconds.
        """
        end_ns = self.clock.now_ns + to_ns(timeout)
        while not is_so():
            due_ns = self.network.next_ns
            if due_ns is None or due_ns > end_ns:
                self.network.run_until(end_ns)
                return is_so()
            self.network.run_until(due_ns)
        return True

    def heal(self):
        """End all faults: nothing is lost from now on, dead processes come back, all read."""
        self._resynced = True
        self.network.note("heal")
        self.network.heal()
        for publisher in self.publishers:
            publisher.start()
            publisher.stop_publishing()
        for relay in self.relays:
            relay.revive()
        for subscriber in self.subscribers:
            subscriber.revive()
            subscriber.hurry()

    def drain(self, timeout):
        """Run until every subscriber has everything or knows it lost.

        False after `timeout`, in seconds.
        """
        end_ns = self.clock.now_ns + to_ns(timeout)
        while not self._is_drained():
            if self.clock.now_ns >= end_ns:
                return False
            self.run(_STEP_S)
        return True

    def complain(self, what):
        """Have `check` fail, and say `what` was wrong."""
        self._history.complain(what)

    @property
    def violations(self):
        """What went wrong so far, without what `check` looks for at the end."""
        return list(self._history.violations)

    def check(self, quiet=2.0):
        """Raise `AssertionError`, with the seed, unless every promise was kept.

        After `drain` that includes the final ones: everything is accounted for, and for
        `quiet` seconds there is nothing but heartbeats and keep-alives.
        """
        violations = self._history.violations
        if self._resynced and not violations:
            for subscriber in self.subscribers:
                violations += final_violations(subscriber, self._history)
                violations += relay_violations(subscriber)
            if not violations and not self._is_drained():
                violations.append("it has not settled")
            if not violations and quiet:
                self._check_quiet(quiet)
        if violations:
            raise AssertionError(f"seed {self.options.seed}: {'; '.join(violations)}")

    def _check_quiet(self, seconds):
        self.run(max(_CALM_S, 3 * self.options.delay[1]))  # what was asked is answered
        before = self.network.kinds.copy()
        self.run(seconds)
        noise = self.network.kinds - before
        pairs = sum(
            len(publisher.topics)
            for subscriber in self.subscribers
            for publisher in subscriber.publishers
        )
        allowed = pairs * (seconds / INTERVAL_MAX_S + 8)
        quiet = set(_QUIET_KINDS)
        if self.options.multicast:
            # The session is announced for ever; now and then it is asked how far receivers are.
            quiet |= {"WELCOME", "MARK", "MARKED", "SEALED"}
        talking = all(one.core and one.core.heads() for one in self.publishers)
        if not (talking and noise["HEARTBEAT"]):
            quiet |= {"PROBE", "ECHO"}  # a publisher that has nothing to say is asked now and then
        loud = {kind: count for kind, count in noise.items() if kind not in quiet}
        if loud:
            self._history.complain(f"not quiet: {loud}")
        if noise["HEARTBEAT"] > allowed:
            self._history.complain(f"{noise['HEARTBEAT']} heartbeats of at most {allowed:.0f}")

    def _check_publishers(self):
        for publisher in self.publishers:
            core = publisher.core
            if core is None:
                continue
            held, limit = core.replay.bytes_held, core.config.replay_bytes
            if held > limit:
                self._history.complain(f"{publisher.name} keeps {held} of {limit}")
            known = {*core.heads(), *core.open_batches}  # of others a crash left nothing
            count = sum(
                len(messages)
                for (session, topic), messages in self._history.published.items()
                if session == core.session and (topic in known or not core.log)
            )
            if core.published != count:
                self._history.complain(f"{publisher.name} claims {core.published} of {count}")

    def _is_drained(self):
        are_idle = all(one.is_idle for one in self.publishers)
        are_idle = are_idle and all(one.is_idle for one in self.relays)
        return are_idle and all(map(_has_everything, self._receivers))

    def at_rate(self, rate, fault):
        """Call `fault` `rate` times a second on average, at random times, until `heal`."""
        self.network.after_chance(rate, self._do_fault, rate, fault)

    def _do_fault(self, rate, fault):
        if not self._resynced:
            fault()
            self.at_rate(rate, fault)

    def about(self, seconds):
        """Return a random time, of half to one and a half times `seconds`."""
        return seconds * (0.5 + self.network.rng.random())

    def part(self, publisher, subscriber, seconds):
        """Let nothing pass between the processes named `publisher` and `subscriber`.

        So it is for `seconds`.
        """
        self.network.note(f"{publisher} and {subscriber} are parted for {seconds} s")
        self.network.part(publisher, subscriber, seconds)

    def deafen(self, publisher, subscriber, seconds=math.inf):
        """Let nothing pass over the data path from `publisher` to `subscriber`, by their names.

        So it is for `seconds`, and the recovery channel works. Default: for ever, also after
        `heal`.
        """
        self.network.note(f"{subscriber} hears nothing of {publisher} for {seconds} s")
        self.network.deafen(publisher, subscriber, seconds)

    def some_path(self):
        """Choose a publisher, or relay, and one of its subscribers; return their names."""
        subscriber = self.network.rng.choice(self.subscribers)
        return self.network.rng.choice(subscriber.sources).name, subscriber.name

    @property
    def _receivers(self):
        return [*self.relays, *self.subscribers]


def _has_everything(subscriber):
    core = subscriber.core
    if core is None or core.ready:
        return False
    if isinstance(subscriber, SimulatedSubscriber) and subscriber.reader.left:
        return False
    if any(line.unknown_ns is not None for line in core.lines):
        return False
    if any(not peer.is_decided for peer in core.peers.values()):
        return False  # of a session that died before it was joined, too, the end is noticed
    for index, (line, publisher) in enumerate(zip(core.lines, subscriber.sources, strict=True)):
        if isinstance(publisher, SimulatedRelay):
            hears, topics = subscriber.hears(publisher), subscriber.topics
            if publisher.peer is None or not knows_all_of_relay(
                core, topics, index, publisher.peer, hears=hears
            ):
                return False
            continue
        if publisher.is_gone:
            continue
        if line.session != publisher.session:
            return False
        peer = subscriber.peer_of(publisher)
        if peer is None or not peer.joined or publisher.core is None:
            return False
        if peer.probe is not None and (subscriber.hears(publisher) or not peer.is_one_way):
            return False  # over a dead data path no echo comes
        if peer.own.recovery != publisher.recovery:
            return False  # it has restarted on its log, and its welcome is on its way
        if not publisher.is_read_by(core):
            return False
        if not knows_all(subscriber.topics, peer, publisher.core.heads()):
            return False
    if any(stream.receiver.missing for stream in core.streams):
        return False
    return all(
        stream.receiver.started or stream.peer.gone or not stream.peer.joined
        for stream in core.streams
    )
