"""A subscriber in the simulator: the real peer, and an application that checks what it gets."""

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from random import Random
from typing import Any, Final, Protocol

import transports
from p2pmsg import Subscriber
from p2pmsg.config import SubscriberConfig
from p2pmsg.driver.peer import Peer
from p2pmsg.errors import LossReport
from p2pmsg.message import MessageBatch
from p2pmsg.peers.subscriber import Settings, SubscriberPeer
from p2pmsg.subscriber.core import SubscriberCore
from p2pmsg.subscriber.sessions import Session, Stream
from p2pmsg.subscriber.typed import UNTYPED
from p2pmsg.testing.network import FaultyNetwork
from p2pmsg.testing.oracle import History, Oracle, StreamKey
from p2pmsg.testing.simulated_cursor import SimulatedCursor
from p2pmsg.testing.simulated_process import SimulatedDriver, SimulatedProcess
from p2pmsg.testing.simulated_publisher import SimulatedPublisher
from p2pmsg.testing.simulated_reader import SimulatedReader
from p2pmsg.toolkit import GapPolicy, matches, parse_start
from recovery import Loss, Rewound
from recovery.checks import to_ns
from recovery.nack import GAPS_MAX

_CHECK_EVERY: Final = 64
"""After how many turns the ledgers are compared with what the application saw."""
_INTERRUPTS: Final = 0.005
"""Part of the application's calls that are interrupted."""
_LOOK_AGAIN_S: Final = 0.0005
_COMMITS_PER_S: Final = 50.0
_FRAME_BYTES_MAX: Final = 64 * 1024


class Place(Protocol):
    """What a subscriber connects to: a publisher or a relay."""

    name: str
    endpoint: str


class WatchedPolicy(GapPolicy):
    """A policy for gaps by which the application hears of every loss, whatever else is done.

    Args:
        policy: says what is done.
        on_loss: gets each `LossReport`.

    """

    def __init__(self, policy: GapPolicy, on_loss: Callable[[LossReport], object]) -> None:
        self.any_conflates, self.any_skips = policy.any_conflates, policy.any_skips
        self.callables = []
        self.skips, self.conflates = policy.skips, policy.conflates  # type: ignore[method-assign]
        self._on_loss = on_loss

    def of(self, topic: str) -> Any:
        """Return what reports a loss of any topic."""
        return self._on_loss


class _Face(Subscriber[Any]):
    """What the application of one incarnation receives by."""

    def __init__(self, peer: SubscriberPeer, driver: SimulatedDriver) -> None:
        self._peer, self._driver = peer, driver
        self._on_open()


class SimulatedSubscriber(SimulatedProcess[SubscriberPeer]):
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
        self,
        name: str,
        network: FaultyNetwork,
        history: History,
        publishers: Sequence[Place],
        *,
        topics: Sequence[str] = (),
        start: str | int | datetime = "latest",
        config: SubscriberConfig | None = None,
        policy: GapPolicy | None = None,
    ) -> None:
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
        self.joins: dict[StreamKey, tuple[int, int]] = {}
        self.whole: set[int] = set()
        self.joined: set[int] = set()
        self.cursor: SimulatedCursor | None = None
        if network.options.cursor:
            self.cursor = SimulatedCursor(name, network, history)
        self._commit_later()
        self.revive()

    @property
    def core(self) -> SubscriberCore | None:
        """The engine, or None while it is dead."""
        return None if self.peer is None else self.peer.core

    def revive(self) -> None:
        """Start: where the cursor says, or as one that knows nothing of the former one."""
        if self.peer is not None or self.is_gone:
            return
        network, cursor = self._network, self.cursor
        deadline_ns = to_ns(self.config.repair_timeout)
        if len(self.publishers) < len(self.sources):
            deadline_ns //= 2  # a relay gives up before its subscribers do
        is_latest = self.policy.any_conflates
        self.oracle = Oracle(self.name, self._history, deadline_ns, conflate=is_latest)
        self._rewound: Counter[StreamKey] = Counter()
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

    def crash(self) -> None:
        """Crash."""
        if self.core is None:
            return
        self._on_joins(self.core)  # it may die as it writes down that it has joined
        self._network.note(f"{self.name} crashes")
        super().crash()
        if self.cursor is not None:
            self.cursor.crash()

    def take_forged(self, place: SimulatedPublisher, data: bytes, *, spoofed: bool) -> None:
        """Take a datagram that a stranger sent to the group of a publisher."""
        self.host.take_forged(data, spoofed=spoofed, endpoint=place.endpoint)
        self.pump()

    def cut(self, line: int, *, recovery: bool) -> None:
        """Cut a connection of the data path, and the recovery channels too; they come back."""
        if self.core is None:
            return
        self._network.note(f"{self.name} is cut from {line}, recovery {recovery}")
        self.host.cut(line, recovery=recovery)
        self.pump()

    def stop_reading(self, seconds: float) -> None:
        """Let the application take nothing for a while."""
        self._stopped_until_ns = self._network.clock.now_ns + to_ns(seconds)
        self._network.at(self._stopped_until_ns, self._read)

    def stop_process(self, seconds: float) -> None:
        """Let the whole process do nothing for a while."""
        until_ns = self._network.clock.now_ns + to_ns(seconds)
        self._frozen_until_ns = max(self._frozen_until_ns, until_ns)
        if self.host.driver is not None:
            self.host.driver.freeze(self._frozen_until_ns)
        self._network.at(self._frozen_until_ns, self._read)

    @property
    def is_frozen(self) -> bool:
        """Whether the whole process stands still."""
        return self._network.clock.now_ns < self._frozen_until_ns

    def hurry(self) -> None:
        """Read as fast as frames come, from now on."""
        self._hurried = True
        self._stopped_until_ns = self._frozen_until_ns = 0
        if self.host.driver is not None:
            self.host.driver.thaw()
        self.pump()
        self._read()

    def hand_over(self, stream: Stream, output: MessageBatch | Loss) -> None:
        """Give the application what comes next; a test may put something else in its place."""
        if self.cursor is not None:
            self.cursor.take(stream, output)
        self.oracle.take(stream, output, now_ns=self._network.clock.now_ns)

    @property
    def streams(self) -> list[Stream]:
        """The streams of the current incarnation."""
        return [] if self.core is None else self.core.streams

    def wants(self, topic: str) -> bool:
        """Whether it takes a topic."""
        return matches(topic, self.topics or ["*"])

    def hears(self, publisher: Place) -> bool:
        """Whether the data path from a publisher, or a relay, works."""
        return not self._network.is_one_way(publisher.name, self.name)

    def peer_of(self, publisher: SimulatedPublisher) -> Session | None:
        """Return what is known of the publisher's current incarnation."""
        if self.core is None or publisher.session is None:
            return None
        return self.core.peers.get(publisher.session)

    # ------------------------------------------------------------------ the application

    def _wait(self) -> None:
        """Wait for messages, as a thread does in `receive`; or look for them a little later."""
        peer, driver = self.peer, self.host.driver
        if peer is None or driver is None or self._is_waiting:
            return
        self._is_waiting = True
        if self.reader.waits():
            driver.begin(peer.fill(None, None, self.reader.count_max()), self._filled)
        else:
            self._network.after(_LOOK_AGAIN_S, self._look, peer)

    def _filled(self, report: Callable[[], object] | None) -> None:
        if report is not None:
            report()
        self._look(self.peer)

    def _look(self, peer: Peer | None) -> None:
        if peer is self.peer:
            self._is_waiting = False
            self._read()

    def _read(self) -> None:
        """Read all that is ready, if the application does read now, and wait for more."""
        is_stopped = self._network.clock.now_ns < self._stopped_until_ns
        if self._is_waiting or self.is_frozen or is_stopped:
            return
        while self.peer is not None and not self._is_resting and self.reader.read():
            pass
        if not self._is_resting:
            self._wait()

    def _read_on(self, peer: Peer) -> None:
        if peer is self.peer:
            self._is_resting = False
            self._read()

    def _on_loss(self, report: LossReport) -> None:
        self._deliver(report.session, report.topic, report.loss)

    def _deliver_batch(self, batch: MessageBatch) -> None:
        self._deliver(batch.session, batch.topic, batch)

    def _deliver(self, session: int, topic: str, output: MessageBatch | Loss) -> None:
        stream = self._stream_of(session, topic)
        self._rewound[session, topic] += isinstance(output, Rewound)
        self._network.note(f"{self.name} reads {topic} {_describe(output)}")
        self.hand_over(stream, output)
        seconds = 0.0 if self._hurried else self._network.options.read_time
        if seconds and not self._is_resting:
            self._is_resting = True
            self._network.after(seconds, self._read_on, self.peer)

    def _stream_of(self, session: int, topic: str) -> Stream:
        """Return the stream that something is of: the first one, until it is said to be rewound."""
        assert self.core is not None
        peer = self.core.peers[session]
        streams = [one for one in peer.former if one.topic == topic]
        if topic in peer.streams:
            streams.append(peer.streams[topic])
        return streams[min(self._rewound[session, topic], len(streams) - 1)]

    def commit(self) -> None:
        """Commit everything that the application got, durably."""
        if self.cursor is not None:
            self.cursor.commit(self.streams, all_of_it=True)

    def _commit_later(self) -> None:
        if self.cursor is not None:
            self._network.after_chance(_COMMITS_PER_S, self._commit_some)

    def _commit_some(self) -> None:
        if self.cursor is not None and not self._hurried:
            if not self.is_frozen:
                self.cursor.commit(self.streams)
            self._commit_later()

    # --------------------------------------------------------------------------- checks

    def _on_turn(self) -> None:
        core = self.core
        if core is None:
            return
        if self.cursor is not None:
            self.cursor.look(core)
        self._on_joins(core)
        self._turns += 1
        if self._turns % _CHECK_EVERY == 0:
            self.check_streams()

    def _on_joins(self, core: SubscriberCore) -> None:
        """Remember where the streams stood when a session was joined."""
        for publisher in self.publishers:
            if publisher.peer is None or (session := publisher.peer.core.session) in self.joined:
                continue
            peer = core.peers.get(session)
            if peer is not None and peer.joined:
                self.joined.add(session)
                met = set() if self.cursor is None else self.cursor.met
                if peer.start == parse_start(0) or publisher.endpoint in met:
                    self.whole.add(session)
                for topic, head in publisher.peer.core.heads().items():
                    self.joins[session, topic] = head

    def check_streams(self) -> None:
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


def _describe(output: MessageBatch | Loss) -> str:
    if isinstance(output, Loss):
        return f"lost {output.start} {output.stop} {output.reason.value}"
    return f"{output.sequence} {len(output)}"
