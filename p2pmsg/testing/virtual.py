"""A network in memory for users' tests: real cores, a clock moved by hand, faults by a seed.

The fixture `p2pmsg_network` of the pytest plugin is one of these.
"""

import builtins
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import SystemRandom
from typing import Any, Final, TypeVar

from p2pmsg.config import PublisherConfig, SubscriberConfig
from p2pmsg.log import LogConfig
from p2pmsg.message import T_co
from p2pmsg.testing.clock import ManualClock
from p2pmsg.testing.drained import knows_all, knows_all_of_relay
from p2pmsg.testing.network import FaultyNetwork
from p2pmsg.testing.running import Running, Service
from p2pmsg.testing.virtual_peers import (
    ENDLESS_S,
    Upstream,
    VirtualAioPublisher,
    VirtualAioSubscriber,
    VirtualProcess,
    VirtualPublisher,
    VirtualRelay,
    VirtualSubscriber,
)
from p2pmsg.toolkit import at_least, checked, to_ns

_DRAIN_S: Final = 60.0
_QUEUE_FRAMES: Final = 1000
_SEED_MAX: Final = 2**32
_LOG: Final = LogConfig("log", segment_bytes=64 * 1024)
AnyPublisher = VirtualPublisher | VirtualAioPublisher
AnySubscriber = VirtualSubscriber[Any] | VirtualAioSubscriber[Any]
S = TypeVar("S", bound=AnySubscriber)


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

    Programs of asyncio get `aio_publisher` and `aio_subscriber`, and time passes while they wait.

    The protocol is the real one: what is lost is asked for again and repaired. Nothing happens, and
    no time passes, but in `advance`, `drain`, and calls with a timeout, which move the clock as
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
        publishers, subscribers, relays: what was made here, in order.

    """

    @checked(
        seed=(0, _SEED_MAX - 1), lossy=(0, 1), reordering=(0, 1), duplication=(0, 1),
        repair_timeout=0.001,
    )  # fmt: skip
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
        shortest, longest = delay if isinstance(delay, tuple) else (delay, delay)
        at_least("delay", longest, shortest)
        self.frames = FaultyNetwork(
            self.seed,
            loss=lossy,
            reordering=reordering,
            duplication=duplication,
            delay=(shortest, longest),
        )
        self._log = _LOG if log else None
        self._publishing = PublisherConfig(frame_bytes=1024, queue_frames=_QUEUE_FRAMES)
        self._subscribing = SubscriberConfig(
            queue_frames=_QUEUE_FRAMES, repair_timeout=repair_timeout
        )
        self._processes = 0
        self.publishers: list[AnyPublisher] = []
        self.subscribers: list[AnySubscriber] = []
        self.relays: list[VirtualRelay] = []

    @property
    def clock(self) -> ManualClock:
        """The clock; move it by `advance`, so that what is due happens."""
        return self.frames.clock

    @property
    def now(self) -> float:
        """How long this network has run, in seconds of its clock."""
        return self.frames.now

    def publisher(
        self, endpoint: str = "", *, config: PublisherConfig | None = None
    ) -> VirtualPublisher:
        """Add a publisher.

        Args:
            endpoint: where it is bound, a name of any scheme. Default: one of its own.
            config: its settings. Default: as `p2pmsg.Publisher` has them, but with frames of 1 KiB,
                so that few messages make several frames, some of which are lost.

        """
        made = VirtualPublisher(self.frames, endpoint, **self._about_publisher(config))
        self.publishers.append(made)
        return made

    def aio_publisher(
        self, endpoint: str = "", *, config: PublisherConfig | None = None
    ) -> VirtualAioPublisher:
        """Add a publisher with the names of `p2pmsg.aio.Publisher`; else as `publisher`."""
        made = VirtualAioPublisher(self.frames, endpoint, **self._about_publisher(config))
        self.publishers.append(made)
        return made

    def _about_publisher(self, config: PublisherConfig | None) -> dict[str, Any]:
        return {
            "name": f"p{len(self.publishers)}",
            "config": config or self._publishing,
            "log": self._log,
        }

    def relay(
        self, publishers: Upstream | Sequence[Upstream] | None = None, *, log: bool = False
    ) -> VirtualRelay:
        """Add a relay: it keeps what it receives, and serves it also when publishers are gone.

        Args:
            publishers: one, or several, to connect to, relays too. Default: all publishers.
            log: whether it has a log, and so everything again after `crash`. Default False.

        """
        patience = self._subscribing.repair_timeout / 2  # it gives up before its subscribers do
        made = VirtualRelay(
            self.frames,
            f"r{len(self.relays)}",
            self._listed(publishers),
            log=_LOG if log else None,
            config=self._publishing,
            intake=replace(self._subscribing, repair_timeout=patience),
        )
        self.relays.append(made)
        return made

    def subscriber(
        self,
        publishers: Upstream | Sequence[Upstream] | None = None,
        *,
        type: builtins.type[T_co] | None = None,  # noqa: A002  # as `p2pmsg.Subscriber` has it
        config: SubscriberConfig | None = None,
        **options: Any,
    ) -> VirtualSubscriber[T_co]:
        """Add a subscriber.

        Args:
            publishers: one, or several, to connect to, or relays. Default: all publishers.
            type: as for `p2pmsg.Subscriber`. Default: values have no type.
            config: its settings. Default: as `p2pmsg.Subscriber` has them, with the network's
                `repair_timeout`.
            options: `topics`, `start`, `on_gap`, `cursor`, `commit`, `types` and `on_invalid`, as
                for `p2pmsg.Subscriber`. With the default start, `latest`, what is published before
                the subscriber has joined is not received; see
                `VirtualPublisher.wait_for_subscribers`. A cursor is a name, of a position in the
                network's memory; the next subscriber with it goes on after the last commit.

        Raises:
            ConfigError: an argument is out of its limits.
            CursorError: another subscriber has the cursor.

        """
        about, config = self._about_subscriber(publishers), config or self._subscribing
        made = VirtualSubscriber[T_co](*about, type=type, config=config, **options)
        self.subscribers.append(made)
        return made

    def aio_subscriber(
        self,
        publishers: Upstream | Sequence[Upstream] | None = None,
        *,
        type: builtins.type[T_co] | None = None,  # noqa: A002  # as `p2pmsg.Subscriber` has it
        config: SubscriberConfig | None = None,
        **options: Any,
    ) -> VirtualAioSubscriber[T_co]:
        """Add a subscriber with the names of `p2pmsg.aio.Subscriber`; else as `subscriber`.

        `on_gap` and `on_invalid` may be coroutine functions. While a task awaits it, or an
        `aio_publisher`, time passes: from event to event, and tasks take turns in between.
        """
        about, config = self._about_subscriber(publishers), config or self._subscribing
        made = VirtualAioSubscriber[T_co](*about, type=type, config=config, **options)
        self.subscribers.append(made)
        return made

    def _about_subscriber(
        self, publishers: Upstream | Sequence[Upstream] | None
    ) -> tuple[FaultyNetwork, str, Sequence[Upstream]]:
        return self.frames, f"s{len(self.subscribers)}", self._listed(publishers)

    def _listed(self, publishers: Upstream | Sequence[Upstream] | None) -> Sequence[Upstream]:
        if publishers is None:
            return self.publishers
        return [publishers] if isinstance(publishers, Upstream) else publishers

    def advance(self, seconds: float) -> None:
        """Let so many seconds pass, and all that is due in them happen.

        Raises:
            ConfigError: `seconds` is not a number of at least 0.

        """
        at_least("seconds", seconds, 0)
        self.frames.turns.let_pass(lambda: False, self.clock.now_ns + to_ns(seconds))
        self.stir()

    async def sleep(self, seconds: float) -> None:
        """Wait until so many seconds of the network's time have passed, while other tasks go on.

        Raises:
            ConfigError: `seconds` is not a number of at least 0.

        """
        at_least("seconds", seconds, 0)
        await self.frames.turns.wait_for(lambda: False, seconds)

    async def aio_drain(self, timeout: float = _DRAIN_S) -> None:
        """Do as `drain`, while other tasks go on.

        Args:
            timeout: at most so long, in seconds of the network's clock. Default 60.0.

        Raises:
            TimeoutError: it took longer, because there are too many losses.

        """
        at_least("timeout", timeout, 0)
        if not await self.frames.turns.wait_for(self._is_drained, timeout):
            raise TimeoutError(f"not everything came within {timeout} s of the network's time")

    def drain(self, timeout: float = _DRAIN_S) -> None:
        """Let time pass until every subscriber has, or knows lost, all that was published.

        What a subscriber has may still have to be received.

        Args:
            timeout: at most so long, in seconds of the network's clock. Default 60.0.

        Raises:
            TimeoutError: it took longer, because there are too many losses.

        """
        if not self.wait_until(self._is_drained, timeout):
            raise TimeoutError(f"not everything came within {timeout} s of the network's time")

    def process(self, name: str = "") -> VirtualProcess:
        """Add a process, for peers that your own code makes; see `VirtualProcess`.

        Args:
            name: of the process. Default: "process-0", and so on.

        """
        self._processes += 1
        return VirtualProcess(self.frames, name or f"process-{self._processes - 1}")

    def running(self, service: Service, process: VirtualProcess | None = None) -> Running:
        """Return what runs a service within its `with` block, or `async with`: a `p2pmsg.App`.

        ::

            orders = network.publisher("tcp://orders:5556")
            with network.running(app):
                orders.wait_for_subscribers(1)
                orders.publish("orders", {"quantity": 3})
                network.advance(0.5)

        Its handlers, timers and retries go by the network's time; no time passes while a plain
        function runs in a thread. What `serve` raises is raised at the end of the block, unless
        its process, which `with` returns, was killed.

        Args:
            service: has `async def serve()`, and `stop()`, which ends it.
            process: in which its peers are. Default: one of its own.

        """
        return Running(self.frames.turns, service, process or self.process())

    def partition(
        self,
        publisher: Upstream | VirtualProcess,
        subscriber: AnySubscriber | VirtualRelay | VirtualProcess,
        seconds: float,
    ) -> None:
        """Let nothing pass between `publisher` and `subscriber` for `seconds` from now on.

        A relay may be either, and so may a process.

        Raises:
            ConfigError: `seconds` is not a number of at least 0.

        """
        at_least("seconds", seconds, 0)
        self.frames.part(publisher.process_name, subscriber.process_name, seconds)

    def heal(self) -> None:
        """End all losses, reordering, duplication and partitions; what has crashed comes back."""
        self.frames.heal()
        for one in (*self.publishers, *self.relays, *self.subscribers):
            one.restart()
        self.stir()

    def stir(self) -> None:
        """Have tasks look again that wait without a limit; all calls here do so by themselves."""
        self.frames.turns.stir()

    def wait_until(self, is_so: Callable[[], bool], timeout: float = ENDLESS_S) -> bool:
        """Let time pass until `is_so()`; return whether it is.

        Args:
            is_so: asked after everything that happens.
            timeout: at most so long, in seconds of the network's clock. Default 60.0.

        """
        return self.frames.turns.let_pass(is_so, self.clock.now_ns + to_ns(timeout))

    def _is_drained(self) -> bool:
        cores = [one.peer.core for one in self.publishers if one.peer is not None]
        relays = [one.peer.core for one in self.relays if one.peer is not None]
        if any(core.open_batches or core.outbox for core in cores):
            return False
        if any(core.outbox or core.unsynced or core.control for core in relays):
            return False
        return all(map(_has_everything, (*self.relays, *self.subscribers)))

    def __repr__(self) -> str:
        return f"<VirtualNetwork seed={self.seed} at {self.now:.6f} s>"


def _has_everything(receiver: AnySubscriber | VirtualRelay) -> bool:
    """Whether it has, or knows lost, all that the living publishers have sent to it."""
    if receiver.peer is None:
        return True
    core: Any = receiver.peer.source if isinstance(receiver, VirtualRelay) else receiver.peer.core
    for line, place in enumerate(receiver.sources):
        if place.peer is None:
            continue
        if isinstance(place, VirtualRelay):
            if not knows_all_of_relay(core, receiver.topics, line, place.peer):
                return False
            continue
        peer, heads = core.peers.get(place.peer.session), place.peer.core.heads()
        if peer is None or not peer.joined or not knows_all(receiver.topics, peer, heads):
            return False
    return not any(stream.receiver.missing for stream in core.streams)
