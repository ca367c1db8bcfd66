"""Peers without asyncio: their caller waits for descriptors, and has each take its turns."""

import asyncio
import time
from collections.abc import Awaitable
from typing import TypeVar

from p2pmsg.aio.loop import LoopDriver
from p2pmsg.aio.own_loop import OwnLoop
from p2pmsg.errors import ClosedError

R = TypeVar("R")


class TakesTurns:
    """A peer that works where no loop of asyncio runs.

    It was made where none runs. Then its caller waits until one of `wait_fds()` is readable or
    `next_deadline` has come, and calls `turn()`; `begin` has a coroutine of the peer go on
    meanwhile.
    """

    _driver: LoopDriver

    def wait_fds(self) -> list[int]:
        """Return the descriptors to wait for, in a loop that is not asyncio's; ask each time.

        Raises:
            RuntimeError: it was made in an event loop, which does that by itself.

        """
        loop = self._own_loop()
        return [] if loop.is_closed() else [loop.fd]

    @property
    def next_deadline(self) -> float:
        """When `turn` is to be called at the latest, in seconds, as of `time.monotonic()`.

        Raises:
            RuntimeError: it was made in an event loop, which does that by itself.

        """
        return time.monotonic() + self._own_loop().due_s(self._driver.safety_s)

    def turn(self) -> float:
        """Do what can be done at once, for some ms at most, and go on with what was begun.

        Returns:
            After how many seconds to call it again at the latest; 0 where there is more to do.

        Raises:
            ClosedError: the peer is closed, and all that was begun has ended.
            RuntimeError: it was made in an event loop, which does that by itself, or in another
                thread.

        """
        loop = self._own_loop()
        self._driver.check_loop()
        if loop.is_closed():
            raise ClosedError("it", "it is closed, and nothing that was begun is left")
        loop.take_round()
        return 0.0 if loop.is_closed() else loop.due_s(self._driver.safety_s)

    def begin(self, call: Awaitable[R]) -> "asyncio.Task[R]":
        """Begin a call of this peer, such as `drain()`; it goes on with each turn.

        Args:
            call: what the method returned, not awaited yet.

        Returns:
            Its task, for `done()`, `result()` and `cancel()`; to be awaited by nobody.

        Raises:
            ClosedError: the peer is closed.
            RuntimeError: it was made in an event loop, where calls are awaited, or in another
                thread.

        """
        loop = self._own_loop()
        self._driver.check_loop()
        if loop.is_closed():
            getattr(call, "close", lambda: None)()
            raise ClosedError("it")
        return loop.create_task(_wait_for(call))

    def _own_loop(self) -> OwnLoop:
        loop = self._driver.loop
        if not isinstance(loop, OwnLoop):
            raise RuntimeError(f"{self!r} was made in an event loop, which takes its turns")
        return loop


async def _wait_for(call: Awaitable[R]) -> R:
    return await call
