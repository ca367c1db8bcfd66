"""A publisher in the simulator: the real core, driven as the threaded shell drives it."""

from dataclasses import replace
from typing import Any

from p2pmsg.config import PublisherConfig
from p2pmsg.multicast.sender import MulticastSender
from p2pmsg.publisher.core import PublisherCore
from p2pmsg.publisher.log import PublisherLog
from p2pmsg.subscriber.core import SubscriberCore
from p2pmsg.testing.network import FaultyNetwork
from p2pmsg.testing.oracle import Accepted, History
from p2pmsg.testing.simulated_sending import WALL_NS, ServingSide
from recovery.log import LogConfig, MemoryStore

LOG_SEGMENT_BYTES = 64 * 1024


class SimulatedPublisher:
    """A publisher; made by `Simulation.add_publisher`.

    Attributes:
        name: of the publisher, through all its incarnations.
        endpoint: where subscribers connect to.
        recovery: where its current incarnation answers requests.
        core: the real core, or None while it is dead.
        crashes: how often it died.
        system_crashes: how often the operating system died with it.
        is_gone: whether it died and will not return.
        disk: where its log is; None without one.
        is_rewound: set it where the log was shortened while it was dead.
        evicted: whether a replay buffer of its forgot anything that no log has.

    """

    def __init__(
        self, name: str, network: FaultyNetwork, history: History, config: PublisherConfig | None
    ) -> None:
        options = network.options
        self.name = name
        self.endpoint = f"memory://{name}"
        self.core: PublisherCore | None = None
        self.crashes = self.system_crashes = 0
        self.is_gone = False
        self.disk = MemoryStore() if options.log else None
        self.topics = [f"{name}-topic-{index}" for index in range(options.topics)]
        self._network = network
        self._history = history
        self._config = config or options.publisher
        self._publishing = True
        self.is_rewound = False
        self._synced: dict[tuple[int, str], int] = {}
        self._last_session: int | None = None
        self._wake_ns = 0
        self._evicted_before = False
        self.start()
        self._publish_later()

    @property
    def session(self) -> int | None:
        """The session of the current incarnation, or None while it is dead."""
        return None if self.core is None else self.core.session

    @property
    def multicast(self) -> MulticastSender | None:
        """The multicast's part of the protocol in the current incarnation, if there is one."""
        return None if self.core is None or self._side.group is None else self._side.group.multicast

    @property
    def evicted(self) -> bool:
        """Whether any of its incarnations has forgotten something."""
        core = self.core
        evicts = core is not None and core.replay.messages_evicted > 0
        return self.disk is None and (self._evicted_before or evicts)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits to be sent, or to be confirmed."""
        core = self.core
        if core is None:
            return self.is_gone
        keys = None if self.multicast is None else self.multicast.keys
        if keys is not None and not keys.is_drained:
            return False
        return not (core.outbox or core.unsynced or core.open_batches or core.control)

    def is_read_by(self, subscriber: SubscriberCore) -> bool:
        """Whether a subscriber has the key that it seals with, if it seals."""
        keys = None if self.multicast is None else self.multicast.keys
        if keys is None or self.session is None:
            return True
        member = subscriber.multicast
        held = None if member is None else member.keys
        return held is not None and keys.group.secret.id in held.keyring.ids(self.session)

    def start(self) -> None:
        """Start, as a new session or in that of its log."""
        if self.core is not None or self.is_gone:
            return
        network = self._network
        self.recovery = at = f"{self.endpoint}.recovery.{self.crashes}"
        options = network.options
        session, now_ns = network.rng.getrandbits(64), network.clock.now_ns
        log: PublisherLog | None = None
        if self.disk is not None:
            log = self._open_log(session)
            session = log.session
            if self._last_session not in (None, session):
                self._history.ended.add(self._last_session)
            self._last_session = session
        self.core = PublisherCore(
            name=self.name, session=session, recovery=at, config=self._config, now_ns=now_ns,
            log=log, incarnation=1 + self.crashes,
            heartbeats_per_s=options.heartbeats_per_s,
        )  # fmt: skip
        if log is not None:
            for topic in self.topics:
                acknowledged = self._synced.get((session, topic), 0) if log.syncs_first else None
                rewound, following = self.is_rewound, log.next(topic)
                self._history.go_on(session, topic, following, acknowledged, rewound=rewound)
            self.is_rewound = False
        network.note(f"{self.name} starts {self.core.session:016x}")
        self._side = ServingSide(self.core, self.endpoint, at, self._config, network, self.pump)
        self._schedule()

    def take_forged(self, data: bytes) -> None:
        """Take a datagram that a stranger sent."""
        if self.core is not None and self._side.group is not None:
            self._side.group.take_forged(data, self._network.clock.now_ns)
            self.pump()

    def rotate_keys(self) -> None:
        """Begin to seal with another key."""
        if self.multicast is not None and self.multicast.keys is not None:
            self._network.note(f"{self.name} rotates its keys")
            self.multicast.keys.rotate(now_ns=self._network.clock.now_ns)
            self.pump()

    def leave_for_good(self) -> None:
        """Crash, never to come back; its log is gone, too."""
        if self.core is not None:
            self._history.ended.add(self.core.session)
        self.crash()
        self.is_gone = True

    def crash(self) -> None:
        """Crash; what was on its way is lost."""
        core = self.core
        if core is None:
            return
        network = self._network
        for topic, head in core.heads().items():
            self._history.kept[core.session, topic] = head
        if self.disk is None:
            network.note(f"{self.name} crashes")
            self._history.ended.add(core.session)
        elif network.rng.random() < network.options.system_crashes:
            network.note(f"{self.name} crashes with its system")
            self.system_crashes += 1
            self.disk.crash()
        else:
            network.note(f"{self.name} crashes, and its log stays")
            self.disk.kill()
        self._evicted_before = self.evicted
        self.crashes += 1
        self.core = None
        self._side.close()

    def _open_log(self, session: int) -> PublisherLog:
        options = self._network.options
        config = LogConfig("log", segment_bytes=LOG_SEGMENT_BYTES, fsync=options.fsync)
        return PublisherLog(
            config, session=session, wall_ns=WALL_NS + self._network.clock.now_ns,
            store=self.disk, slot_bytes=self._config.full_bytes,
        )  # fmt: skip

    def publish_again(self) -> None:
        """Go on publishing after `stop_publishing`."""
        self._publishing = True
        self._publish_later()

    def stop_publishing(self) -> None:
        """Publish nothing from now on."""
        self._publishing = False

    def close(self) -> None:
        """Begin to close: flush, and wait for the subscribers; `is_complete` says when."""
        self._publishing = False
        if self.core is not None:
            self._network.note(f"{self.name} closes")
            self.core.begin_close(now_ns=self._network.clock.now_ns)
            self.pump()

    @property
    def is_complete(self) -> bool:
        """Whether everything has left, and every subscriber known says that it has everything."""
        return self.core is not None and self.core.is_complete

    def publish(self, topic: str, count: int = 1) -> None:
        """Publish `count` random messages, as one call."""
        core, network = self.core, self._network
        if core is None or not self._has_space(core):
            return
        now_ns = network.clock.now_ns
        rng = network.rng
        bytes_max = int(network.options.bytes_max)
        sequence = core.replay.next(topic)
        if topic in core.open_batches:
            sequence += core.open_batches[topic].count
        messages = [self._message(sequence + index, bytes_max) for index in range(count)]
        if count == 1:
            message = messages[0]
            self.accept(topic, message.value, message.key, message.timestamp_ns, message.headers)
            return
        self._publish_many(core, topic, messages, keyed=rng.random() < 0.5)
        self._side.send_outbox(now_ns)
        self._schedule()

    def accept(
        self,
        topic: str,
        value: Any,
        key: str | None = None,
        timestamp_ns: int | None = None,
        headers: dict[str, Any] | None = None,
    ) -> int:
        """Publish this message, whether there is space or not, and return its sequence."""
        core, now_ns = self.core, self._network.clock.now_ns
        assert core is not None
        sequence = core.publish(
            topic, value, key, timestamp_ns, headers, now_ns=now_ns, wall_ns=WALL_NS + now_ns
        )
        message = Accepted(value, key, timestamp_ns, headers, now_ns)
        self._history.accept(core.session, topic, sequence, message)
        self._side.send_outbox(now_ns)
        self._schedule()
        return sequence

    def pump(self) -> None:
        """Do what is due: timers, requests, replies, sending."""
        core = self.core
        if core is None:
            return
        now_ns = self._network.clock.now_ns
        if self._side.pump(now_ns):
            for topic, (_, following) in core.heads().items():
                self._synced[core.session, topic] = following
        self._schedule()

    def _publish_later(self) -> None:
        rate = self._network.options.messages_per_s
        if rate and self._publishing:
            self._network.after_chance(rate, self._publish_some)

    def _publish_some(self) -> None:
        if not self._publishing:
            return
        rng, core = self._network.rng, self.core
        if core is not None and core.outbox and self._config.on_full == "block":
            # The application is held up by a slow subscriber.
            self._network.after(0.001, self._publish_some)
            return
        topic = self.topics[int(rng.random() * len(self.topics))]
        draw = rng.random()
        if draw < 0.1:
            self.publish(topic, 2 + int(rng.random() * 8))
        elif draw < 0.3:  # a burst: it shares a frame
            for _ in range(3):
                self.publish(topic)
        else:
            self.publish(topic)
        self._publish_later()

    def _publish_many(
        self, core: PublisherCore, topic: str, messages: list[Accepted], *, keyed: bool
    ) -> None:
        wall_ns = WALL_NS + self._network.clock.now_ns
        values = [message.value for message in messages]
        keys = [message.key for message in messages] if keyed else None
        at = 0
        while at < len(values):
            now_ns = self._network.clock.now_ns
            taken = core.publish_many(
                topic, values, keys, None, at, now_ns=now_ns, wall_ns=wall_ns, count=64
            )
            last = core.replay.next(topic)
            for index in range(taken):
                message = replace(messages[at + index], timestamp_ns=None, headers=None)
                if not keyed:
                    message = replace(message, key=None)
                self._history.accept(core.session, topic, last - taken + index, message)
            at += taken

    def _message(self, sequence: int, bytes_max: int) -> Accepted:
        rng = self._network.rng
        now_ns = self._network.clock.now_ns
        draw = rng.random()
        value: Any = sequence.to_bytes(8, "big") + bytes(int(rng.random() * bytes_max))
        if draw < 0.1:
            value = {"sequence": sequence, "price": draw}
        elif draw < 0.2:
            value = [sequence, None, "é", draw]
        return Accepted(
            value=value,
            key=f"k{sequence % 5}" if rng.random() < 0.3 else None,
            timestamp_ns=WALL_NS + now_ns - sequence if rng.random() < 0.2 else None,
            headers={"n": sequence} if rng.random() < 0.1 else None,
            at_ns=now_ns,
        )

    def _has_space(self, core: PublisherCore) -> bool:
        if not core.outbox or self._config.on_full != "raise":
            return True
        return self._side.send_outbox(self._network.clock.now_ns)

    def _schedule(self) -> None:
        core, now_ns = self.core, self._network.clock.now_ns
        if core is None:
            return
        time_ns = self._side.next_deadline_ns(now_ns)
        if time_ns is None:
            return
        time_ns = max(time_ns, now_ns)
        if self._wake_ns <= now_ns or time_ns < self._wake_ns:
            self._wake_ns = time_ns
            self._network.at(time_ns, self._wake, time_ns)

    def _wake(self, time_ns: int) -> None:
        if time_ns == self._wake_ns:
            self._wake_ns = 0
            self.pump()
