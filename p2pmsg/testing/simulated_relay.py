"""A relay in the simulator: the real engines, driven as its threaded shell drives them."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Protocol

import transports
from p2pmsg.peers.lines import open_lines
from p2pmsg.peers.receiving import Receiving
from p2pmsg.publisher.log import PublisherLog
from p2pmsg.relay.core import RelayCore
from p2pmsg.relay.metadata import RelayMetadata
from p2pmsg.relay.transfer import Resumption, Transfer
from p2pmsg.start import parse_start
from p2pmsg.subscriber.core import SubscriberCore
from p2pmsg.subscriber.sessions import Session
from p2pmsg.testing.host import Host
from p2pmsg.testing.network import FaultyNetwork
from p2pmsg.testing.oracle import History, StreamKey, miscounted
from p2pmsg.testing.simulated_publisher import LOG_SEGMENT_BYTES, SimulatedPublisher
from p2pmsg.testing.simulated_sending import OUTBOX_MAX, ServingSide
from recovery import RangeSet
from recovery.log import LogConfig, MemoryStore


class Upstream(Protocol):
    """What a relay connects to."""

    @property
    def endpoint(self) -> str:
        """Where it is bound."""


class SimulatedRelay:
    """A relay; made by `Simulation.add_relay`.

    Attributes:
        endpoint: where subscribers connect to.
        disk: where its log is; None without one.
        core, relay: the engines of its receiving and its publishing side, or None while it is dead.
        forgot: whether an incarnation of it ended without a log, or its buffer evicted something.
        never_had: what former incarnations reported lost, by (session, topic). A crash may leave
            that unwritten, and then the next incarnation knows no loss where its log has nothing.

    """

    def __init__(
        self,
        name: str,
        network: FaultyNetwork,
        history: History,
        upstreams: Sequence[Upstream],
        *,
        log: bool,
    ) -> None:
        self.name = name
        self.endpoint = f"memory://{name}"
        self.host = Host(network, name)
        self.core: SubscriberCore | None = None
        self.relay: RelayCore | None = None
        self.forgot = self.is_gone = False
        self.never_had: defaultdict[StreamKey, RangeSet] = defaultdict(RangeSet)
        self.disk: MemoryStore | None = self.host.disk if log else None
        self.sources = list(upstreams)
        self._network = network
        self._history = history
        self._wake_ns = 0
        config = network.options.subscriber
        # It gives up a gap before its subscribers do, as `Relay` does; see `REPAIR_TIMEOUT_S`.
        self._config = replace(config, repair_timeout=config.repair_timeout / 2)
        self.revive()

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

    def wants(self, topic: str) -> bool:
        """Return True: it takes all."""
        return True

    def hears(self, publisher: "SimulatedPublisher | SimulatedRelay") -> bool:
        """Whether the data path from a publisher, or a relay, works."""
        return not self._network.is_one_way(publisher.name, self.name)

    def peer_of(self, publisher: SimulatedPublisher) -> Session | None:
        """Return what is known of the publisher's current incarnation."""
        if self.core is None or publisher.session is None:
            return None
        return self.core.peers.get(publisher.session)

    def revive(self) -> None:
        """Start, with what its log has."""
        if self.core is not None or self.is_gone:
            return
        network, host = self._network, self.host
        relay, now_ns = host.random.getrandbits(64), host.now_ns()
        log, metadata = None, None
        if self.disk is not None:
            settings = LogConfig("log", segment_bytes=LOG_SEGMENT_BYTES)
            log = PublisherLog(settings, session=relay, wall_ns=host.wall_ns(), store=self.disk)
            relay, metadata = log.session, RelayMetadata(self.disk)
        at = transports.parse_endpoint(f"{self.endpoint}.recovery")
        config = network.options.publisher
        server = host.recovery_server(at, queue_frames=config.queue_frames)
        self.relay = RelayCore(
            name=self.name, relay=relay, recovery=server.endpoint, config=config, now_ns=now_ns,
            log=log, metadata=metadata,
        )  # fmt: skip
        sender = host.sender(
            transports.parse_endpoint(self.endpoint),
            queue_frames=config.queue_frames,
            welcome=self.relay.welcome,
        )
        self._side = ServingSide(self.relay, sender, server, config)
        places = [transports.parse_endpoint(one.endpoint) for one in self.sources]
        self.core = SubscriberCore(
            topics=[], lines=len(places), start=parse_start("earliest"),
            subscriber=host.random.getrandbits(64), name=self.name, config=self._config,
            rng=Random(host.random.getrandbits(64)), now_ns=now_ns, cursor=Resumption(self.relay),
            relay=relay, counts_replies=host.keeps_replies,
            datagram_lines=[at for at, place in enumerate(places) if place.is_datagram],
        )  # fmt: skip
        self._transfer = Transfer(self.core, self.relay)
        self._receiving: Receiving = open_lines(self.core, places, [], self._config, host)
        host.on_input(self.pump)
        network.note(f"{self.name} starts")
        self._schedule()

    def crash(self) -> None:
        """Crash; what it has in memory is gone."""
        if self.core is None:
            return
        self._network.note(f"{self.name} crashes")
        self.forgot |= self.evicted or self.disk is None
        if self.relay is not None:
            self._on_losses(self.relay)
        self.core = self.relay = None
        self.host.kill()

    def leave_for_good(self) -> None:
        """Crash, never to come back."""
        self.crash()
        self.is_gone = True

    def pump(self) -> None:
        """Do one round of I/O at both sides."""
        relay, host = self.relay, self.host
        if relay is None:
            return
        now_ns = host.now_ns()
        while self._receiving.round(now_ns) + self._move(relay, now_ns):
            pass
        if self.core is not None and (wrong := miscounted(self.core)):
            self._history.complain(f"{self.name}: {wrong}")
        self._transfer.on_sessions(now_ns=now_ns)
        self._side.pump(now_ns, host.wall_ns())
        self._schedule()

    def _move(self, relay: RelayCore, now_ns: int) -> int:
        """Move what is ready to the publishing side."""
        if len(relay.outbox) >= OUTBOX_MAX:
            return 0
        wall_ns = self.host.wall_ns()
        moved = self._transfer.transfer(now_ns=now_ns, wall_ns=wall_ns, count_max=OUTBOX_MAX)
        self._side.send_outbox(now_ns)
        return moved

    def _on_losses(self, relay: RelayCore) -> None:
        for session, served in relay.sessions.items():
            for topic, stream in served.streams.items():
                for loss in stream.losses:
                    self.never_had[session, topic].add(loss.start, loss.stop)

    def _schedule(self) -> None:
        now_ns = self.host.now_ns()
        due_ns = min(self._receiving.next_deadline_ns(), self._side.next_deadline_ns(now_ns))
        time_ns = max(due_ns, now_ns + 1)
        if self._wake_ns <= now_ns or time_ns < self._wake_ns:
            self._wake_ns = time_ns
            self._network.at(time_ns, self._wake, self.core, time_ns)

    def _wake(self, core: SubscriberCore, time_ns: int) -> None:
        if core is self.core and time_ns == self._wake_ns:
            self._wake_ns = 0
            self.pump()
