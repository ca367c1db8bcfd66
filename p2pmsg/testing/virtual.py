"""A network in memory for users' tests: real cores, a clock moved by hand, faults by a seed.

The fixture `p2pmsg_network` of the pytest plugin is one of these.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from random import SystemRandom
from typing import Any, Final

from p2pmsg.checks import at_least, check, whole
from p2pmsg.config import OnGap, PublisherConfig, SubscriberConfig
from p2pmsg.errors import (
    ClosedError,
    LossReport,
    MessagesLostError,
    RewoundReport,
    SessionRewoundError,
)
from p2pmsg.message import Message, MessageBatch
from p2pmsg.publisher.core import PublisherCore
from p2pmsg.stats import SubscriberStats
from p2pmsg.subscriber.policy import GapPolicy
from p2pmsg.sync.lifecycle import ClosesAtOnce
from p2pmsg.testing.clock import ManualClock
from p2pmsg.testing.options import NetworkOptions
from p2pmsg.testing.simulated_publisher import SimulatedPublisher
from p2pmsg.testing.simulated_subscriber import SimulatedSubscriber
from p2pmsg.testing.simulation import Simulation
from recovery import Loss, Rewound

ENDLESS_S: Final = 60.0
"""How long is waited, by the network's clock, where a real peer would wait without end."""
_SETTLE_S: Final = 60.0
_QUEUE_FRAMES: Final = 1000
_CLOSE_S: Final = 5.0
_SEED_MAX: Final = 2**32


class VirtualNetwork:
    """Publishers and subscribers in one thread, on a network in memory whose clock stands still.

    ::

        network = VirtualNetwork(lossy=0.05, seed=7)
        prices = network.publisher()
        screen = network.subscriber(prices, topics=["prices"])
        prices.wait_for_subscribers(1)
        prices.publish("prices", 61_685.99)
        network.advance(0.5)
        assert screen.receive().value == 61_685.99

    The protocol is the real one: what is lost is asked for again and repaired. Nothing happens, and
    no time passes, but in `advance`, `settle`, and calls with a timeout, which move the clock as
    far as they have to. The same seed and the same calls give the same run.

    Args:
        seed: of all chance, from 0 to 2**32 - 1. Default: drawn; `seed` has it.
        lossy: part of the frames that are lost, from 0.0 to 1.0, repairs included. Default 0.0.
        reordering: part of the frames that others may overtake, from 0.0 to 1.0. Default 0.0.
        duplication: part of the frames that arrive twice, from 0.0 to 1.0. Default 0.0.
        delay: how long a frame takes, in seconds: one number, or the shortest and the longest, in
            which case each takes its own. Default 0.0001 to 0.001, as in a local network.
        repair_timeout: how long a subscriber waits for a repair without progress, in seconds, until
            it reports a loss. Default 10.0.
        log: whether publishers have a log, and so go on in the same session after `crash`. Default
            False.

    Raises:
        ConfigError: an argument is out of its limits.

    Attributes:
        seed: of this run; `VirtualNetwork(seed=…)` repeats it.
        publishers, subscribers: what was made here, in order.

    """

    def __init__(
        self,
        seed: int | None = None,
        *,
        lossy: float = 0.0,
        reordering: float = 0.0,
        duplication: float = 0.0,
        delay: float | tuple[float, float] = (0.0001, 0.001),
        repair_timeout: float = 10.0,
        log: bool = False,
    ) -> None:
        self.seed = SystemRandom().randrange(_SEED_MAX) if seed is None else seed
        whole("seed", self.seed, 0)
        check("seed", self.seed, self.seed < _SEED_MAX, "below 2**32")
        for name, part in (
            ("lossy", lossy), ("reordering", reordering), ("duplication", duplication),
        ):  # fmt: skip
            at_least(name, part, 0)
            check(name, part, part <= 1, "at most 1")
        shortest, longest = delay if isinstance(delay, tuple) else (delay, delay)
        at_least("delay", shortest, 0)
        at_least("delay", longest, shortest)
        at_least("repair_timeout", repair_timeout, 0.001)
        options = NetworkOptions(
            seed=self.seed,
            loss=lossy,
            reordering=reordering,
            duplication=duplication,
            delay_min=shortest,
            delay_max=longest,
            repair_timeout=repair_timeout,
            log=log,
            queue_frames=_QUEUE_FRAMES,
            messages_per_s=0.0,
        )
        self._simulation = Simulation(options)
        self._began_ns = self.clock.now_ns
        self.publishers: list[VirtualPublisher] = []
        self.subscribers: list[VirtualSubscriber] = []

    @property
    def clock(self) -> ManualClock:
        """The clock; move it by `advance`, so that what is due happens."""
        return self._simulation.clock

    @property
    def now(self) -> float:
        """How long this network has run, in seconds of its clock."""
        return (self.clock.now_ns - self._began_ns) / 1e9

    def publisher(self, *, config: PublisherConfig | None = None) -> "VirtualPublisher":
        """Add a publisher.

        Args:
            config: its settings. Default: as `p2pmsg.Publisher` has them, but with frames of 1 KiB,
                so that few messages make several frames, some of which are lost. The bounds of
                queues and of the replay buffer are the network's.

        """
        made = VirtualPublisher(self, self._simulation.add_publisher(config))
        self.publishers.append(made)
        return made

    def subscriber(
        self,
        publishers: "VirtualPublisher | Sequence[VirtualPublisher] | None" = None,
        *,
        topics: str | Sequence[str] = (),
        start: str | int | datetime = "latest",
        on_gap: OnGap = "wait",
        config: SubscriberConfig | None = None,
    ) -> "VirtualSubscriber":
        """Add a subscriber.

        Args:
            publishers: one, or several, to connect to. Default: all that there are.
            topics: what to take: topics, and prefixes that end in `*`. Default: all.
            start: as for `p2pmsg.Subscriber`. Default `latest`: what is published before the
                subscriber has joined is not received; see `VirtualPublisher.wait_for_subscribers`.
            on_gap: as for `p2pmsg.Subscriber`. Default `wait`.
            config: its settings. Default: as `p2pmsg.Subscriber` has them.

        """
        if publishers is None:
            publishers = self.publishers
        elif isinstance(publishers, VirtualPublisher):
            publishers = [publishers]
        policy = GapPolicy(on_gap)
        made = self._simulation.add_subscriber(
            [one._process for one in publishers],
            topics=[topics] if isinstance(topics, str) else topics,
            start=start,
            config=config,
            policy=policy,
            reads=False,
        )
        self.subscribers.append(VirtualSubscriber(self, made, policy))
        return self.subscribers[-1]

    def advance(self, seconds: float) -> None:
        """Let so many seconds pass, and all that is due in them happen.

        Raises:
            ConfigError: `seconds` is not a number of at least 0.

        """
        at_least("seconds", seconds, 0)
        self._simulation.run(seconds)

    def settle(self, timeout: float = _SETTLE_S) -> None:
        """Let time pass until every subscriber has, or knows lost, all that was published.

        What a subscriber has may still have to be received.

        Args:
            timeout: at most so long, in seconds of the network's clock. Default 60.0.

        Raises:
            TimeoutError: it took longer, because there are too many losses.

        """
        if not self.wait_until(self._is_settled, timeout):
            raise TimeoutError(f"not everything came within {timeout} s of the network's time")

    def partition(
        self, publisher: "VirtualPublisher", subscriber: "VirtualSubscriber", seconds: float
    ) -> None:
        """Let nothing pass between `publisher` and `subscriber` for `seconds` from now on.

        Raises:
            ConfigError: `seconds` is not a number of at least 0.

        """
        at_least("seconds", seconds, 0)
        names = publisher._process.name, subscriber._process.name
        self._simulation.part(*names, seconds)

    def heal(self) -> None:
        """End all losses, reordering, duplication and partitions; crashed publishers come back."""
        self._simulation.heal()

    def wait_until(self, is_so: Callable[[], bool], timeout: float = ENDLESS_S) -> bool:
        """Let time pass until `is_so()`; return whether it is.

        Args:
            is_so: asked after everything that happens.
            timeout: at most so long, in seconds of the network's clock. Default 60.0.

        """
        return self._simulation.run_until(is_so, timeout)

    def _is_settled(self) -> bool:
        alive = {one._process: one._process.core for one in self.publishers}
        return not any(core.open_batches or core.outbox for core in alive.values() if core) and all(
            _has_everything(subscriber._process, alive) for subscriber in self.subscribers
        )

    def __repr__(self) -> str:
        return f"<VirtualNetwork seed={self.seed} at {self.now:.6f} s>"


class VirtualPublisher(ClosesAtOnce):
    """A publisher on a `VirtualNetwork`, used as `p2pmsg.Publisher` is.

    Args:
        network: which made it.
        process: the simulated one.

    """

    def __init__(self, network: VirtualNetwork, process: SimulatedPublisher) -> None:
        self._network = network
        self._process = process
        self._closed = False

    @property
    def endpoint(self) -> str:
        """What subscribers connect to, for messages of the code under test."""
        return self._process.endpoint

    @property
    def session(self) -> int:
        """64-bit id of the sequence space."""
        return self._core.session

    def publish(
        self,
        topic: str,
        value: Any,
        key: str | None = None,
        timestamp_ns: int | None = None,
        headers: dict[str, Any] | None = None,
    ) -> int:
        """Accept one message and return its sequence; see `p2pmsg.Publisher.publish`.

        It travels when time passes. Where a subscriber's queue is full, time passes here.

        Args:
            topic: UTF-8, 1 to 255 bytes, without a zero byte, not ending in `*`.
            value: any msgpack value.
            key: what it belongs to. Default None.
            timestamp_ns: when it happened, in ns since the epoch. Default: the network's time.
            headers: further fields by name. Default None.

        Raises:
            MessageError: it cannot be published as it is.
            ClosedError: the publisher is closed, or has crashed.

        """
        core = self._core
        if core.outbox:
            self._network.wait_until(lambda: not core.outbox)
        return self._process.accept(topic, value, key, timestamp_ns, headers)

    def publish_many(
        self,
        topic: str,
        values: Sequence[Any],
        keys: Sequence[str | None] | None = None,
        timestamps_ns: Sequence[int] | None = None,
    ) -> tuple[int, int]:
        """Publish each of these; returns the first and the last sequence.

        Args:
            topic: as for `publish`.
            values: one a message, at least one.
            keys: one a message. Default: none.
            timestamps_ns: one a message, in ns since the epoch. Default: the network's time.

        Raises:
            ConfigError: there are no values, or not as many keys or timestamps.
            Others as `publish`.

        """
        count = len(values)
        check("values", values, count > 0, "at least one")
        for name, column in (("keys", keys), ("timestamps_ns", timestamps_ns)):
            check(name, column, column is None or len(column) == count, f"{count}, as the values")
        sequences = [
            self.publish(
                topic,
                values[at],
                None if keys is None else keys[at],
                None if timestamps_ns is None else timestamps_ns[at],
            )
            for at in range(count)
        ]
        return sequences[0], sequences[-1]

    def flush(self) -> None:
        """Do nothing: what is gathered travels when time passes."""

    def wait_for_subscribers(self, count: int = 1, timeout: float | None = None) -> None:
        """Let time pass until `count` subscribers have confirmed that they receive.

        Args:
            count: how many. Default 1.
            timeout: in seconds of the network's clock. Default None: 60.0, then it fails.

        Raises:
            TimeoutError: they did not come in time.
            ClosedError: the publisher is closed, or has crashed.

        """
        core = self._core
        limit = ENDLESS_S if timeout is None else timeout
        if not self._network.wait_until(lambda: core.joined >= count, limit):
            raise TimeoutError(f"{core.joined} of {count} subscribers came within {limit} s")

    def crash(self) -> None:
        """Die as by SIGKILL: what was not sent yet is gone, unless the network has `log=True`."""
        self._process.crash()

    def restart(self) -> None:
        """Come back after `crash`: as a new session, or with a log in the same one."""
        self._process.start()

    def close(self, timeout: float = _CLOSE_S) -> None:
        """Send what is left, and let time pass until every subscriber has it.

        Args:
            timeout: how long at most, in seconds of the network's clock. Default 5.0.

        """
        if self._closed:
            return
        if self._process.core is not None:
            self._process.close()
            self._network.wait_until(lambda: self._process.is_complete, timeout)
            self._process.leave_for_good()
        self._closed = True

    def __repr__(self) -> str:
        return f"<VirtualPublisher {self._process.name}{' closed' if self._closed else ''}>"

    @property
    def _core(self) -> PublisherCore:
        if self._closed:
            raise ClosedError("the publisher")
        if self._process.core is None:
            raise ClosedError("the publisher", "it has crashed")
        return self._process.core


class VirtualSubscriber(ClosesAtOnce):
    """A subscriber on a `VirtualNetwork`, used as `p2pmsg.Subscriber` is.

    Args:
        network: which made it.
        process: the simulated one.
        policy: what to do about messages that are missing.

    """

    def __init__(
        self, network: VirtualNetwork, process: SimulatedSubscriber, policy: GapPolicy
    ) -> None:
        self._network = network
        self._process = process
        self._policy = policy
        self._closed = False

    def receive(self, timeout: float | None = 0.0) -> Message:
        """Return the next message.

        Args:
            timeout: let at most so many seconds of the network's clock pass until one comes.
                Default 0.0: one that is there. None: 60.0, where a real subscriber would wait
                without end.

        Raises:
            TimeoutError: none came in time.
            MessagesLostError: `on_gap="raise"`, and messages were lost.
            ClosedError: the subscriber is closed.

        """
        return self.receive_many(1, timeout)[0]

    def receive_many(self, count_max: int = 65_536, timeout: float | None = 0.0) -> MessageBatch:
        """Return the next messages of one stream, as many as are there.

        Args:
            count_max: how many at most. Default 65,536.
            timeout: as for `receive`, in seconds, for the first of them.

        Raises:
            ConfigError: `count_max` is not an int of at least 1.
            TimeoutError: none came in time.
            Others as `receive`.

        """
        whole("count_max", count_max, 1)
        limit = ENDLESS_S if timeout is None else timeout
        at_least("timeout", limit, 0)
        end_ns = self._network.clock.now_ns + round(limit * 1e9)
        while True:
            if (batch := self._take(count_max)) is not None:
                return batch
            left_s = max(0, end_ns - self._network.clock.now_ns) / 1e9
            if not self._network.wait_until(lambda: self._is_ready, left_s):
                now = f"at {self._network.now:.3f} s of the network's time"
                hint = "" if limit else "; advance() it, or give a timeout"
                raise TimeoutError(f"no message within {limit} s, {now}{hint}")

    def __iter__(self) -> Iterator[Message]:
        """Iterate over the messages that are there; it ends with them, and no time passes."""
        while (batch := self._take(1)) is not None:
            yield batch[0]

    @property
    def connected(self) -> int:
        """How many publishers it has joined."""
        core = self._process.core
        return 0 if core is None else sum(peer.joined for peer in core.peers.values())

    def stats(self) -> SubscriberStats:
        """Return the ledger and the counters.

        Raises:
            ClosedError: the subscriber is closed.

        """
        core = self._process.core
        if core is None:
            raise ClosedError("the subscriber")
        return core.stats()

    def close(self) -> None:
        """Close; what was not received is gone."""
        self._closed = True
        self._process.crash()

    def __repr__(self) -> str:
        return f"<VirtualSubscriber {self._process.name}{' closed' if self._closed else ''}>"

    @property
    def _is_ready(self) -> bool:
        return self._process.core is not None and bool(self._process.core.ready.entries)

    def _take(self, count_max: int) -> MessageBatch | None:
        """Return messages that are there, after reporting what was lost before them."""
        if self._closed:
            raise ClosedError("the subscriber")
        while (taken := self._process.take(count_max)) is not None:
            stream, output = taken
            if isinstance(output, MessageBatch):
                return output
            self._report(stream.topic, stream.peer.session, stream.peer.name, output)
        return None

    def _report(self, topic: str, session: int, publisher: str, loss: Loss) -> None:
        is_rewound = isinstance(loss, Rewound)
        report = (RewoundReport if is_rewound else LossReport)(topic, session, publisher, loss)
        policy = self._policy.of(topic)
        if policy == "raise":
            raise SessionRewoundError(report) if is_rewound else MessagesLostError(report)
        if callable(policy):
            policy(report)


def _has_everything(
    subscriber: SimulatedSubscriber, cores: dict[SimulatedPublisher, PublisherCore | None]
) -> bool:
    """Whether it has, or knows lost, all that the living publishers have sent to it."""
    core = subscriber.core
    if core is None:
        return True
    for publisher in subscriber.publishers:
        sending = cores[publisher]
        if sending is None:
            continue
        peer = core.peers.get(sending.session)
        if peer is None or not peer.joined:
            return False
        for topic, (_, following) in sending.heads().items():
            stream = peer.streams.get(topic)
            head = 0 if stream is None else stream.receiver.head
            if head < following and subscriber.wants(topic):
                return False
    return not any(stream.receiver.missing for stream in core.streams)
