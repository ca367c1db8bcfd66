"""Peers of asyncio on a network in memory, whose time passes while tasks wait."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from functools import partial
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar

from p2pmsg.checks import at_least, whole
from p2pmsg.errors import ClosedError
from p2pmsg.message import Message, MessageBatch, T_co
from p2pmsg.testing.network import FaultyNetwork
from p2pmsg.testing.simulated_publisher import SimulatedPublisher
from p2pmsg.testing.simulated_subscriber import SimulatedSubscriber
from p2pmsg.testing.virtual_peers import CLOSE_S, ENDLESS_S, PublisherPeer, SubscriberPeer, Time
from recovery.checks import to_ns
from transports.own_log import own_log as _log

_PASSES: Final = 4
"""How often the loop goes through its tasks between two events of the network."""
_BATCH_MAX: Final = 65_536
T = TypeVar("T")


class Turns:
    """Lets a network's time pass while tasks wait, from event to event, other tasks in between.

    The order is that of the loop's own queue, so the same seed and the same program give the same
    run, where nothing else is awaited than the network. Waits without a limit let at most 60
    seconds pass in which nothing is asked of the network; then they rest until something is.

    Args:
        network: whose time it is.

    """

    def __init__(self, network: FaultyNetwork) -> None:
        self._network = network
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: dict[asyncio.Future[None], tuple[Callable[[], bool], int | None]] = {}
        self._handle: asyncio.Handle | None = None
        self._rest_ns = self._left = 0

    async def wait_until(self, is_so: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until `is_so()`, at most `timeout` s of the network's; return whether it is."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # the former one has ended
            self._loop, self._waiting, self._handle = loop, {}, None
        clock = self._network.clock
        end_ns = None if timeout is None else clock.now_ns + to_ns(timeout)
        is_over = False
        while not is_so() and not is_over:  # another task may have been quicker
            future: asyncio.Future[None] = loop.create_future()
            self._waiting[future] = is_so, end_ns
            self.stir()
            try:
                await future
            finally:
                self._waiting.pop(future, None)
            is_over = end_ns is not None and clock.now_ns >= end_ns
        return is_so()

    def hold(self) -> None:
        """Let no time pass yet: a task has something to do."""
        self._left = _PASSES

    def stir(self) -> None:
        """Note that something is asked of the network: waits without a limit begin again."""
        self._rest_ns = self._network.clock.now_ns + to_ns(ENDLESS_S)
        loop = self._loop
        if self._handle is None and self._waiting and loop is not None and not loop.is_closed():
            self._handle = loop.call_soon(self._pass, loop)

    def _pass(self, loop: asyncio.AbstractEventLoop) -> None:
        if loop is not self._loop:
            return
        self._handle = None
        self._left -= 1
        if self._left < 0:
            self._left = _PASSES
            try:
                if not self._step():
                    return
            except Exception as error:
                for future in self._waiting:
                    if not future.done():
                        future.set_exception(error)
                return
        self._handle = loop.call_soon(self._pass, loop)

    def _step(self) -> bool:
        """Wake who may go on, or else let the next event happen; False: it rests."""
        if self._wake():
            return True
        ends = [end_ns for future, (_, end_ns) in self._waiting.items() if not future.done()]
        if not ends:
            return False
        network, limits = self._network, [end_ns for end_ns in ends if end_ns is not None]
        limit_ns = min(limits, default=self._rest_ns)
        if not limits and network.clock.now_ns >= limit_ns:
            what = "tasks wait without a limit, and nothing was asked of the network"
            _log.warning("the virtual network's time stands still: %d %s", len(ends), what)
            return False
        due_ns = network.next_ns
        network.run_until(limit_ns if due_ns is None else min(due_ns, limit_ns))
        self._wake()
        return True

    def _wake(self) -> bool:
        now_ns, has_woken = self._network.clock.now_ns, False
        for future, (is_so, end_ns) in self._waiting.items():
            if not future.done() and (is_so() or (end_ns is not None and now_ns >= end_ns)):
                future.set_result(None)
                has_woken = True
        return has_woken


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
        is_done = await self._turns.wait_until(lambda: self._is_over or process.is_idle, ENDLESS_S)
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
        await self._turns.wait_until(lambda: self._is_over or core.joined >= count, limit)
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
                await self._turns.wait_until(
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
            if not await self._turns.wait_until(lambda: self._is_over or self._is_ready, left_s):
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
