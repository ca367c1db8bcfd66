"""A publisher in the simulator: the real peer, and an application that publishes at random."""

from dataclasses import replace

from p2pmsg import Publisher
from p2pmsg.errors import SendQueueFullError
from p2pmsg.peers.network import on
from recovery.log import LogConfig
from tests.simulation.simulator.oracle import Accepted
from tests.simulation.simulator.process import SimulatedProcess

LOG_SEGMENT_BYTES = 64 * 1024
_CLOSE_S = 60.0


class SimulatedPublisher(SimulatedProcess):
    """A publisher; made by `Simulation.add_publisher`.

    Attributes:
        endpoint: where subscribers connect to.
        system_crashes: how often the operating system died with it.
        is_rewound: set it where the log was shortened while it was dead.

    """

    def __init__(self, name, network, history, config):
        super().__init__(name, network, history)
        options = network.options
        self.endpoint = self.host.publishing_endpoint(multicast=bool(options.multicast))
        self.system_crashes = 0
        self.topics = [f"{name}-topic-{index}" for index in range(options.topics)]
        self.is_rewound = False
        self._config = config or options.publisher
        if options.multicast == "signed":
            multicast = replace(self._config.multicast, source="signed")
            self._config = replace(self._config, multicast=multicast)
        self._publishing = True
        self._recovery = ""
        self._synced = {}
        self._last_session = None
        self._evicted_before = False
        log = LogConfig("log", segment_bytes=LOG_SEGMENT_BYTES, fsync=options.fsync)
        self._options = {
            "name": name,
            "log": log if options.log else None,
            "config": self._config,
            "security": network.security,
            "recovery_endpoint": f"memory://{name}.recovery",
        }
        self.start()
        self._publish_later()

    @property
    def core(self):
        """The engine, or None while it is dead."""
        driver = self.host.driver
        return None if driver is None else driver.peer.core

    @property
    def disk(self):
        """Where its log is; None without one."""
        return self.host.disk if self._network.options.log else None

    @property
    def recovery(self):
        """Where its current incarnation answers requests, or the last one did."""
        return self._recovery

    @property
    def session(self):
        """The session of the current incarnation, or None while it is dead."""
        return None if self.core is None else self.core.session

    @property
    def multicast(self):
        """The multicast's part of the protocol in the current incarnation, if there is one."""
        return None if self.core is None else self.core.multicast

    @property
    def evicted(self):
        """Whether a replay buffer of any incarnation has forgotten what no log has."""
        core = self.core
        evicts = core is not None and core.replay.messages_evicted > 0
        return self.disk is None and (self._evicted_before or evicts)

    @property
    def is_idle(self):
        """Whether nothing waits to be sent, or to be confirmed."""
        core = self.core
        if core is None or self.peer is None:
            return self.is_gone
        keys = None if self.multicast is None else self.multicast.keys
        if keys is not None and not keys.is_drained:
            return False
        waits = self.peer.outgoing.waits or core.unsynced or core.open_batches or core.control
        return not waits

    def is_read_by(self, subscriber):
        """Whether a subscriber has the key that it seals with, if it seals."""
        keys = None if self.multicast is None else self.multicast.keys
        if keys is None or self.session is None:
            return True
        member = subscriber.multicast
        held = None if member is None else member.keys
        return held is not None and keys.group.secret.id in held.keyring.ids(self.session)

    def start(self):
        """Start, as a new session or in that of its log."""
        if self.peer is not None or self.is_gone:
            return
        with on(self.host):
            self._face = Publisher(self.endpoint, **self._options)
        core = self.peer.core
        self._recovery = self.peer.server.endpoint
        self._network.note(f"{self.name} starts {core.session:016x}")
        if self.multicast is not None and (keys := self.multicast.keys) is not None:
            self._network.secrets.append(lambda: keys.group.secret)
        if (log := core.log) is None:
            return
        if self._last_session not in (None, core.session):
            self._history.ended.add(self._last_session)
        self._last_session = core.session
        for topic in self.topics:
            acknowledged = self._synced.get((core.session, topic), 0) if log.syncs_first else None
            rewound, following = self.is_rewound, log.next(topic)
            self._history.go_on(core.session, topic, following, acknowledged, rewound=rewound)
        self.is_rewound = False

    def take_forged(self, data):
        """Take a datagram that a stranger sent."""
        multicast = self.multicast
        if multicast is not None:
            nacks = multicast.nacks
            self.host.take_forged(data)
            self.pump()
            self._network.answered_bytes += multicast.nacks - nacks

    def rotate_keys(self):
        """Begin to seal with another key."""
        if self.multicast is not None and self.multicast.keys is not None:
            self._network.note(f"{self.name} rotates its keys")
            self._face.rotate_keys()
            self.pump()

    def leave_for_good(self):
        """Crash, never to come back; its log is gone, too."""
        if self.core is not None:
            self._history.ended.add(self.core.session)
        super().leave_for_good()

    def crash(self):
        """Crash; what was on its way is lost."""
        core = self.core
        if core is None:
            return
        network = self._network
        for topic, head in core.heads().items():
            self._history.kept[core.session, topic] = head
        self._evicted_before = self.evicted
        super().crash()
        if self.disk is None:
            network.note(f"{self.name} crashes")
            self._history.ended.add(core.session)
        elif network.rng.random() < network.options.system_crashes:
            network.note(f"{self.name} crashes with its system")
            self.system_crashes += 1
            self.disk.crash()
        else:
            network.note(f"{self.name} crashes, and its log stays")

    def publish_again(self):
        """Go on publishing after `stop_publishing`."""
        self._publishing = True
        self._publish_later()

    def stop_publishing(self):
        """Publish nothing from now on."""
        self._publishing = False

    def close(self):
        """Begin to close: flush, and wait for the subscribers; `is_complete` says when."""
        self._publishing = False
        if self.peer is not None and self.host.driver is not None:
            self._network.note(f"{self.name} closes")
            self.host.driver.begin(self.peer.close(_CLOSE_S, is_through=bool))
            self.host.driver.wake()

    @property
    def is_complete(self):
        """Whether everything has left, and every subscriber known says that it has everything."""
        return self.core is not None and self.core.is_complete

    def publish(self, topic, count=1):
        """Publish `count` random messages, as one call."""
        core, rng = self.core, self._network.rng
        if core is None:
            return
        sequence = core.replay.next(topic)
        if topic in core.open_batches:
            sequence += core.open_batches[topic].count
        messages = [self._message(sequence + index) for index in range(count)]
        if count > 1:
            self._publish_many(core, topic, messages, keyed=rng.random() < 0.5)
            return
        message = messages[0]
        try:
            self.accept(topic, message.value, message.key, message.timestamp_ns, message.headers)
        except SendQueueFullError:
            return

    def accept(self, topic, value, key=None, timestamp_ns=None, headers=None):
        """Publish this message, and return its sequence."""
        core = self.core
        sequence = self._face.publish(topic, value, key, timestamp_ns, headers)
        message = Accepted(value, key, timestamp_ns, headers, self.host.now_ns())
        self._history.accept(core.session, topic, sequence, message)
        return sequence

    def _on_turn(self):
        core = self.core
        if core is not None and core.log is not None and not core.unsynced:
            for topic, (_, following) in core.heads().items():
                self._synced[core.session, topic] = following

    def _publish_later(self):
        rate = self._network.options.messages_per_s
        if rate and self._publishing:
            self._network.after_chance(rate, self._publish_some)

    def _publish_some(self):
        if not self._publishing:
            return
        rng, peer = self._network.rng, self.peer
        if peer is not None and peer.outgoing.waits and self._config.on_full == "block":
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

    def _publish_many(self, core, topic, messages, *, keyed):
        values = [message.value for message in messages]
        keys = [message.key for message in messages] if keyed else None
        try:
            first, last = self._face.publish_many(topic, values, keys)
        except SendQueueFullError as error:
            count = int(error.__notes__[-1].split()[0])
            last = core.replay.next(topic) - 1
            first = last - count + 1
        for message, sequence in zip(messages, range(first, last + 1), strict=False):
            plain = replace(message, timestamp_ns=None, headers=None)
            accepted = plain if keyed else replace(plain, key=None)
            self._history.accept(core.session, topic, sequence, accepted)

    def _message(self, sequence):
        rng, bytes_max = self._network.rng, self._network.options.bytes_max
        draw = rng.random()
        value = sequence.to_bytes(8, "big") + bytes(int(rng.random() * bytes_max))
        if draw < 0.1:
            value = {"sequence": sequence, "price": draw}
        elif draw < 0.2:
            value = [sequence, None, "é", draw]
        return Accepted(
            value=value,
            key=f"k{sequence % 5}" if rng.random() < 0.3 else None,
            timestamp_ns=self.host.wall_ns() - sequence if rng.random() < 0.2 else None,
            headers={"n": sequence} if rng.random() < 0.1 else None,
            at_ns=self.host.now_ns(),
        )
