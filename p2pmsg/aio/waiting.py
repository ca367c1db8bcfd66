"""Tasks that wait for one of something, and tasks that must let others run."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeVar

from p2pmsg.checks import at_least

_REST_MAX: Final = 16
_LOOK_NS: Final = 100_000
"""How long it is looked at most until other tasks have their turn."""
SLICE_NS: Final = 2_000_000
"""How long tasks that never wait run, all together, until other tasks have their turn."""
_monotonic_ns = time.monotonic_ns
R = TypeVar("R")


class Waiters:
    """Tasks that wait, the first one first; each `offer` wakes so many, and no more.

    Nothing is given to a task here: it is woken, and looks for itself. So one that is cancelled has
    lost nothing; if it was woken already, the next one is woken in its place.

    Attributes:
        is_closed: whether `close` was called; nobody waits from then on.

    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[asyncio.Future[bool]] = deque()
        self._woken = 0
        self.is_closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    def offer(self, count: int) -> None:
        """Wake the first tasks, until `count` are awake that have not looked yet."""
        waiting = self._waiting
        while waiting and self._woken < count:
            future = waiting.popleft()
            if not future.done():
                future.set_result(True)
                self._woken += 1

    def close(self) -> None:
        """Wake all; where their loop is closed, nobody can be woken any more."""
        self.is_closed = True
        if not self._loop.is_closed():
            self.offer(self._woken + len(self._waiting))

    async def wait(self, until: float | None) -> bool:
        """Wait until it is this task's turn; False where `until`, of the loop's clock, came first.

        Who was woken and finds nothing, since another task was faster, waits again.
        """
        if self.is_closed:
            return True
        future: asyncio.Future[bool] = self._loop.create_future()
        self._waiting.append(future)
        timer = None if until is None else self._loop.call_at(until, _time_out, future)
        try:
            return await future
        except asyncio.CancelledError:
            if _is_woken(future):
                self.offer(self._woken + 1)
            raise
        finally:
            if timer is not None:
                timer.cancel()
            if _is_woken(future):
                self._woken -= 1
            elif future in self._waiting:
                self._waiting.remove(future)


def until_of(loop: asyncio.AbstractEventLoop, timeout: float | None) -> float | None:
    """Return when `timeout` is over, of the loop's clock; `ConfigError` where it is none."""
    if timeout is None:
        return None
    at_least("timeout", timeout, 0)
    return loop.time() + timeout


class Pace:
    """How long tasks that never have to wait may go on until they let others run.

    ::

        if pace.is_over():
            await pace.rest()

    Attributes:
        until_ns: when the time is up, of the monotonic clock.

    """

    def __init__(self) -> None:
        self.until_ns = 0
        self._resting = 0

    def is_over(self) -> bool:
        """Whether it is time to let others run."""
        return _monotonic_ns() >= self.until_ns

    def begin(self) -> None:
        """Note that others have had their turn."""
        self.until_ns = _monotonic_ns() + SLICE_NS // (1 + self._resting)

    async def rest(self) -> None:
        """Let all other tasks run once."""
        self._resting += 1
        try:
            await asyncio.sleep(0)
        finally:
            self._resting -= 1
        self.begin()


async def in_executor(call: Callable[[], R], undo: Callable[[R], Any]) -> R:
    """Call in a thread of the loop's executor; where the task is cancelled meanwhile, undo it."""
    future = asyncio.get_running_loop().run_in_executor(None, call)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        future.add_done_callback(lambda done: None if done.exception() else undo(done.result()))
        raise


def _is_woken(future: "asyncio.Future[bool]") -> bool:
    return future.done() and not future.cancelled() and future.result()


def _time_out(future: "asyncio.Future[bool]") -> None:
    if not future.done():
        future.set_result(False)
