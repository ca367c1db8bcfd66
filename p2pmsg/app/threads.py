"""Threads for handlers that are plain functions."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final, TypeVar

T = TypeVar("T")
_END: Final = None


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
        return await future

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
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
