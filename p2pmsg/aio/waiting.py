"""Tasks that wait for one of something, and tasks that must let others run."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Generator
from contextvars import Context
from typing import Any, Final, Generic, TypeVar

from p2pmsg.checks import at_least
from transports.platform import sched_yield

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


class Reply(Generic[R]):
    """A future for one task, which runs in the very step in which `wake` is called.

    A future of asyncio has its task run in the loop's next round, and a round takes a tenth of the
    time of a request. Tasks take anything that behaves as a future: see `asyncio.isfuture`.
    """

    _asyncio_future_blocking = False
    """What a task looks at, and sets: whether this was given to it to wait for."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._value: R | None = None
        self._error: BaseException | None = None
        self._is_done = False
        self._wakeup: tuple[Callable[[Any], object], Context] | None = None

    def set_result(self, value: R) -> None:
        """Note the result; the task still waits for `wake`."""
        self._value, self._is_done = value, True

    def set_exception(self, error: BaseException) -> None:
        """Have this raised in the task, in the loop's next round."""
        self._error, self._is_done = error, True
        self._loop.call_soon(self.wake)

    def wake(self) -> None:
        """Run the task that waits, if there is one; to be called in the loop and in no task."""
        wakeup, self._wakeup = self._wakeup, None
        if wakeup is not None:
            call, context = wakeup
            context.run(call, self)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop of the task."""
        return self._loop

    def done(self) -> bool:
        """Whether there is a result or an exception."""
        return self._is_done

    def result(self) -> R:
        """Return the result, or raise."""
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # it is done

    def add_done_callback(self, call: Callable[[Any], object], *, context: Context) -> None:
        """Have `call` called by `wake`; the task does this when it begins to wait."""
        self._wakeup = call, context

    def cancel(self, msg: Any = None) -> bool:
        """Raise `CancelledError` in the task, which calls this; False where it is too late."""
        if self._is_done:
            return False
        self.set_exception(asyncio.CancelledError(*(() if msg is None else (msg,))))
        return True

    def __await__(self) -> Generator[Any, None, R]:
        if not self._is_done:
            self._asyncio_future_blocking = True
            yield self
        return self.result()


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


class Look:
    """Whether a loop that has sent something looks for the answer before it sleeps.

    As `transports.BusyWait`, but in rounds of the loop, so that other tasks run in between. After a
    look in vain the next wait sleeps, and after each further one twice as many, 16 at most; an
    answer within the window ends that.

    Args:
        window_s: how long to look at most, in seconds; 0 never looks.

    """

    def __init__(self, window_s: float) -> None:
        self._window_ns = 0 if sched_yield is None else round(window_s * 1e9)
        self._rest = self._rest_last = 1
        self._begun_ns = 0
        self._until_ns = 0

    def begin(self) -> bool:
        """Note that something was sent; whether to look for the answer."""
        self._begun_ns = now_ns = _monotonic_ns()
        if self._until_ns:
            self._until_ns = now_ns + self._window_ns
        elif self._rest:
            self._rest -= 1
        elif self._window_ns:
            self._until_ns = now_ns + self._window_ns
        return self._until_ns != 0

    def find(self, take: Callable[[], bool]) -> bool:
        """Call `take` for a moment, as long as it is worth it; whether it has taken something.

        Where it has not and `is_on`, call this again when other tasks have run.
        """
        until_ns = self._until_ns
        if not until_ns or sched_yield is None:
            return False
        now_ns = _monotonic_ns()
        pause_ns = now_ns + _LOOK_NS
        while now_ns < until_ns:
            if take():
                return True
            if now_ns >= pause_ns:
                return False
            sched_yield()  # the core is left to others
            now_ns = _monotonic_ns()
        self._give_up()
        return False

    @property
    def is_on(self) -> bool:
        """Whether it is worth it to look on: the window is not over."""
        if self._until_ns and _monotonic_ns() >= self._until_ns:
            self._give_up()
        return self._until_ns != 0

    def _give_up(self) -> None:
        self._until_ns = 0
        self._rest = self._rest_last = min(max(1, 2 * self._rest_last), _REST_MAX)

    def end(self) -> None:
        """Note that an answer came, and that none is waited for any more."""
        self._until_ns = 0
        if self._begun_ns and _monotonic_ns() - self._begun_ns < self._window_ns:
            self._rest = self._rest_last = 0
        self._begun_ns = 0


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
