"""A relay in the simulator: the real peer."""

from collections import defaultdict
from dataclasses import replace

from p2pmsg import Relay
from p2pmsg.peers.network import on
from recovery import RangeSet
from recovery.log import LogConfig
from tests.simulation.simulator.process import SimulatedProcess
from tests.simulation.simulator.publisher import LOG_SEGMENT_BYTES


class SimulatedRelay(SimulatedProcess):
    """A relay; made by `Simulation.add_relay`.

    Attributes:
        endpoint: where subscribers connect to.
        disk: where its log is; None without one.
        forgot: whether an incarnation of it ended without a log, or its buffer evicted something.
        never_had: what former incarnations reported lost, by (session, topic). A crash may leave
            that unwritten, and then the next incarnation knows no loss where its log has nothing.

    """

    topics = ()

    def __init__(self, name, network, history, upstreams, *, log):
        super().__init__(name, network, history)
        self.endpoint = self.host.publishing_endpoint(multicast=False)
        self.forgot = False
        self.never_had = defaultdict(RangeSet)
        self.disk = self.host.disk if log else None
        self.sources = list(upstreams)
        config = network.options.subscriber
        self._options = {
            "name": name,
            "config": network.options.publisher,
            # It gives up a gap before its subscribers do, as `Relay` does by default.
            "intake": replace(config, repair_timeout=config.repair_timeout / 2),
            "log": LogConfig("log", segment_bytes=LOG_SEGMENT_BYTES) if log else None,
            "security": network.security,
        }
        self.revive()

    @property
    def relay(self):
        """The engine of its publishing side, or None while it is dead."""
        driver = self.host.driver
        return None if driver is None else driver.peer.core

    @property
    def core(self):
        """The engine of its receiving side, or None while it is dead."""
        driver = self.host.driver
        return None if driver is None else driver.peer.source

    @property
    def evicted(self):
        """Whether it forgot anything that it had received."""
        relay = self.relay
        full = relay is not None and self.disk is None and relay.replay.messages_evicted > 0
        return self.forgot or full

    @property
    def is_idle(self):
        """Whether nothing waits to be sent."""
        relay = self.relay
        return relay is not None and not (relay.outbox or relay.unsynced or relay.control)

    def revive(self):
        """Start, with what its log has."""
        if self.peer is None and not self.is_gone:
            self._network.note(f"{self.name} starts")
            with on(self.host):
                Relay([one.endpoint for one in self.sources], self.endpoint, **self._options)

    def crash(self):
        """Crash; what it has in memory is gone."""
        relay = self.relay
        if relay is None:
            return
        self._network.note(f"{self.name} crashes")
        self.forgot |= self.evicted or self.disk is None
        for session, served in relay.sessions.items():
            for topic, stream in served.streams.items():
                for loss in stream.losses:
                    self.never_had[session, topic].add(loss.start, loss.stop)
        super().crash()
