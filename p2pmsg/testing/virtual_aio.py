"""Peers of asyncio on a network in memory, whose time passes while tasks wait."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from functools import partial
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar

from p2pmsg.checks import at_least, whole
from p2pmsg.driver.virtual import Turns
from p2pmsg.errors import ClosedError
from p2pmsg.message import Message, MessageBatch, T_co
from p2pmsg.testing.simulated_publisher import SimulatedPublisher
from p2pmsg.testing.simulated_subscriber import SimulatedSubscriber
from p2pmsg.testing.virtual_peers import CLOSE_S, ENDLESS_S, PublisherPeer, SubscriberPeer, Time
from recovery.checks import to_ns

_BATCH_MAX: Final = 65_536
T = TypeVar("T")


class _AioPeer(ABC):
    """Ends with its `async with` block."""

    _closed: bool
    _process: Any

    @property
    def _is_over(self) -> bool:
        return self._closed or self._process.core is None

    @abstractmethod
    async def _leave(self, error: BaseException | None) -> None:
        """Close at the end of the block, which `error` may have left."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._leave(error)


class VirtualAioPublisher(PublisherPeer, _AioPeer):
    """A publisher on a `VirtualNetwork`, used as `p2pmsg.aio.Publisher` is.

    Args:
        network: which made it.
        process: the simulated one.
        turns: let time pass.

    """

    def __init__(self, network: Time, process: SimulatedPublisher, turns: Turns) -> None:
        super().__init__(network, process)
        self._turns = turns

    async def drain(self) -> None:
        """Wait until everything has been sent, and is on the simulated disk of a log.

        Raises:
            TimeoutError: that took more than 60 s of the network's time.
            ClosedError: the publisher is closed, or has crashed.

        """
        self._check_open()
        process = self._process
        is_done = await self._turns.wait_for(lambda: self._is_over or process.is_idle, ENDLESS_S)
        self._check_open()
        if not is_done:
            raise TimeoutError(f"not everything was sent within {ENDLESS_S} s")

    async def wait_for_subscribers(self, count: int = 1, timeout: float | None = None) -> None:
        """Wait until `count` subscribers have confirmed that they receive.

        Args:
            count: how many. Default 1.
            timeout: in seconds of the network's clock. Default None: 60.0, then it fails.

        Raises:
            TimeoutError: they did not come in time.
            ClosedError: the publisher is closed, or has crashed.

        """
        core = self._core
        limit = ENDLESS_S if timeout is None else timeout
        at_least("timeout", limit, 0)
        await self._turns.wait_for(lambda: self._is_over or core.joined >= count, limit)
        self._check_open()
        if core.joined < count:
            raise TimeoutError(f"{core.joined} of {count} subscribers came within {limit} s")

    async def close(self, timeout: float = CLOSE_S) -> None:
        """Send what is left, and wait until every subscriber has it.

        Args:
            timeout: how long at most, in seconds of the network's clock. Default 5.0.

        """
        process = self._process
        if self._closed:
            return
        self._closed = True
        try:
            if process.core is not None:
                process.close()
                await self._turns.wait_for(
                    lambda: process.core is None or process.is_complete, timeout
                )
        finally:
            process.leave_for_good()

    async def _leave(self, error: BaseException | None) -> None:
        await self.close()


class VirtualAioSubscriber(SubscriberPeer[T_co], _AioPeer):
    """A subscriber on a `VirtualNetwork`, used as `p2pmsg.aio.Subscriber` is.

    Cancelling any call loses nothing: a message is taken in the step that returns it.

    Args:
        network: which made it.
        process: the simulated one.
        turns: let time pass.
        about, options: as `SubscriberPeer`.

    """

    _awaits = True

    def __init__(
        self, network: Time, process: SimulatedSubscriber, turns: Turns, *about: Any, **options: Any
    ) -> None:
        super().__init__(network, process, *about, **options)
        self._turns = turns
        self._pending: asyncio.Future[Any] | None = None

    async def receive(self, timeout: float | None = None) -> Message[T_co]:
        """Return the next message.

        Args:
            timeout: in seconds of the network's clock. Default None: without end.

        Raises:
            TimeoutError: none came in time.
            MessagesLostError: `on_gap="raise"`, and messages were lost.
            InvalidValueError: `on_invalid="raise"`, and a value does not fit its type.
            ClosedError: the subscriber is closed, or has crashed, perhaps while this waited.

        """
        return (await self.receive_many(1, timeout))[0]

    async def receive_many(
        self, count_max: int = _BATCH_MAX, timeout: float | None = None
    ) -> MessageBatch[T_co]:
        """Return the next messages of one stream, as many as are there.

        Args:
            count_max: how many at most. Default 65,536.
            timeout: as for `receive`, in seconds, for the first of them.

        Raises:
            ConfigError: `count_max` is not an int of at least 1.
            TimeoutError: nothing came in time.
            Others as `receive`.

        """
        whole("count_max", count_max, 1)
        if timeout is not None:
            at_least("timeout", timeout, 0)
        clock = self._network.clock
        end_ns = None if timeout is None else clock.now_ns + to_ns(timeout)
        self._turns.hold()
        await asyncio.sleep(0)  # tasks take turns where messages are always there
        while True:
            if self._pending is not None:
                await self._drain(self._pending)
            if (batch := self._take(count_max)) is not None:
                return batch
            if self._answer is not None:
                self._pending, self._answer = asyncio.ensure_future(self._answer), None
                continue
            left_s = None if end_ns is None else max(0, end_ns - clock.now_ns) / 1e9
            if not await self._turns.wait_for(lambda: self._is_over or self._is_ready, left_s):
                raise TimeoutError(f"no message within {timeout} s of the network's time")

    def receive_nowait(self) -> Message[T_co] | None:
        """Return the next message, or None where there is none yet. Raises as `receive`."""
        batch = self.receive_many_nowait(1)
        return None if batch is None else batch[0]

    def receive_many_nowait(self, count_max: int = _BATCH_MAX) -> MessageBatch[T_co] | None:
        """Return the messages of one stream that are there, or None. Raises as `receive_many`.

        Args:
            count_max: how many at most. Default 65,536.

        """
        whole("count_max", count_max, 1)
        if self._pending is not None and not self._pending.done():
            return None
        self._pending = None
        batch = self._take(count_max)
        if self._answer is not None:
            self._pending, self._answer = asyncio.ensure_future(self._answer), None
        return batch

    def __aiter__(self) -> "_Iteration[Message[T_co]]":
        """Iterate over messages without end; it ends when the subscriber is closed."""
        return _Iteration(self.receive)

    def batches(self, count_max: int = _BATCH_MAX) -> "_Iteration[MessageBatch[T_co]]":
        """Iterate over batches, each as of `receive_many`.

        Args:
            count_max: how many messages a batch has at most. Default 65,536.

        Raises:
            ConfigError: `count_max` is not an int of at least 1.

        """
        whole("count_max", count_max, 1)
        return _Iteration(partial(self.receive_many, count_max))

    async def commit(self, message: Message | MessageBatch | None = None) -> None:
        """Note durably that messages are processed, as `p2pmsg.aio.Subscriber.commit`.

        Args:
            message: commit its stream up to and including it. Default None: everything that was
                returned so far.

        Raises:
            ConfigError: there is no cursor, or `message` is none that this subscriber returned.
            ClosedError: the subscriber is closed, or has crashed.

        """
        self._commit(message)

    async def close(self) -> None:
        """Close; tasks that wait get a `ClosedError`, and iterations end."""
        if not self._closed:
            self._leave_network(commits=False)

    async def _leave(self, error: BaseException | None) -> None:
        if not self._closed:
            self._leave_network(commits=error is None)

    async def _drain(self, pending: "asyncio.Future[Any]") -> None:
        """Wait for an `on_gap` that is a coroutine; cancelled here, it goes on."""
        try:
            await asyncio.shield(pending)
        finally:
            if pending.done() and self._pending is pending:
                self._pending = None


class _Iteration(Generic[T]):
    """Iterates by such calls; after an exception it goes on where it was."""

    def __init__(self, receive: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._receive = receive

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        try:
            return await self._receive()
        except ClosedError:
            raise StopAsyncIteration from None
