"""A relay in the simulator: the real cores, driven as the threaded shell drives them."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from p2pmsg.publisher.log import PublisherLog
from p2pmsg.relay.core import RelayCore
from p2pmsg.relay.metadata import RelayMetadata
from p2pmsg.relay.transfer import Resumption, Transfer
from p2pmsg.subscriber.core import SubscriberCore
from p2pmsg.testing.network import FaultyNetwork
from p2pmsg.testing.oracle import History, StreamKey
from p2pmsg.testing.simulated_publisher import LOG_SEGMENT_BYTES, SimulatedPublisher
from p2pmsg.testing.simulated_sending import OUTBOX_MAX, WALL_NS, ServingSide
from p2pmsg.testing.simulated_subscriber import SimulatedSubscriber
from recovery import RangeSet
from recovery.log import LogConfig, MemoryStore


class SimulatedRelay(SimulatedSubscriber):
    """A relay; made by `Simulation.add_relay`. To its upstreams it is a subscriber.

    Attributes:
        endpoint: where subscribers connect to.
        disk: where its log is; None without one.
        relay: the core of its publishing side, or None while it is dead.
        forgot: whether an incarnation of it ended without a log, or its buffer evicted something.
        never_had: what former incarnations reported lost, by (session, topic). A crash may leave
            that unwritten, and then the next incarnation knows no loss where its log has nothing.

    """

    def __init__(
        self,
        name: str,
        network: FaultyNetwork,
        history: History,
        upstreams: "Sequence[SimulatedPublisher | SimulatedRelay]",
        *,
        log: bool,
    ) -> None:
        self.endpoint = f"memory://{name}"
        self.relay: RelayCore | None = None
        self.forgot = False
        self.never_had: defaultdict[StreamKey, RangeSet] = defaultdict(RangeSet)
        self.disk: Any = MemoryStore() if log else None
        self._publishing = network.options.publisher
        self._serve_ns = 0
        config = network.options.subscriber
        # It gives up a gap before its subscribers do, as `Relay` does; see `REPAIR_TIMEOUT_S`.
        config = replace(config, repair_timeout=config.repair_timeout / 2)
        super().__init__(name, network, history, upstreams, start="earliest", config=config)

    @property
    def evicted(self) -> bool:
        """Whether it forgot anything that it had received."""
        relay = self.relay
        full = relay is not None and self.disk is None and relay.replay.messages_evicted > 0
        return self.forgot or full

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits to be sent."""
        relay = self.relay
        return relay is not None and not (relay.outbox or relay.unsynced or relay.control)

    def _make_core(self) -> SubscriberCore:
        network = self._network
        self.recovery = at = f"{self.endpoint}.recovery.{self.crashes}"
        relay, now_ns = network.rng.getrandbits(64), network.clock.now_ns
        log, metadata = None, None
        if self.disk is not None:
            settings = LogConfig("log", segment_bytes=LOG_SEGMENT_BYTES)
            wall_ns = WALL_NS + now_ns
            log = PublisherLog(settings, session=relay, wall_ns=wall_ns, store=self.disk)
            relay, metadata = log.session, RelayMetadata(self.disk)
        config = self._publishing
        self.relay = RelayCore(
            name=self.name, relay=relay, recovery=at, config=config, now_ns=now_ns,
            log=log, metadata=metadata,
        )  # fmt: skip
        self._side = ServingSide(self.relay, self.endpoint, at, config, network, self.pump)
        core = self._new_core(Resumption(self.relay), relay)
        self._transfer = Transfer(core, self.relay)
        return core

    def crash(self) -> None:
        """Crash; what it has in memory is gone."""
        if self.core is None:
            return
        self.forgot |= self.evicted or self.disk is None
        if self.relay is not None:
            self._on_losses(self.relay)
        super().crash()
        if self.disk is not None:
            self.disk.kill()
        self.relay = None
        self._side.close()

    def _on_losses(self, relay: RelayCore) -> None:
        for session, served in relay.sessions.items():
            for topic, stream in served.streams.items():
                for loss in stream.losses:
                    self.never_had[session, topic].add(loss.start, loss.stop)

    def pump(self) -> None:
        """Do one round of I/O at both sides."""
        super().pump()
        relay = self.relay
        if relay is None:
            return
        now_ns = self._network.clock.now_ns
        self._transfer.on_sessions(now_ns=now_ns)
        self._side.pump(now_ns)
        self._serve_later(relay)

    def _read_frame(self, core: SubscriberCore, data: bytes, now_ns: int) -> bool:
        """Return False: a relay has no fast path."""
        return False

    def _read(self, core: SubscriberCore, now_ns: int) -> int:
        """Move what is ready to the publishing side."""
        relay = self.relay
        if relay is None or len(relay.outbox) >= OUTBOX_MAX:
            return 0
        wall_ns = WALL_NS + now_ns
        moved = self._transfer.transfer(now_ns=now_ns, wall_ns=wall_ns, count_max=OUTBOX_MAX)
        self._side.send_outbox(now_ns)
        return moved

    def _check_exit(self, core: SubscriberCore) -> None:
        if wrong := self.reader.miscounted():
            self._history.complain(f"{self.name}: {wrong}")

    def check_streams(self) -> None:
        """Do nothing: it has no application to compare with."""

    def _on_joins(self, core: SubscriberCore) -> None:
        """Do nothing, as `check_streams`."""

    def _serve_later(self, relay: RelayCore) -> None:
        now_ns = self._network.clock.now_ns
        time_ns = max(self._side.next_deadline_ns(now_ns) or 0, now_ns + 1)
        if self._serve_ns <= now_ns or time_ns < self._serve_ns:
            self._serve_ns = time_ns
            self._network.at(time_ns, self._serve_again, relay, time_ns)

    def _serve_again(self, relay: RelayCore, time_ns: int) -> None:
        if relay is self.relay and time_ns == self._serve_ns:
            self._serve_ns = 0
            self.pump()
