"""The responder for asyncio."""

import asyncio
import inspect
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Self

import transports
from p2pmsg.aio.closing import ClosesInLoop
from p2pmsg.aio.loop import SAFETY_S, LoopDriver
from p2pmsg.aio.turns import TakesTurns
from p2pmsg.aio.waiting import Look, Pace
from p2pmsg.checks import BUSY_WAIT, checked, is_async, time_to_wait
from p2pmsg.driver.lifecycle import close_in_children
from p2pmsg.errors import ClosedError, InvalidValueError
from p2pmsg.requests.frames import MESSAGE_BYTES
from p2pmsg.requests.inbox import Arrival, Inbox
from p2pmsg.requests.responder_base import (
    EXPIRED,
    LEFT,
    Handler,
    ReplyCache,
    Request,
    ResponderBase,
)
from transports.own_log import own_log as _log

if TYPE_CHECKING:
    from p2pmsg.security.settings import Security

_RIGHTS_S: Final = 1.0
"""How often it is looked, with security, whether rights have changed."""
_BURST: Final = 256
"""Requests that are received at once while others are worked on; it takes 1 ms at most."""
_at_work: ContextVar[tuple[ReplyCache, Request]] = ContextVar("_at_work")
AsyncHandler = Callable[[Any], Awaitable[Any]]


def is_wanted() -> bool:
    """Whether anybody waits for what the current task works on."""
    cache, request = _at_work.get()
    return not cache.is_over(request, time.monotonic_ns())


class Responder(ResponderBase, TakesTurns, ClosesInLoop):
    """Answers requests: what a topic's handler returns is the reply.

    ::

        async def price(name):
            return await look_up(name)

        async with aio.Responder("tcp://127.0.0.1:5560", {"price": price}) as responder:
            ...                                  # the event loop answers

    or `await responder.serve()`. A handler is a function or a coroutine function. A function is
    called in the loop, and must not block; give work that blocks to `asyncio.to_thread`, in a
    coroutine. Each call of a coroutine function is a task; `tasks_max` of them are at work at once.
    What a handler raises goes to the requester, with its type and text. A request that comes again
    is answered from a cache.

    **Without asyncio** (trio, a loop of your own): make it where no asyncio loop runs. Then wait
    until one of `wait_fds()` is readable or `next_deadline` has come, and call `turn()`. What is to
    be awaited is begun with `begin`, as `begin(peer.close())`; at the end call `close_now()`.

    Args:
        endpoint: where to bind.
        handlers: by topic; more with `on`. Default: none.
        type: what the value of each request is made before its handler gets it: a dataclass or any
            other type that `Subscriber(type=)` takes. One that does not fit is counted in
            `invalid_values` and answered with `InvalidValueError`, which names the place in it.
            Default None: what was sent.
        types: instead of `type`, types by topic, or by prefix followed by `*`. Default None.
        tasks_max: how many requests are at work at once in coroutines. Default 100.
        pending_max: how many requests may wait for that; further ones are left to be asked again,
            and counted in `refused`. Default 1000.
        cache_max: how many replies are kept. Default 10,000.
        cache_bytes_max: bytes of them. Default 64 MiB.
        cache_age: for how long, in seconds. Default 60: beyond the retries of most requests.
        message_bytes_max: largest reply, packed; at most 16 MiB, of which the header takes 1 KiB.
            The requester gets `MessageTooLargeError` for a larger one, as a `RemoteError`. Default
            1 MiB.
        busy_wait: for how long the loop looks for the next request before it sleeps, in seconds, as
            for `Requester`. Default 0.0002.
        security: this peer's key, and whom it knows: only they connect, encrypted, and both ends
            known to each other. Default None: open.

    Raises:
        ConfigError: an argument is out of its limits, or the endpoint is none.
        BindError: the endpoint could not be bound.

    """

    @checked(busy_wait=BUSY_WAIT, message_bytes_max=MESSAGE_BYTES, tasks_max=1, pending_max=1)
    def __init__(
        self,
        endpoint: str,
        handlers: Mapping[str, Handler | AsyncHandler] | None = None,
        *,
        type: Any = None,  # noqa: A002  # as `Subscriber` calls it
        types: Mapping[str, Any] | None = None,
        tasks_max: int = 100,
        pending_max: int = 1000,
        cache_max: int = 10_000,
        cache_bytes_max: int = 64 * 2**20,
        cache_age: float = 60.0,
        message_bytes_max: int = 1024 * 1024,
        busy_wait: float = transports.BUSY_WAIT_US / 1e6,
        security: "Security | None" = None,
    ) -> None:
        self._driver = LoopDriver(
            f"the responder at {endpoint}", self._turn, at_loop_end=self.close_now, by_caller=True
        )
        self._loop = self._driver.loop
        self._tasks_max = tasks_max
        self._slow: set[str] = set()
        self._configure(
            handlers, pending_max, cache_max, cache_bytes_max, cache_age, message_bytes_max,
            type, types, security,
        )  # fmt: skip
        self._check = Look(busy_wait)
        self._pace = Pace()
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: deque[tuple[Request, Awaitable[Any]]] = deque()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._started = self._is_in_turn = False
        self._server = self._bind(endpoint, 0.0)
        self._inbox = Inbox(self._server, burst=_BURST)
        self._is_made = True
        close_in_children(self)
        self._driver.guard()  # it may be left before it is started

    # --------------------------------------------------------------------------------- public

    @property
    def endpoint(self) -> str:
        """Where requesters connect to, with the port that was picked."""
        return self._server.endpoint

    def start(self) -> Self:
        """Answer requests from now on; return this responder.

        Raises:
            ClosedError: the responder is closed.
            RuntimeError: it was made in another event loop.

        """
        if self._closed:
            raise ClosedError("the responder", self._unusable)
        self._driver.check_loop()
        if not self._started:
            self._started = True
            self._driver.watch([self._server.fd])
            self._driver.start()
        return self

    async def serve(self) -> None:
        """Answer requests until `close` is called by another task, or this one is cancelled.

        Raises:
            ClosedError: the responder is closed.
            RuntimeError: it was made in another event loop.

        """
        self.start()
        await asyncio.shield(self._ended)

    async def close(self, timeout: float | None = None) -> None:
        """Stop answering: what is at work is finished and answered first.

        Args:
            timeout: how long to wait for that, in seconds; then, or where this is cancelled, the
                tasks at work are cancelled. Default None: without end.

        """
        if timeout is not None:
            timeout = time_to_wait("timeout", timeout)
        if self._closed:
            return
        if not self._driver.stopping:
            self._driver.check_loop()
        self._closed = True
        try:
            if self._tasks and not self._driver.stopping:
                self._driver.watch(())  # nothing is read any more, so they would stay readable
                await self._driver.wait_for(lambda: not self._tasks, timeout)
        finally:
            self.close_now()

    def close_now(self) -> None:
        """Close without waiting for what is at work, also where its event loop has ended."""
        self._closed = True
        if self._driver.stopping:
            return
        self._driver.stop()
        if not self._loop.is_closed():
            for task in self._tasks:
                task.cancel()
            if not self._ended.done():
                self._ended.set_result(None)
        while self._waiting:
            result = self._waiting.popleft()[1]
            if inspect.iscoroutine(result):
                result.close()  # it was never begun
        if self._is_made:
            self._server.close(linger_ms=500)

    async def __aenter__(self) -> Self:
        return self.start()

    # -------------------------------------------------------------------------------- private

    def _turn(self) -> float:
        pace, look = self._pace, self._check
        pace.begin()
        if self._access_rules is not None:
            self._access_rules.check()
        self._is_in_turn = True
        try:
            while not self._closed and (self._read_next() or look.find(self._read_next)):
                if pace.is_over():
                    return 0.0
        finally:
            self._is_in_turn = False
        if look.is_on:
            return 0.0
        return SAFETY_S if self._access_rules is None else min(SAFETY_S, _RIGHTS_S)

    def _wake(self) -> None:
        self._driver.wake()

    def _read_next(self) -> bool:
        """Take the next request; whether there was one."""
        arrival = self._inbox.take()
        if arrival is None:
            found = self._server.receive()
            if found is None:
                return False
            arrival = *found, self._server.user, time.monotonic_ns()
        self._check.end()
        self._take(arrival)
        if not self._closed:
            self._inbox.fill(time.monotonic_ns())
        return True

    def _reply(self, where: bytes, reply: bytes) -> bool:
        is_sent = super()._reply(where, reply)
        # A send takes the descriptor's signal, so what has come must be looked for.
        is_worth_it = self._check.begin()
        if not self._is_in_turn and (is_worth_it or self._server.has_message()):
            self._driver.wake()
        return is_sent

    def _take(self, arrival: Arrival) -> None:
        found = self._read(arrival)
        if found is None:
            return
        where = arrival[0]
        request, topic, value, until_ns = found
        is_new, reply = self._cache.begin(request, where, until_ns)
        if reply is not None:
            self._answer_again(where, request, reply)
        elif is_new and until_ns <= time.monotonic_ns():
            self._expire(request)
        elif is_new and topic in self._slow:
            if len(self._tasks) + len(self._waiting) < self._tasks_max + self._pending_max:
                self._work_slowly(request, topic, value)
            else:
                self.refused += 1
                self._cache.drop(request)
        elif is_new:
            self._work_at_once(request, topic, value)

    def _work_slowly(self, request: Request, topic: str, value: Any) -> None:
        try:
            value = self._typed(topic, value)
        except InvalidValueError as error:
            self._reply_to(request, self._pack_error(request, error))
        else:
            self._begin_work(request, self._handlers[topic](value))

    def _work_at_once(self, request: Request, topic: str, value: Any) -> None:
        handler = self._handlers.get(topic)
        if handler is None:
            self._reply_to(request, self._refusal(request))
            return
        try:
            result = handler(self._typed(topic, value))
            if inspect.isawaitable(result):  # it cannot be seen of the function itself
                self._begin_work(request, result)
                return
            reply = self._pack(request, result)
        except (Exception, asyncio.CancelledError) as error:
            reply = self._pack_error(request, error)
        except BaseException as error:
            self._reply_to(request, self._pack_error(request, error))
            raise
        self._reply_to(request, reply)

    def _add(self, topic: str, handler: Handler) -> None:
        super()._add(topic, handler)
        if is_async(handler):
            self._slow.add(topic)
        else:
            self._slow.discard(topic)

    def _begin_work(self, request: Request, result: Awaitable[Any]) -> None:
        """Have a task wait for a result, or have it wait for a task."""
        if len(self._tasks) >= self._tasks_max:
            self._waiting.append((request, result))
            return
        task = self._loop.create_task(self._handle(request, result))
        self._tasks.add(task)
        task.add_done_callback(self._end_task)

    async def _handle(self, request: Request, result: Awaitable[Any]) -> None:
        _at_work.set((self._cache, request))
        try:
            value = await result
            if value is EXPIRED:
                self._expire(request)
                return
            if value is LEFT:
                self.refused += 1
                self._cache.drop(request)
                return
            reply = self._pack(request, value)
        except Exception as error:
            reply = self._pack_error(request, error)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                self._cache.drop(request)  # asked again, it is done again
                raise
            reply = self._pack_error(request, error)  # what the handler waited for was cancelled
        except BaseException as error:
            self._reply_to(request, self._pack_error(request, error))
            raise
        self._reply_to(request, reply)

    def _end_task(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("the responder failed to reply", exc_info=task.exception())
        if self._closed:
            self._driver.notify()
            return
        while self._waiting and len(self._tasks) < self._tasks_max:
            request, result = self._waiting.popleft()
            is_over = self._cache.is_over(request, time.monotonic_ns())
            if is_over and inspect.iscoroutine(result):
                result.close()
                self._expire(request)
            else:  # what is no coroutine is being worked on already
                self._begin_work(request, result)

    def _forget(self) -> None:
        """In a forked child: neither the socket nor the tasks are the child's."""
        ResponderBase._forget(self)
        ClosesInLoop._forget(self)
