"""The driver for asyncio."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import suppress
from functools import partial
from typing import Any, Final

import transports
from p2pmsg.driver.lifecycle import check_process
from p2pmsg.driver.peer import Peer
from p2pmsg.driver.turns import AGAIN_NS, SAFETY_NS, TaskDriver, Waiter
from p2pmsg.driver.verbs import Blocking, Calling, Steps, Wait
from transports.own_log import own_log as _log

_SLICE_NS: Final = 1_000_000
"""How long calls that never wait run, all together, until other tasks have their turn."""


class LoopDriver(TaskDriver):
    """Gives a peer its turns in the running event loop of asyncio.

    A turn is taken when one of its descriptors is readable, when its deadline has come, and after
    `wake`. A call that waits is a task of its own, which goes on in the loop's next round.

    Raises:
        RuntimeError: no event loop is running.

    """

    def __init__(self, peer: Peer) -> None:
        self.loop = asyncio.get_running_loop()
        check_process()
        super().__init__(peer)
        self._fds: Collection[int] = ()
        self._soon: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._rested_ns = 0
        self._last_block = threading.Event()
        self._last_block.set()
        self._guard: AsyncGenerator[None, None] | None = None

    def start(self, close: Callable[[], object]) -> None:
        """Begin; `close` is called where the loop ends before the peer was closed."""
        self._close = close
        self._guard = self._until_loop_end()
        _step(self._guard.asend(None))
        self._begin_upkeep()
        self.wake()

    def running_loop(self) -> asyncio.AbstractEventLoop:
        """Return the event loop in which the peer was made."""
        return self.loop

    def check_caller(self) -> None:
        """Raise `RuntimeError` where the caller is not in the loop in which the peer was made."""
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            where = "outside of an event loop"
        else:
            if here is self.loop:
                return
            where = "in another event loop"
        raise RuntimeError(f"{self.peer.name} was made in one event loop and is used {where}")

    def wake(self) -> None:
        """Have a turn taken in the loop's next round; called by other threads, too."""
        if self._soon is None and not self.stopping and not self.loop.is_closed():
            if threading.get_ident() == self._thread:
                self._soon = self.loop.call_soon(self._take_turn)
            else:
                with suppress(RuntimeError):  # it was closed meanwhile
                    self.loop.call_soon_threadsafe(self.wake)

    def must_rest(self) -> bool:
        """Whether calls that never wait went on for so long that other tasks have their turn."""
        return self.now_ns() - self._rested_ns > _SLICE_NS

    async def rest(self) -> None:
        """Let other tasks run."""
        await asyncio.sleep(0)
        self._rested_ns = self.now_ns()

    def stop(self) -> None:
        """End it; all calls that wait look once more."""
        if self.stopping:
            return
        for handle in (self._soon, self._timer):
            if handle is not None:
                handle.cancel()
        self._watch(())
        guard, self._guard = self._guard, None
        try:
            super().stop()
        finally:
            if guard is not None:
                _step(guard.aclose())

    def _see_to_others(self) -> None:
        self.notify()

    async def _sleep(self, wait: Wait) -> None:
        future: asyncio.Future[None] = self.loop.create_future()
        waiter = Waiter(wait, partial(self._wake_task, future))
        has_others = bool(self._waiting)  # for what this call has begun, perhaps
        self._waiting[waiter] = None
        if has_others:
            self.wake()
        else:
            self._rest_until(wait.deadline_ns)
        try:
            await future
        finally:
            self._waiting.pop(waiter, None)
            self._rested_ns = self.now_ns()

    async def _make_call(self, steps: Steps[Any]) -> None:
        request = steps.request
        if isinstance(request, Calling):
            if self.must_rest():
                await self.rest()
            steps.call()
            return
        assert isinstance(request, Blocking)
        try:
            steps.take(await asyncio.shield(self._begin_blocking(request)))
        except Exception as error:
            steps.take(None, error)

    def _wake_task(self, future: "asyncio.Future[None]") -> None:
        if not future.done() and not self.loop.is_closed():
            future.set_result(None)

    def _begin_blocking(self, request: Blocking) -> "asyncio.Future[Any]":
        """Make a call in the executor, after those that were asked for before; here at the end."""
        before, after = self._last_block, threading.Event()
        self._last_block = after

        def call() -> Any:
            before.wait()
            try:
                return request.call()
            finally:
                after.set()

        try:
            return self.loop.run_in_executor(None, call)
        except RuntimeError:  # the loop is closed, or its executor
            after.set()
            future = self.loop.create_future()
            try:
                future.set_result(request.call())
            except Exception as error:
                future.set_exception(error)
            return future

    def _has_called(self, steps: Steps[Any], again: Callable[[], object]) -> bool:
        request = steps.request
        if isinstance(request, Calling):
            steps.call()
            return True

        def end(done: "asyncio.Future[Any]") -> None:
            steps.take(*_outcome(done))
            again()

        assert isinstance(request, Blocking)
        self._begin_blocking(request).add_done_callback(end)
        return False

    # --------------------------------------------------------------------------- turns

    def _take_turn(self) -> None:
        self._soon = None
        if self.stopping:
            return
        try:
            wait_ns = self.take_turn()
            if self.stopping:
                return
            self._await(self.peer.fds(), wait_ns)
        except BaseException as error:  # it must go on: without it nothing is repaired
            if self.stopping:
                return
            self._watch(())  # a descriptor that is readable would be a loop
            self._expect(AGAIN_NS)
            if isinstance(error, SystemExit | KeyboardInterrupt):
                raise
            if not transports.ended_at_exit(error):
                _log.exception("%s: its turn failed; it goes on", self.peer.name)

    def _rest_until(self, deadline_ns: int | None) -> None:
        fds, due_ns = self.section.run(self._find_due)
        due_ns = due_ns if deadline_ns is None else min(due_ns, deadline_ns)
        self._await(fds, due_ns - self.now_ns())

    def _await(self, fds: Collection[int], wait_ns: int) -> None:
        """Have a turn taken when something comes or is due; soon where that is now."""
        self._watch(fds)
        if wait_ns <= 0:
            self.wake()
        else:
            self._expect(wait_ns)

    def _find_due(self) -> tuple[Collection[int], int]:
        return self.peer.fds(), self.peer.next_deadline_ns()

    def _watch(self, fds: Collection[int]) -> None:
        """Look at these descriptors from now on; those that are gone must still be open."""
        if fds is self._fds or self.loop.is_closed():
            return
        for fd in set(self._fds) - set(fds):
            self.loop.remove_reader(fd)
        for fd in set(fds) - set(self._fds):
            self.loop.add_reader(fd, self._take_turn)
        self._fds = fds

    def _expect(self, wait_ns: int) -> None:
        """Have a turn taken within so long."""
        if self._soon is not None or self.loop.is_closed():
            return
        due_ns = self.now_ns() + min(wait_ns, SAFETY_NS)
        if self._timer is not None:
            if self._timer_ns <= due_ns:
                return
            self._timer.cancel()
        self._timer = self.loop.call_later(min(wait_ns, SAFETY_NS) / 1e9, self._time_out)
        self._timer_ns = due_ns

    def _time_out(self) -> None:
        self._timer = None
        self._take_turn()

    async def _until_loop_end(self) -> AsyncGenerator[None, None]:
        """Wait for the end of the loop, which closes the generators that were begun in it."""
        try:
            yield
        finally:
            if not self.stopping:
                self._guard = None
                _log.warning("%s was not closed before its event loop ended", self.peer.name)
                try:
                    self._close()
                finally:
                    self.stop()


def _outcome(done: "asyncio.Future[Any]") -> tuple[Any, BaseException | None]:
    if done.cancelled():
        return None, asyncio.CancelledError()
    error = done.exception()
    return (None, error) if error is not None else (done.result(), None)


def _step(awaitable: Awaitable[None]) -> None:
    """Run what does not wait."""
    try:
        awaitable.__await__().send(None)
    except StopIteration:
        pass
