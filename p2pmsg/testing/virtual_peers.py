"""The real peers on a network in memory: they live on hosts of it, die, and come back."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, Final, NoReturn, Self

from p2pmsg import Publisher, Relay, Subscriber, aio
from p2pmsg.driver.virtual import ENDLESS_NS
from p2pmsg.errors import ClosedError
from p2pmsg.message import Message, MessageBatch, T_co
from p2pmsg.peers.network import on
from p2pmsg.testing.host import Host
from p2pmsg.testing.network import FaultyNetwork
from p2pmsg.toolkit import Peer

ENDLESS_S: Final = ENDLESS_NS / 1e9
"""How long is waited, by the network's clock, where a real peer would wait without end."""


class VirtualProcess:
    """A process on a `VirtualNetwork`: peers that are made in its `with` block are on that network.

    ::

        shop = network.process("shop")
        with shop:
            responder = p2pmsg.Responder("tcp://shop:5560", {"price": price_of}).start()
        with network.process():
            requester = p2pmsg.Requester("tcp://shop:5560")
        assert requester.request("price", "ACME") == 17
        shop.kill()

    They are the same peers, up to their sockets: of threads, or of asyncio. Endpoints are names,
    which need not exist. While a call waits, the network's time passes; one without a limit waits
    for 60 s of it. Pools of threads, and sockets of your own, are not on the network.

    Attributes:
        process_name: as given.
        frames: of the network that it is on.

    """

    def __init__(self, frames: FaultyNetwork, name: str) -> None:
        self.process_name = name
        self.frames = frames
        self._host = Host(frames, name)
        self._within: list[AbstractContextManager[None]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, service: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run a service in it, as a task, until it is killed."""
        with self:
            task = asyncio.create_task(service)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def __enter__(self) -> Self:
        self._within.append(on(self._host))
        self._within[-1].__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._within.pop().__exit__(None, None, None)

    @property
    def deaths(self) -> int:
        """How often it was killed."""
        return self._host.incarnation

    def kill(self) -> None:
        """End it as by SIGKILL, with all its peers; calls of those raise `ClosedError`.

        An app that `running` runs in it is cancelled.

        What is made in another `with` block of it is of the same process, started again.
        """
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()
        for driver in self._host.kill():
            driver.peer.abandon()
            driver.section.end(partial(_refuse, driver.peer.name))
        self.frames.turns.stir()

    def __repr__(self) -> str:
        return f"<VirtualProcess {self.process_name}>"


def _refuse(name: str) -> NoReturn:
    raise ClosedError(name, "it has crashed")


class Process:
    """What the virtual peers have in common: each is a process of its own.

    Attributes:
        process: in which it is.
        is_dead: whether it has crashed, and was not restarted.
        sources, topics: whom it connects to, and what it takes; (): all.

    """

    _peer: Any
    _driver: Any
    _remake: Callable[[], None]
    is_dead = False
    sources: "Sequence[Upstream]" = ()
    topics: Sequence[str] = ()

    def _live_on(self, frames: FaultyNetwork, process: str, /, *args: Any, **options: Any) -> None:
        """Be made, as a process on a host of its own."""
        self.process = VirtualProcess(frames, process)
        with self.process:
            super().__init__(*args, **options)

    @property
    def process_name(self) -> str:
        """The name of the process; its sockets have it in theirs."""
        return self.process.process_name

    @property
    def peer(self) -> Any:
        """Its sockets and engines; None while it is dead, or where it is closed."""
        return None if self._driver.stopping else self._peer

    def _open(self, make: Callable[[], Peer]) -> None:
        """Open as the faces do, and again in each incarnation."""
        self._remake = partial(super()._open, make)  # type: ignore[misc]
        self._remake()

    @property
    def is_closed(self) -> bool:
        """Whether it was closed, and will not come back."""
        return bool(self._driver.stopping) and not self.is_dead

    def crash(self) -> None:
        """Die as by SIGKILL.

        A publisher's messages that were not sent yet are gone, unless the network has `log=True`;
        what a subscriber received and did not commit comes again, where it has a cursor.
        """
        if not self._driver.stopping:
            self.is_dead = True
            self.process.kill()

    def restart(self) -> None:
        """Come back after `crash`.

        A publisher as a new session, or with a log in the same one; a subscriber at its cursor, or
        without one as a new subscriber.
        """
        if self.is_dead:
            self.is_dead = False
            self._remake()

    def __repr__(self) -> str:
        state = " crashed" if self.is_dead else " closed" if self.is_closed else ""
        return f"<{type(self).__name__} {self.process_name}{state}>"


class _Serving(Process):
    """What publishers and relays have in common."""

    def wait_for_subscribers(self, count: int = 1, timeout: float | None = None) -> Any:
        """Let time pass until `count` subscribers have confirmed that they receive.

        Args:
            count: how many. Default 1.
            timeout: in seconds of the network's clock. Default None: 60.0, then it fails.

        Raises:
            TimeoutError: they did not come in time.
            ClosedError: it is closed, or has crashed.

        """
        limit = ENDLESS_S if timeout is None else timeout
        return super().wait_for_subscribers(count, limit)  # type: ignore[misc]


class PublisherProcess(Process):
    """What both virtual publishers have in common.

    Args:
        frames: of the network.
        endpoint: where it is bound; "": at its name.
        name: of the process.
        options: as of `p2pmsg.Publisher`.

    """

    def __init__(self, frames: FaultyNetwork, endpoint: str, *, name: str, **options: Any) -> None:
        self._live_on(frames, name, endpoint or f"memory://{name}", name=name, **options)


class VirtualPublisher(PublisherProcess, _Serving, Publisher):
    """A publisher on a `VirtualNetwork`, used as `p2pmsg.Publisher` is.

    It is the same publisher, up to its sockets. What it publishes travels when time passes; where a
    subscriber's queue is full, it passes in `publish`. While a call waits, the network's time
    passes; a call without a limit waits for 60 s of it.
    """


class VirtualAioPublisher(PublisherProcess, aio.Publisher):
    """A publisher on a `VirtualNetwork`, used as `p2pmsg.aio.Publisher` is."""


class SubscriberProcess(Process):
    """What both virtual subscribers have in common.

    Args:
        frames: of the network.
        name: of the process.
        sources: whom it connects to.
        options: as of `p2pmsg.Subscriber`.

    """

    def __init__(
        self,
        frames: FaultyNetwork,
        name: str,
        sources: "Sequence[Upstream]",
        *,
        topics: str | Sequence[str] = (),
        **options: Any,
    ) -> None:
        self.sources = list(sources)
        self.topics = [topics] if isinstance(topics, str) else list(topics)
        endpoints = [one.endpoint for one in self.sources]
        self._live_on(frames, name, endpoints, name=name, topics=self.topics or None, **options)


class VirtualSubscriber(SubscriberProcess, Subscriber[T_co]):
    """A subscriber on a `VirtualNetwork`, used as `p2pmsg.Subscriber` is.

    It is the same subscriber, up to its sockets, but that calls wait for nothing by default:
    `advance` the network, or give a timeout.
    """

    def receive(self, timeout: float | None = 0.0) -> Message[T_co]:
        """Return the next message.

        Args:
            timeout: let at most so many seconds of the network's clock pass until one comes.
                Default 0.0: one that is there. None: 60.0, where a real subscriber would wait
                without end.

        Raises:
            TimeoutError: none came in time.
            Others: as `p2pmsg.Subscriber.receive`.

        """
        with self._late(timeout) as seconds:
            return super().receive(seconds)

    def receive_many(
        self, count_max: int = 65_536, timeout: float | None = 0.0
    ) -> MessageBatch[T_co]:
        """Return the next messages of one stream, as many as are there.

        Args:
            count_max: how many at most. Default 65,536.
            timeout: as for `receive`, in seconds, for the first of them.

        Raises:
            ConfigError: `count_max` is not an int of at least 1.
            TimeoutError: none came in time.
            Others: as `p2pmsg.Subscriber.receive_many`.

        """
        with self._late(timeout) as seconds:
            return super().receive_many(count_max, seconds)

    def __iter__(self) -> Iterator[Message[T_co]]:
        """Iterate over the messages that are there; it ends with them, and no time passes."""
        while True:
            try:
                message = super().receive(0.0)
            except TimeoutError:
                return
            yield message

    @contextmanager
    def _late(self, timeout: float | None) -> Iterator[float]:
        """Give the limit of a call, and say in its `TimeoutError` what time it is."""
        try:
            yield ENDLESS_S if timeout is None else timeout
        except TimeoutError as error:
            hint = "; advance() it, or give a timeout" if timeout == 0 else ""
            at = f"at {self.process.frames.now:.3f} s of the network's time{hint}"
            raise TimeoutError(f"{error}, {at}") from None


class VirtualAioSubscriber(SubscriberProcess, aio.Subscriber[T_co]):
    """A subscriber on a `VirtualNetwork`, used as `p2pmsg.aio.Subscriber` is.

    It is the same subscriber, up to its sockets. While its calls wait, the network's time passes,
    from event to event, and other tasks go on.
    """

    def _may_await(self) -> bool:
        return True


class VirtualRelay(_Serving, Relay):
    """A relay on a `VirtualNetwork`: give it to `subscriber` in place of a publisher.

    It is the same relay as `p2pmsg.Relay`, up to its sockets.

    Args:
        frames: of the network.
        name: of the process.
        sources: whom it connects to.
        options: as of `p2pmsg.Relay`.

    """

    def __init__(
        self, frames: FaultyNetwork, name: str, sources: "Sequence[Upstream]", **options: Any
    ) -> None:
        self.sources = list(sources)
        endpoints = [one.endpoint for one in self.sources]
        self._live_on(frames, name, endpoints, f"memory://{name}", name=name, **options)


Upstream = VirtualPublisher | VirtualAioPublisher | VirtualRelay
"""What a subscriber connects to."""
