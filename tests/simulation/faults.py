"""Simulations of this project's profiles: what happens there and is no option of the network.

Hooks of the simulated network see each frame, and faults come at random until `heal`.
"""

import zlib
from dataclasses import dataclass, fields
from typing import Any

from p2pmsg.config import (
    MulticastPublisherConfig,
    MulticastSubscriberConfig,
    PublisherConfig,
    SubscriberConfig,
)
from tests.simulation.simulator import (
    NetworkOptions,
    SimulatedPublisher,
    SimulatedSubscriber,
    Simulation,
)
from transports.memory import Link

_JOIN_KINDS = frozenset({"WELCOME", "PROBE", "ECHO", "DATA", "JOINED", "CURSOR"})


@dataclass(frozen=True, kw_only=True)
class Faults:
    """What happens in addition to what `NetworkOptions` has; times in seconds, on average."""

    partitions_per_s: float = 0.0
    """How often nothing passes between a publisher and a subscriber, and no connection notices."""
    partition_time: float = 0.3
    cuts_per_s: float = 0.0
    """How often a connection of the data path is cut and made again; every other time the recovery
    channel is cut, too. What was on its way is lost."""
    publisher_crashes_per_s: float = 0.0
    """How often a publisher dies. It comes back as a new session, or with a log in the same one."""
    subscriber_crashes_per_s: float = 0.0
    """How often a subscriber dies. It comes back as a new one, or with a cursor where it was."""
    restart_delay: float = 0.2
    """How long a process that died stays away."""
    one_way_paths_per_s: float = 0.0
    """How often the data path from a publisher to a subscriber goes dead; recovery works on."""
    one_way_time: float = 6.0
    narrow_paths_per_s: float = 0.0
    """How often a path between a publisher and a subscriber carries small datagrams only."""
    narrow_time: float = 6.0
    narrow_bytes: int = 200
    read_stops_per_s: float = 0.0
    """How often an application stops reading."""
    read_stop_time: float = 0.5
    process_stops_per_s: float = 0.0
    """How often a subscriber's whole process stops, as by SIGSTOP."""
    process_stop_time: float = 0.5
    rotations_per_s: float = 0.0
    """How often publishers of sealed groups begin to use another key."""
    join_kills: float = 0.0
    """Part of the steps of a join at which one of the two processes dies: right before or right
    after a WELCOME, PROBE, ECHO or JOINED arrives, or data of a session that is not joined yet, or
    a cursor notes a session."""
    gone_for_good: float = 0.0
    """Part of the publishers killed by `join_kills` that never come back."""
    heartbeat_loss: float = 0.0
    """Part of the heartbeats that are lost."""
    shared_loss: float = 0.0
    """Part of the datagrams that all subscribers lose."""
    answers_loss: float = 0.0
    """Part of the datagrams to a publisher that are lost."""

    def begin(self, simulation: Simulation) -> None:
        """Let them happen from now on."""
        network = simulation.network

        def part() -> None:
            simulation.part(*simulation.some_path(), simulation.about(self.partition_time))

        def cut() -> None:
            subscriber = network.rng.choice(simulation.subscribers)
            line = network.rng.randrange(len(subscriber.sources))
            subscriber.cut(line, recovery=network.rng.random() < 0.5)

        def crash_publisher() -> None:
            self._crash(simulation, network.rng.choice(simulation.publishers))

        def crash_subscriber() -> None:
            self._crash(simulation, network.rng.choice(simulation.subscribers))

        def stop_reading() -> None:
            subscriber = network.rng.choice(simulation.subscribers)
            subscriber.stop_reading(simulation.about(self.read_stop_time))

        def stop_process() -> None:
            subscriber = network.rng.choice(simulation.subscribers)
            network.note(f"{subscriber.name} stops")
            subscriber.stop_process(simulation.about(self.process_stop_time))

        def deafen() -> None:
            simulation.deafen(*simulation.some_path(), simulation.about(self.one_way_time))

        def make_narrow() -> None:
            ends, seconds = simulation.some_path(), simulation.about(self.narrow_time)
            narrow(simulation, *ends, self.narrow_bytes, seconds)

        def rotate() -> None:
            for publisher in simulation.publishers:
                publisher.rotate_keys()

        for rate, fault in (
            (self.partitions_per_s, part),
            (self.cuts_per_s, cut),
            (self.publisher_crashes_per_s, crash_publisher),
            (self.subscriber_crashes_per_s, crash_subscriber),
            (self.read_stops_per_s, stop_reading),
            (self.process_stops_per_s, stop_process),
            (self.one_way_paths_per_s, deafen),
            (self.narrow_paths_per_s, make_narrow),
            (self.rotations_per_s, rotate),
        ):
            if rate:
                simulation.at_rate(rate, fault)
        if self.join_kills:
            network.step = lambda *step: self._step_of_join(simulation, *step)
        if self.heartbeat_loss or self.shared_loss or self.answers_loss:
            network.watchers.append(lambda link, frame: self._is_lost(simulation, link, frame))

    def _crash(
        self, simulation: Simulation, victim: SimulatedPublisher | SimulatedSubscriber
    ) -> None:
        """Let a process die, and come back after a while."""
        victim.crash()
        back = victim.start if isinstance(victim, SimulatedPublisher) else victim.revive
        simulation.network.after(simulation.about(self.restart_delay), back)

    def _is_lost(self, simulation: Simulation, link: Link, frame: bytes) -> bool:
        network = simulation.network
        if self.heartbeat_loss and network.kind_of(frame) == "HEARTBEAT":
            return network.rng.random() < self.heartbeat_loss
        if link.kind == "data":  # the same datagram at the same time is lost for all
            draw = zlib.crc32(frame, simulation.clock.now_ns & 0xFFFFFFFF) / 2**32
            return draw < self.shared_loss
        return ".answers" in link.target and network.rng.random() < self.answers_loss

    def _step_of_join(self, simulation: Simulation, kind: str, source: str, target: str) -> None:
        """Let one of two processes die at a step of a join, perhaps."""
        rng = simulation.network.rng
        if kind not in _JOIN_KINDS or rng.random() >= self.join_kills:
            return
        ends = {*map(simulation.network.name_of, (source, target))}
        receivers = [*simulation.relays, *simulation.subscribers]
        if kind == "DATA" and not any(
            one.core is not None and any(not peer.joined for peer in one.core.peers.values())
            for one in receivers
            if one.name in ends
        ):
            return
        everybody: list[SimulatedPublisher | SimulatedSubscriber] = [*simulation.publishers]
        everybody += receivers
        victims = [one for one in everybody if one.core is not None and one.name in ends]
        if not victims:
            return
        victim = rng.choice(victims)
        simulation.network.note(f"{victim.name} dies at a {kind}")
        if isinstance(victim, SimulatedPublisher) and rng.random() < self.gone_for_good:
            victim.leave_for_good()
            return
        self._crash(simulation, victim)


def narrow(
    simulation: Simulation, publisher: str, subscriber: str, largest: int, seconds: float
) -> None:
    """Lose datagrams of more than `largest` bytes between two, by their names, for a while."""
    network, ends = simulation.network, {publisher, subscriber}
    network.note(f"{publisher} and {subscriber} have a narrow path for {seconds} s")

    def is_lost(link: Link, frame: bytes) -> bool:
        is_datagram = link.kind == "data" or ".answers" in link.source + link.target
        is_between = {*map(network.name_of, (link.source, link.target))} == ends
        return len(frame) > largest and is_datagram and is_between

    def end() -> None:
        if is_lost in network.watchers:
            network.watchers.remove(is_lost)

    network.watchers.append(is_lost)
    network.after(seconds, end)


def simulate(
    seed: int, *, parity: int = 0, buffer_bytes: int = 2**24, **options: Any
) -> Simulation:
    """Return a simulation; `options` are fields of `NetworkOptions`, of its configs, of `Faults`.

    With `parity` so many datagrams of parity follow four of data; receive buffers of a multicast
    have `buffer_bytes`.
    """

    publisher, subscriber = _of(PublisherConfig, options), _of(SubscriberConfig, options)
    faults, own = _of(Faults, options), _of(NetworkOptions, options)
    if "multicast" in options:
        own["multicast"] = options["multicast"]
    known = publisher.keys() | subscriber.keys() | faults.keys() | own.keys()
    assert options.keys() == known, options.keys() - known
    if parity:
        publisher["multicast"] = MulticastPublisherConfig(fec_data=4, fec_parity=parity)
    subscriber["multicast"] = MulticastSubscriberConfig(buffer_bytes=buffer_bytes)
    network = NetworkOptions(
        seed=seed,
        publisher=PublisherConfig(**{"frame_bytes": 1024, **publisher}),
        subscriber=SubscriberConfig(**subscriber),
        **own,
    )
    simulation = Simulation(network)
    Faults(**faults).begin(simulation)
    return simulation


def _of(kind: type, options: dict[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(kind)} - {"multicast"}
    return {name: value for name, value in options.items() if name in names}
