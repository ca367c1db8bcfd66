"""The subscriber for asyncio."""

import asyncio
import sys
import time
import types
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import transports
from p2pmsg.aio.loop import SAFETY_S, LoopDriver
from p2pmsg.aio.subscriber_io import LoopSubscriberIO
from p2pmsg.checks import whole
from p2pmsg.config import SubscriberConfig
from p2pmsg.driver.lifecycle import INHERITED, is_inherited
from p2pmsg.errors import ClosedError, ConfigError, SessionEndedError
from p2pmsg.message import Message, MessageBatch, T_co
from p2pmsg.sync.callbacks import call_back
from p2pmsg.sync.lines import open_lines
from p2pmsg.sync.receiving import receive_frame
from p2pmsg.sync.settings import deadline
from p2pmsg.sync.subscriber_base import NO_VALUES, NOTHING, SubscriberBase

if TYPE_CHECKING:
    from types import TracebackType

_COUNT_MAX: Final = 2**32
_BATCH_MAX: Final = 65_536
_NO_LOOP: Final = object()
_SLICE_NS: Final = 1_000_000
"""How long a task may take messages that are there, before other tasks run."""
_RUN_MAX: Final = 128
"""How many messages are handed out between two looks at the clock, where they are handled fast."""
_now_ns: Final = time.monotonic_ns
_running_loop: Final = asyncio._get_running_loop
R = TypeVar("R")


class Subscriber(SubscriberBase[T_co]):
    """Receives messages in an event loop: each once and in order, or reported lost.

    It has no threads. It belongs to the loop that runs where it is made, and must be closed there::

        async with aio.Subscriber("tcp://prices:5556", topics=["trades"]) as subscriber:
            async for message in subscriber:
                ...

    **Cancelling** any call (also by `asyncio.timeout`, `asyncio.wait_for`, a `TaskGroup`) loses
    nothing and repeats nothing: a message is taken in the step in which the call returns it.
    Several tasks may receive; each message goes to one of them. Other tasks run at least every few
    ms, also where messages are always there; a callable, and the code between two messages, should
    not block.

    **Without asyncio** (trio, a loop of your own): make it where no asyncio loop runs. Then wait
    until one of `wait_fds()` is readable or `next_deadline` has come, call `turn()`, then
    `receive_nowait()` until it returns None; at the end call `close_now()`.

    The arguments are those of `p2pmsg.Subscriber`: `endpoints`, `topics`, `start`, `on_gap`,
    `on_end`, `name`, `receive_bytes` (bytes), `repair_timeout` (seconds), `cursor`, `commit`,
    `commit_interval` (seconds), `config` and `security`, with the same defaults. A callable for
    `on_gap` or `on_end` may be a coroutine function, which is awaited before the next message is
    given out.

    What waits for the disk (a cursor's commits) is done in the loop's default executor. Only
    opening a cursor reads its file at once, and a host's name in `udp://` is looked up at once.

    Raises:
        ConfigError: a setting is out of its limits, or an endpoint is none.
        CursorError: the cursor's file cannot be used, or another subscriber has it.

    """

    _is_begun = False
    _home: object = _NO_LOOP

    def _check_callbacks(self, *, may_be_async: bool = False) -> None:
        super()._check_callbacks(may_be_async=may_be_async or _is_in_loop())

    def _open_io(
        self, places: "list[transports.Endpoint]", topics: list[str], config: SubscriberConfig
    ) -> LoopSubscriberIO:
        self._name = f"the subscriber of {', '.join(map(str, places))}"
        self._loop: LoopDriver | None = None
        self._tending: asyncio.Future[None] | None = None
        self._since_ns = _now_ns()
        self._io = open_lines(self._core, places, topics, config, LoopSubscriberIO, self._security)
        return self._io

    def _begin(self) -> None:
        self._is_begun = True
        if not _is_in_loop():
            return
        self._loop = self._io.driver = LoopDriver(
            self._name, self._turn, self._io.fds(), self.close_now
        )
        self._home = self._loop.loop
        self._loop.safety_s = 2 * SAFETY_S
        self._loop.start()

    def __aiter__(self) -> AsyncIterator[Message[T_co]]:
        """Iterate over messages without end; it ends when the subscriber is closed.

        With `on_end="stop"` it also ends with a feed's session; then iterate again for the next.
        After an exception (a loss, a cancellation) the same iterator goes on where it was.
        """
        self._check_loop()
        return _Messages(self)

    def batches(self, count_max: int = _BATCH_MAX) -> AsyncIterator[MessageBatch[T_co]]:
        """Iterate over batches, each as of `receive_many`; it ends as iterating over messages does.

        Args:
            count_max: how many messages a batch has at most. Default 65,536.

        Raises:
            ConfigError: `count_max` is not an int of at least 1.

        """
        self._check_loop()
        if type(count_max) is not int or count_max < 1:
            whole("count_max", count_max, 1)
        return _Batches(self, count_max)

    async def receive(self, timeout: float | None = None) -> Message[T_co]:
        """Return the next message.

        Args:
            timeout: in seconds; 0 does not wait. Default None: without end.

        Raises:
            TimeoutError: none came in time.
            ClosedError: the subscriber is closed, perhaps while this waited.
            RuntimeError: it belongs to another event loop.
            Others as `p2pmsg.Subscriber.receive`.

        """
        if _running_loop() is not self._home:
            self._check_loop()
        deadline_ns = None if timeout is None else deadline(timeout)
        if _now_ns() - self._since_ns > _SLICE_NS:
            await self._pause()
        if self._on_ask is not None:
            await self._ask()
        while True:  # another task may be quicker
            for message in self._active:
                return message
            if self._commits is not None:
                self._commits.asked()
            self._io.is_empty = False
            if self._pending is None and not self._io.conflates:
                single: Message | None = receive_frame(self, None, 1, False, False, self._io.check)
                if single:
                    return single
            await self._advance(timeout, deadline_ns)

    async def receive_many(
        self, count_max: int = _BATCH_MAX, timeout: float | None = None
    ) -> MessageBatch[T_co]:
        """Return the next messages of one stream, as many as are there.

        Args:
            count_max: how many at most. Default 65,536.
            timeout: how long to wait for the first of them, in seconds. Default None: without end.

        Raises:
            ConfigError: `count_max` is not an int of at least 1.
            Others as `receive`.

        """
        self._check_loop()
        if type(count_max) is not int or count_max < 1:
            whole("count_max", count_max, 1)
        deadline_ns = None if timeout is None else deadline(timeout)
        if _now_ns() - self._since_ns > _SLICE_NS:
            await self._pause()
        if self._on_ask is not None:
            await self._ask()
        while True:
            taken = self._take_many(count_max)
            if taken is not None:
                return taken
            await self._advance(timeout, deadline_ns, count_max)

    def receive_nowait(self) -> Message[T_co] | None:
        """Return the next message, or None where there is none yet; it never waits.

        Raises:
            ClosedError: the subscriber is closed.
            RuntimeError: it belongs to another event loop.
            Others as `receive`, without the TimeoutError.

        """
        if self._begin_nowait(1):
            for message in self._active:
                return message
        return None

    def receive_many_nowait(self, count_max: int = _BATCH_MAX) -> MessageBatch[T_co] | None:
        """Return the messages of one stream that are there, or None; it never waits.

        Args:
            count_max: how many at most. Default 65,536.

        Raises:
            ConfigError: `count_max` is not an int of at least 1.
            Others as `receive_nowait`.

        """
        if type(count_max) is not int or count_max < 1:
            whole("count_max", count_max, 1)
        return self._take_many(count_max) if self._begin_nowait(count_max) else None

    async def commit(self, message: Message | MessageBatch | None = None) -> None:
        """Note durably that messages are processed, as `p2pmsg.Subscriber.commit`.

        What is committed is decided when this is called; an executor writes it. Where it is
        cancelled, it may be written all the same, whole.

        Args:
            message: commit its stream up to and including it. Default None: everything that was
                returned so far.

        Raises:
            ConfigError: there is no cursor, or `message` is none that this subscriber returned.
            RuntimeError: it belongs to another event loop.
            Others as `p2pmsg.Subscriber.commit`.

        """
        self._check_loop(may_have_none=True)
        if self._commits is None:
            raise ConfigError("cursor", "given where commit() is called", None)
        await self._in_executor(partial(self._commits.write, self._commits.positions(message)))

    async def close(self) -> None:
        """Close; what was not delivered yet stays outstanding in `stats()`.

        Tasks that wait get a `ClosedError`, and iterations end. With automatic commits it commits
        what is known to be processed: not what is in hand, for an exception may be the cause.
        Leaving an `async with` block without one commits that, too.

        Raises:
            CursorError: that could not be written; the subscriber is closed all the same.
            RuntimeError: it belongs to another event loop.

        """
        self._check_loop(may_have_none=True)
        await self._close(in_hand=False)

    def close_now(self) -> None:
        """Close as `close`, where no event loop runs; a cursor's last commit waits for the disk.

        Raises:
            CursorError: that could not be written; the subscriber is closed all the same.

        """
        if self._closed:
            return
        self._closed = True
        try:
            if self._commits is not None:
                self._commits.close(in_hand=False)
        finally:
            self._close_sockets()

    def wait_fds(self) -> list[int]:
        """Return the descriptors to wait for, in a loop that is not asyncio's; ask each time.

        Readable does not mean that a message has come. ZeroMQ's descriptors signal a change only
        once, so call `turn()`, and wait only when it has returned more than 0.
        """
        return [] if self._closed else sorted(self._io.fds())

    @property
    def next_deadline(self) -> float:
        """When `turn` is to be called at the latest, in seconds, as of `time.monotonic()`."""
        now = time.monotonic()
        return now + min(self._io.due_ns() / 1e9, SAFETY_S)

    def turn(self) -> float:
        """Read and send what can be at once, for 1 ms; a loop of asyncio does so by itself.

        Returns:
            After how many seconds to call it again at the latest; 0 where there is more to do.

        Raises:
            ClosedError: the subscriber is closed.
            RuntimeError: it belongs to another event loop.

        """
        self._check_loop(may_have_none=True)
        if self._closed:
            raise ClosedError("the subscriber", self._unusable)
        return min(self._turn(), SAFETY_S)

    async def __aenter__(self) -> Self:
        self._check_loop(may_have_none=True)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: "TracebackType | None",
    ) -> None:
        await self._close(in_hand=error is None)

    def __del__(self) -> None:
        if self._is_begun and not self._closed and not sys.is_finalizing():
            warnings.warn(
                f"{self._name} was not closed", ResourceWarning, stacklevel=2, source=self
            )
            self.close_now()

    async def _close(self, *, in_hand: bool) -> None:
        if self._closed:
            if self._loop is not None and not self._loop.stopping:
                await self._loop.wait_for(lambda: False, None)  # until another task has closed it
            return
        self._closed = True
        if self._loop is not None:
            self._loop.notify()
        try:
            if self._commits is not None:
                await self._in_executor(partial(self._commits.close, in_hand=in_hand))
        finally:
            self._close_sockets()

    def _close_sockets(self) -> None:
        self._active = NOTHING
        if self._loop is not None:
            self._loop.stop()
        self._io.stop()

    def _forget(self) -> None:
        super()._forget()
        self._loop = self._io.driver = None

    def _check_loop(self, *, may_have_none: bool = False) -> None:
        if self._loop is not None:
            self._loop.check_loop()
        elif not may_have_none and not self._closed:
            raise RuntimeError(
                f"{self._name} was made outside of an event loop of asyncio: use turn() and "
                "receive_nowait(), or make it in the loop"
            )

    async def _in_executor(self, call: Callable[[], None]) -> None:
        if self._loop is None:
            call()
        else:
            await self._loop.loop.run_in_executor(None, call)

    def _call(self, callback: Callable[[Any], Any], report: Any) -> None:
        if (result := call_back(callback, report, awaits=True)) is not None:
            self._pending = asyncio.ensure_future(result)

    async def _drain(self) -> None:
        """Wait for an `on_gap` or `on_end` that is a coroutine; cancelled here, it goes on."""
        pending = self._pending
        try:
            await asyncio.shield(pending)
        finally:
            if pending.done() and self._pending is pending:
                self._pending = None
        self._since_ns = _now_ns()

    async def _pause(self) -> None:
        """Let other tasks run."""
        self._io.pausing += 1
        try:
            await _yield_once()
        finally:
            self._io.pausing -= 1
        self._since_ns = _now_ns()

    async def _ask(self) -> None:
        """Commit what was returned before, with `commit="message"`."""
        commits, ask = self._commits, self._on_ask
        if commits is None or ask is None:
            return
        if commits.is_durable:
            await self._in_executor(ask)
        else:
            ask()

    def _turn(self) -> float:
        commits = self._commits
        if commits is not None:
            self._tend(_now_ns())
        wait_s = self._io.turn()
        return wait_s if commits is None else min(wait_s, commits.tick_s)

    def _tend(self, now_ns: int) -> None:
        """Have what is due of the cursor written."""
        commits = self._commits
        if commits is None or self._tending is not None or not commits.is_due(now_ns):
            return
        if self._loop is None:
            commits.handle_timer(now_ns)
            return
        future = self._loop.loop.run_in_executor(None, commits.handle_timer, now_ns)
        self._tending = future
        future.add_done_callback(self._tended)

    def _tended(self, future: "asyncio.Future[None]") -> None:
        self._tending = None
        if not future.cancelled():
            future.result()  # the loop reports what is raised here
        if self._loop is not None and self._commits is not None:
            self._loop.notify()
            self._loop.expect(0.005 if self._commits.is_due(_now_ns()) else 0.0)

    def _begin_nowait(self, count_max: int) -> bool:
        """Make messages active, if there are any."""
        self._check_loop(may_have_none=True)
        self._io.is_empty = False
        if self._on_ask is not None:
            self._on_ask()
        if self._take_now(count_max):
            return True
        self._io.read(0)
        if self._take_now(count_max):
            return True
        self._io.raise_refused()
        return False

    def _take_many(self, count_max: int) -> MessageBatch[T_co] | None:
        if self._commits is not None:
            self._commits.asked()
        self._io.is_empty = False
        taken = None if self._values is NO_VALUES else self._take_batch(count_max)
        if not taken and self._io.takes_batches and self._pending is None:
            taken = receive_frame(self, None, count_max, True, False, self._io.check)
        return taken or None

    def _take_now(self, count_max: int) -> bool:
        """Make what is there active; False: there is nothing yet."""
        if self._commits is not None:
            self._commits.asked()
            if self._commits.newcomers:
                return False
        if self._closed:
            raise ClosedError("the subscriber", self._unusable)
        if self._pending is not None:
            if not self._pending.done():
                return False
            pending, self._pending = self._pending, None
            pending.result()
        io = self._io
        if io.conflates:
            io.catch_up()
        if io.takes_batches and receive_frame(self, None, count_max, False, True, io.check):
            return True
        return self._activate(count_max)

    async def _advance(
        self, timeout: float | None, deadline_ns: int | None, count_max: int = _COUNT_MAX
    ) -> None:
        """Make a batch with messages the active one; all that is awaited comes before that."""
        io = self._io
        while True:
            if not io.is_empty and self._take_now(count_max):
                return
            if self._closed:
                raise ClosedError("the subscriber", self._unusable)
            if io.refused is not None:
                io.raise_refused()
            if self._pending is not None:
                await self._drain()
                io.is_empty = False
                continue
            if not io.is_empty:
                io.read(0)
                io.watch_changes()
            if not self._is_ready():
                if deadline_ns is not None and _now_ns() >= deadline_ns:
                    raise TimeoutError(f"no message within {timeout} s")
                await self._wait(deadline_ns)
            elif _now_ns() - self._since_ns > _SLICE_NS:
                await self._pause()
            io.is_empty = False

    def _is_ready(self) -> bool:
        return self._io.has_frame or super()._is_ready()

    async def _wait(self, deadline_ns: int | None) -> None:
        """Wait until there may be something to take."""
        loop, io = self._loop, self._io
        assert loop is not None
        now_ns = _now_ns()
        loop.expect(io.due_ns() / 1e9)
        left = None if deadline_ns is None else (deadline_ns - now_ns) / 1e9
        io.waiting += 1
        try:
            await loop.wait_for(self._is_ready, left)
        finally:
            io.waiting -= 1
            io.has_frame = False
            self._since_ns = _now_ns()


class _Messages:
    """Iterates by an async generator, which takes two thirds of the time of a coroutine for each.

    Such a generator ends with the first exception that leaves it, so it puts another one in its
    place then: `__anext__` is that of the present one. And it serves one task: while it waits,
    `__anext__` is a coroutine function for other tasks that iterate by the same object.
    """

    __slots__ = ("__anext__", "_source")

    def __init__(self, source: Subscriber) -> None:
        self._source = source
        self._renew()

    def __aiter__(self) -> Self:
        return self

    def _renew(self) -> None:
        self.__anext__ = _iterate(self._source, self).__anext__

    async def _wait(self, wait: Coroutine[Any, Any, R]) -> R:
        """Wait for the generator; meanwhile others are served by `_next`."""
        present = self.__anext__
        self.__anext__ = self._next
        try:
            return await wait
        finally:
            self.__anext__ = present

    async def _next(self) -> Message[Any]:
        try:
            return await self._source.receive()
        except (ClosedError, SessionEndedError) as error:
            if is_inherited(error):
                raise
            raise StopAsyncIteration from None


async def _iterate(source: Subscriber[Any], owner: _Messages) -> AsyncIterator[Message[Any]]:
    run = 1
    try:
        while not source._closed:
            if source._on_ask is not None:
                yield await owner._wait(source.receive())
                continue
            values = source._values
            if not values.__length_hint__():
                source._io.is_empty = False
                await owner._wait(source._advance(None, None))
                values = source._values
            start_ns = _now_ns()
            while source._values is values and values.__length_hint__() and not source._closed:
                for message in islice(source._active, run):
                    yield message
                now_ns = _now_ns()
                # Handling as many as that takes a tenth of a slice.
                run = min(_RUN_MAX, 2 * run) if now_ns - start_ns < _SLICE_NS // 10 else 1
                if now_ns - source._since_ns > _SLICE_NS:
                    await owner._wait(source._pause())
                    now_ns = source._since_ns
                start_ns = now_ns
        if source._unusable == INHERITED:
            raise ClosedError("the subscriber", INHERITED)
    except (ClosedError, SessionEndedError) as error:
        if is_inherited(error):
            owner._renew()
            raise
    except GeneratorExit:  # the loop ends, or nobody iterates any more
        raise
    except BaseException:
        owner._renew()
        raise


class _Batches:
    """Iterates over batches; it goes on after an exception."""

    def __init__(self, source: Subscriber, count_max: int) -> None:
        self._source = source
        self._count_max = count_max

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> MessageBatch[T_co]:
        try:
            return await self._source.receive_many(self._count_max)
        except (ClosedError, SessionEndedError) as error:
            if is_inherited(error):
                raise
            raise StopAsyncIteration from None


def _is_in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


@types.coroutine
def _yield_once() -> Generator[None, None, None]:
    yield
