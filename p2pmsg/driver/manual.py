"""The driver for callers with a loop of their own: trio, or any that waits for descriptors."""

import asyncio
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

from p2pmsg.driver.lifecycle import check_process
from p2pmsg.driver.peer import Peer
from p2pmsg.driver.turns import SAFETY_NS, TaskDriver, Waiter
from p2pmsg.driver.verbs import Wait
from p2pmsg.errors import ClosedError

R = TypeVar("R")


class Begun(Generic[R]):
    """A call that was begun in a loop of the caller's own, and goes on with each turn."""

    def __init__(self, driver: "ManualDriver", call: Awaitable[R]) -> None:
        self._driver = driver
        self._call: Coroutine[Any, Any, R] = _wait_for(call)
        self._is_done = False
        self._result: Any = None
        self._error: BaseException | None = None
        self._calls: list[Callable[[Begun[R]], object]] = []
        self._waiter: Waiter | None = None

    def done(self) -> bool:
        """Whether it has ended."""
        return self._is_done

    def result(self) -> R:
        """Return what the call returned, or raise what it raised.

        Raises:
            RuntimeError: it has not ended.

        """
        if not self._is_done:
            raise RuntimeError("the call has not ended; have its peer take turns")
        if self._error is not None:
            raise self._error
        result: R = self._result
        return result

    def add_done_callback(self, call: Callable[["Begun[R]"], object]) -> None:
        """Have `call(self)` called when it has ended; at once where it has."""
        if self._is_done:
            call(self)
        else:
            self._calls.append(call)

    def cancel(self) -> bool:
        """End it where it waits; False where it has ended already."""
        if self._is_done:
            return False
        self._driver.forget(self._waiter)
        self._go_on(error=asyncio.CancelledError())
        return True

    def _go_on(self, error: BaseException | None = None) -> None:
        """Go on until it waits."""
        try:
            wait = self._call.send(None) if error is None else self._call.throw(error)
            self._waiter = self._driver.wait(wait, self._go_on)
            return
        except StopIteration as end:
            self._result = end.value
        except BaseException as failure:
            self._error = failure
        self._is_done = True
        calls, self._calls = self._calls, []
        for each in calls:
            each(self)


class ManualDriver(TaskDriver):
    """Gives a peer its turns when its caller says so: for trio, or a loop of one's own.

    The caller waits until one of the peer's descriptors is readable or its deadline has come, and
    calls `take_turn`. A call that waits is begun by `begin`, and goes on in turns.
    """

    def __init__(self, peer: Peer) -> None:
        check_process()
        super().__init__(peer)
        self._due_ns = 0

    def start(self, close: Callable[[], object]) -> None:
        """Begin; its end is the caller's."""
        self._begin_upkeep()

    def check_caller(self) -> None:
        """Raise `RuntimeError` in another thread, and where an event loop of asyncio runs."""
        super().check_caller()
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        what = f"{self.peer.name} was made outside of an event loop of asyncio"
        raise RuntimeError(f"{what}: use turn() and begin(), or make it in the loop")

    @property
    def due_ns(self) -> int:
        """When the next turn is due, of the monotonic clock."""
        return self._due_ns

    def take_turn(self) -> int:
        """Take a turn; return in how many ns the next one is due, 0.2 s at most.

        Raises:
            ClosedError: the peer is closed.

        """
        self.check_caller()
        if self.stopping:
            raise ClosedError("it", "it is closed, and nothing that was begun is left")
        self._due_ns = SAFETY_NS
        wait_ns = min(super().take_turn(), self._due_ns)  # which is 0 after a `wake` meanwhile
        self._due_ns = self.now_ns() + wait_ns
        return wait_ns

    def wake(self) -> None:
        """Have a turn due now."""
        self._due_ns = 0

    def begin(self, call: Awaitable[R]) -> Begun[R]:
        """Begin a call of the peer, such as `drain()`; `ClosedError` where that is closed."""
        self.check_caller()
        if self.stopping:
            if isinstance(call, Coroutine):
                call.close()
            raise ClosedError("it", "it is closed, and takes no turns")
        begun = Begun(self, call)
        begun._go_on()
        return begun

    async def _sleep(self, wait: Wait) -> None:
        await _hand(wait)

    def wait(self, wait: Wait, go_on: Callable[[], object]) -> Waiter:
        """Have `go_on` called when it is to be looked at again; return what `forget` takes."""
        waiter = Waiter(wait, go_on)
        self._waiting[waiter] = None
        self.wake()
        return waiter

    def forget(self, waiter: Waiter | None) -> None:
        """End a wait, whose call is cancelled."""
        if waiter is not None:
            self._waiting.pop(waiter, None)


@types.coroutine
def _hand(wait: Wait) -> Generator[Wait, None, None]:
    yield wait


async def _wait_for(call: Awaitable[R]) -> R:
    return await call
