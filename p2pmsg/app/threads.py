"""Threads for handlers that are plain functions."""

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final, TypeVar

from p2pmsg.toolkit import check_result, here

T = TypeVar("T")
_END: Final = None
AWAIT: Final = "await it in the function"
"""What to do about a coroutine that a function returned."""


class HandlerThreads:
    """A bounded number of threads, started when they are needed.

    They are daemons, unlike those of `concurrent.futures`: a handler that never returns must not
    keep the process alive.

    Args:
        count: how many at most; further calls wait for one.

    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._started = 0
        self._busy = 0
        self._calls: SimpleQueue[tuple[asyncio.Future[Any], Callable[[], Any]] | None] = (
            SimpleQueue()
        )

    async def run(self, call: Callable[[], T]) -> T:
        """Return what `call` returns; where this is cancelled, the call goes on by itself."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        context = contextvars.copy_context()
        self._busy += 1
        if self._busy > self._started and self._started < self._count:
            self._started += 1
            name = f"p2pmsg-handler-{self._started}"
            threading.Thread(target=self._work, args=[loop], name=name, daemon=True).start()
        self._calls.put((future, lambda: context.run(call)))
        with here().at_work():
            return await future

    async def call(self, name: str, call: Callable[[], Any], *, is_async: bool = False) -> Any:
        """Return what a user's function returned: called here where it is async, else in a thread.

        What a plain function returns is awaited here where it can be: a decorator may hide that it
        is an `async def`. `TypeError` where it has not run all the same, since it has a `yield`.
        """
        result = call() if is_async else await self.run(call)
        if inspect.isawaitable(result):
            result = await result
        if result is not None:
            check_result(name, result, AWAIT, may_be_task=True)
        return result

    def close(self) -> None:
        """Have each thread end after what it does now."""
        for _ in range(self._started):
            self._calls.put(_END)

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        while (given := self._calls.get()) is not _END:
            future, call = given
            result: Any = None
            error: BaseException | None = None
            if not future.cancelled():
                try:
                    result = call()
                except StopIteration as raised:  # a future cannot hold it
                    error = RuntimeError(f"the handler raised {raised!r}")
                except BaseException as raised:
                    error = raised
            try:
                loop.call_soon_threadsafe(self._settle, future, result, error)
            except RuntimeError:
                return  # the loop is closed
            del future, call, given, result, error

    def _settle(
        self, future: asyncio.Future[Any], result: Any, error: BaseException | None
    ) -> None:
        self._busy -= 1
        if future.done():
            if inspect.iscoroutine(result):
                result.close()  # nobody waits for it any more
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
