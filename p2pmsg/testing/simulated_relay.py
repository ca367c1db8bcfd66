"""A relay in the simulator: the real cores, driven as the threaded shell drives them."""

from contextlib import nullcontext
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

from p2pmsg.config import PublisherConfig, SubscriberConfig
from p2pmsg.publisher.control_queue import send_some
from p2pmsg.publisher.log import PublisherLog, import_log
from p2pmsg.relay.core import RelayCore
from p2pmsg.relay.metadata import RelayMetadata
from p2pmsg.relay.transfer import Resumption, Transfer
from p2pmsg.subscriber.core import SubscriberCore
from p2pmsg.testing.network import FaultyNetwork
from p2pmsg.testing.oracle import Book
from p2pmsg.testing.serving import send_replies, take_requests
from p2pmsg.testing.simulated_publisher import LOG_SEGMENT_BYTES, WALL_NS, SimulatedPublisher
from p2pmsg.testing.simulated_subscriber import SimulatedSubscriber
from recovery import StallGuard
from transports import MemoryRecoveryServer, MemorySender

if TYPE_CHECKING:
    from collections.abc import Sequence

_RETRY_NS = 2_000_000
_TRANSFER_MAX = 64


class SimulatedRelay(SimulatedSubscriber):
    """A relay; made by `Simulation.add_relay`. To its upstreams it is a subscriber.

    Attributes:
        endpoint: where subscribers connect to.
        relay: the core of its publishing side, or None while it is dead.
        forgot: whether a life of its ended without a log, or its buffer evicted something.

    """

    def __init__(
        self,
        name: str,
        network: FaultyNetwork,
        book: Book,
        upstreams: "Sequence[SimulatedPublisher | SimulatedRelay]",
        *,
        log: bool,
    ) -> None:
        options = network.options
        self.endpoint = f"memory://{name}"
        self.relay: RelayCore | None = None
        self.forgot = False
        self._disk: Any = import_log().MemoryStore() if log else None
        config = PublisherConfig()
        self._publishing = replace(
            config,
            queue_frames=options.queue_frames,
            on_full=options.on_full,
            stall_ms=options.stall_ms,
            replay=replace(config.replay, bytes_max=options.replay_bytes),
        )
        self._serve_ns = 0
        super().__init__(
            name, network, book, upstreams,
            topics=(), start="earliest", wait_for_repair=True, config=None,
        )  # fmt: skip

    def _make_config(self, config: SubscriberConfig) -> SubscriberConfig:
        """Give up a gap before the subscribers do, as `Relay` does; see `REPAIR_TIMEOUT_S`."""
        config = super()._make_config(config)
        nack = replace(config.nack, deadline_ms=config.nack.deadline_ms / 2)
        return replace(config, nack=nack)

    @property
    def evicted(self) -> bool:
        """Whether it forgot anything that it had received."""
        relay = self.relay
        full = relay is not None and self._disk is None and relay.replay.messages_evicted > 0
        return self.forgot or full

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits to be sent."""
        relay = self.relay
        return relay is not None and not (relay.outbox or relay.unsynced or relay.control)

    def _make_core(self) -> SubscriberCore:
        network, options = self._network, self._network.options
        self.recovery = at = f"{self.endpoint}.recovery.{self.crashes}"
        relay, now_ns = network.rng.getrandbits(64), network.clock.now_ns
        log, metadata = None, None
        if self._disk is not None:
            settings = import_log().LogConfig("log", segment_bytes=LOG_SEGMENT_BYTES)
            log = PublisherLog(
                settings, session=relay, wall_ns=WALL_NS + now_ns, store=self._disk
            )
            relay, metadata = log.session, RelayMetadata(self._disk)
        self.relay = RelayCore(
            name=self.name, relay=relay, recovery=at, config=self._publishing, now_ns=now_ns,
            log=log, metadata=metadata,
        )  # fmt: skip
        self._server = MemoryRecoveryServer(
            at, network=network.sockets, queue_frames=options.queue_frames
        )
        self._sender = MemorySender(
            self.endpoint, network=network.sockets, queue_frames=options.queue_frames,
            welcome=self.relay.welcome,
        )  # fmt: skip
        network.receivers[at] = self.pump
        self._guard = StallGuard(self._publishing.stall_ms)
        self._control_guard = StallGuard(self._publishing.stall_ms)
        core = SubscriberCore(
            topics=[],
            lines=len(self.places),
            start=self.start,
            subscriber=network.rng.getrandbits(64),
            name=self.name,
            config=self.config,
            wait_for_repair=True,
            rng=Random(network.rng.getrandbits(64)),
            now_ns=now_ns,
            cursor=Resumption(self.relay),
            relay=relay,
        )
        self._transfer = Transfer(core, self.relay)
        return core

    def crash(self) -> None:
        """Die without a word; what it has in memory is gone."""
        if self.core is None:
            return
        self.forgot |= self.evicted or self._disk is None
        super().crash()
        if self._disk is not None:
            self._disk.kill()
        self.relay = None
        self._sender.close()
        self._server.close()

    def crash_and_cut(self, byte_count: int) -> None:
        """Die, and have so many bytes cut off the newest segment of the log."""
        self.crash()
        assert self._disk is not None
        for name in sorted(n for n in self._disk.names() if n.endswith(".log"))[-1:]:
            self._disk.write(name, self._disk.read(name)[:-byte_count])
        self.forgot = True
        self._network.note(f"the log of {self.name} is {byte_count} bytes shorter")

    def pump(self) -> None:
        """Do one round of I/O at both sides."""
        super().pump()
        relay = self.relay
        if relay is None:
            return
        now_ns = self._network.clock.now_ns
        self._transfer.note_sessions(now_ns=now_ns)
        if len(relay.outbox) < _TRANSFER_MAX:
            relay.handle_timer(now_ns=now_ns)
        self._serve(relay, now_ns)
        log = relay.log
        due_ns = None if log is None else log.next_deadline_ns(now_ns=now_ns)
        is_due = due_ns is not None and due_ns <= now_ns
        if log is not None and is_due and log.sync(nullcontext()):
            relay.frames_synced(len(relay.unsynced))
        self._try_send(relay)
        waits, guard = bool(relay.outbox), self._control_guard
        send_some(relay.control, self._sender, guard, data_waits=waits, now_ns=now_ns)
        self._serve_later(relay)

    def _read_frame(self, core: SubscriberCore, data: bytes, now_ns: int) -> bool:
        """Return False: a relay has no fast path."""
        return False

    def _read(self, core: SubscriberCore, now_ns: int) -> int:
        """Move what is ready to the publishing side."""
        relay = self.relay
        if relay is None or len(relay.outbox) >= _TRANSFER_MAX:
            return 0
        moved = self._transfer.transfer(
            now_ns=now_ns, wall_ns=WALL_NS + now_ns, count_max=_TRANSFER_MAX
        )
        self._try_send(relay)
        return moved

    def _check_exit(self, core: SubscriberCore) -> None:
        if wrong := self.reader.miscounted():
            self._book.complain(f"{self.name}: {wrong}")

    def check_streams(self) -> None:
        """Do nothing: it has no application to compare with."""

    def _note_joins(self, core: SubscriberCore) -> None:
        """Do nothing, as `check_streams`."""

    def _try_send(self, relay: RelayCore) -> None:
        now_ns = self._network.clock.now_ns
        while relay.outbox:
            if self._sender.send(relay.outbox[0]):
                self._guard.succeeded(now_ns=now_ns)
            elif self._publishing.on_full == "block" and self._guard.blocked(now_ns=now_ns) > 0:
                return
            else:
                self._sender.send_shedding(relay.outbox[0])
            relay.outbox.popleft()

    def _serve(self, relay: RelayCore, now_ns: int) -> None:
        take_requests(self._server, relay.requests, now_ns=now_ns)
        send_replies(self._server, relay.requests, now_ns=now_ns)

    def _serve_later(self, relay: RelayCore) -> None:
        now_ns = self._network.clock.now_ns
        due = [relay.requests.next_deadline_ns(now_ns=now_ns), relay.next_deadline_ns()]
        if relay.log is not None:
            due.append(relay.log.next_deadline_ns(now_ns=now_ns))
        if relay.outbox or relay.control:
            due.append(now_ns + _RETRY_NS)
        time_ns = min(max(each, now_ns + 1) for each in due if each is not None)
        if self._serve_ns <= now_ns or time_ns < self._serve_ns:
            self._serve_ns = time_ns
            self._network.at(time_ns, self._serve_again, relay, time_ns)

    def _serve_again(self, relay: RelayCore, time_ns: int) -> None:
        if relay is self.relay and time_ns == self._serve_ns:
            self._serve_ns = 0
            self.pump()
