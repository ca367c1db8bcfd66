"""The driver for asyncio, and for callers with a loop of their own."""

import asyncio
import threading
import types
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine, Generator
from contextlib import suppress
from functools import partial
from typing import Any, Final, Generic, TypeVar

import transports
from p2pmsg.driver.lifecycle import check_process, close_in_children
from p2pmsg.driver.peer import Peer
from p2pmsg.driver.section import Section
from p2pmsg.driver.verbs import Blocking, Calling, Done, LateError, Verb, Wait, step
from p2pmsg.errors import ClosedError
from transports.own_log import own_log as _log

R = TypeVar("R")
SAFETY_NS: Final = 200_000_000
"""Longest time between two turns. ZeroMQ's descriptor signals a change only once, and a send takes
the signal, too; a turn that missed one is made up for after so long."""
_AGAIN_NS: Final = 50_000_000
"""How long it rests after an exception."""
_SLICE_NS: Final = 1_000_000
"""How long calls that never wait run, all together, until other tasks have their turn."""


class Waiter:
    """One call that waits."""

    __slots__ = ("deadline_ns", "go_on", "ready")

    def __init__(self, wait: Wait, go_on: Callable[[], object]) -> None:
        self.ready = wait.ready
        self.deadline_ns = wait.deadline_ns
        self.go_on = go_on


class TurnDriver:
    """Gives a peer its turns in one thread, when `turn` is called; the base of both that follow.

    Args:
        peer: opened.

    Attributes:
        section: what guards the engine: for this thread only.
        stopping: whether `stop` was called.
        may_wait: whether calls that are not awaited may wait all the same.

    """

    may_wait = False

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self._thread = threading.get_ident()
        self.section = Section(peer.resync, self.check_caller)
        self.now_ns = peer.now_ns
        self.stopping = False
        self._waiting: dict[Waiter, None] = {}
        self._upkeep = peer.upkeep()
        close_in_children(self)

    def check_caller(self) -> None:
        """Raise `RuntimeError` where the caller is not where the peer was made."""
        if threading.get_ident() != self._thread:
            raise RuntimeError(f"{self.peer.name} was made in one thread and is used in another")

    def running_loop(self) -> asyncio.AbstractEventLoop | None:
        """Return the event loop in which it is used; None where that is the caller's own."""
        return None

    def wake(self) -> None:
        """Have a turn taken soon."""

    def must_rest(self) -> bool:
        """Whether `rest` is to be awaited before a call that does not wait."""
        return False

    async def rest(self) -> None:
        """Let others run."""

    def stop(self) -> None:
        """Shut the peer, and have all calls that wait look once more."""
        if self.stopping:
            return
        self.stopping = True
        self.section.run(self.peer.shut)
        for each in [*self._waiting]:
            each.go_on()
        self._waiting.clear()

    def take_turn(self) -> int:
        """Take a turn; return in how many ns the next one is due."""
        now_ns = self.now_ns()
        due_ns = self.section.run(self._turn, now_ns)
        due_ns = min(due_ns, self.notify())
        return max(0, due_ns - now_ns)

    def _turn(self, now_ns: int) -> int:
        self.peer.turn(now_ns)
        return self.peer.next_deadline_ns()

    def notify(self) -> int:
        """Wake calls whose wait is over: of equal ones the first; return the next deadline.

        The one that is woken looks for others when it has taken what it waited for. So of a
        thousand tasks that wait for jobs, one is woken for one job, and one call is made a turn.
        """
        if not self._waiting:
            return 2**63
        over, due_ns = self.section.run(self._waits_over, self.now_ns())
        for each in over:
            if self._waiting.pop(each, each) is None:
                each.go_on()
        return due_ns

    def _waits_over(self, now_ns: int) -> tuple[list[Waiter], int]:
        over, due_ns = list[Waiter](), 2**63
        looked: dict[Callable[[], object], bool] = {}
        for each in self._waiting:
            is_ready = looked.get(each.ready)
            if is_ready is None:
                is_ready = bool(each.ready())
                looked[each.ready] = False  # for those after it: they wait for the next call
            if is_ready or (each.deadline_ns is not None and now_ns >= each.deadline_ns):
                over.append(each)
            elif each.deadline_ns is not None:
                due_ns = min(due_ns, each.deadline_ns)
        return over, due_ns

    def add_waiter(self, wait: Wait, go_on: Callable[[], object]) -> None:
        """Have `go_on` called by `notify` when `wait` is over, and a turn taken before that."""
        self._waiting[Waiter(wait, go_on)] = None
        self.wake()

    def step_upkeep(
        self, verb: Verb[None], value: Any, error: BaseException | None, begin: Callable[..., Any]
    ) -> Wait | Blocking | Done:
        """Go on with upkeep; where it fails, `begin` gets the next one after a rest.

        Where `value` is a `Wait`, upkeep is sent whether that is ready.
        """
        try:
            if isinstance(value, Wait):
                value = bool(self.section.run(value.ready))
            return self.section.run(step, verb, value, error)
        except BaseException:
            rest = Wait(bool, self.now_ns() + _AGAIN_NS)
            self.add_waiter(rest, lambda: begin(self.peer.upkeep()))
            raise

    def call(self, verb: Verb[None], request: Blocking) -> tuple[Any, Exception | None]:
        """Make a call of the upkeep here; return what it returned, and what it raised.

        SystemExit and KeyboardInterrupt are for the program; the upkeep goes on after a rest.
        """
        try:
            return request.call(), None
        except Exception as failure:
            return None, failure
        except BaseException:
            self.add_waiter(Wait(bool, self.now_ns() + _AGAIN_NS), lambda: self._keep_up(verb))
            raise

    def _keep_up(self, verb: Verb[None], value: Any = None, error: Any = None) -> None:
        """Go on with the peer's upkeep until it waits."""

    def is_over(self, wait: Wait) -> bool:
        """Whether the deadline of `wait` has passed."""
        return wait.deadline_ns is not None and self.now_ns() >= wait.deadline_ns

    def _forget(self) -> None:
        """In a forked child: the loop and the descriptors are the parent's."""
        self.stopping = True
        self.section.renew()
        self.peer.abandon()


class LoopDriver(TurnDriver):
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
        self._is_resting = False
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
        if self._upkeep is not None:
            self._keep_up(self._upkeep)
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

    async def run(self, verb: Verb[R]) -> R:
        """Run a verb to its end; other tasks go on where it waits, and every ms.

        A call that is cancelled is so where it waits: nothing was taken yet.

        Raises:
            RuntimeError: it is called in another loop.
            Others: what the verb raises.

        """
        self.check_caller()
        try:
            if self.must_rest():
                await self.rest()
            value: Any = None
            error: BaseException | None = None
            while True:
                request = self.section.run(step, verb, value, error)
                value = error = None
                if isinstance(request, Done):
                    result: R = request.value
                    return result
                if isinstance(request, Wait):
                    value = await self._wait(request)
                    continue
                try:
                    if isinstance(request, Calling):
                        if self.must_rest():
                            await self.rest()
                        value = request.call()
                    else:
                        value = await asyncio.shield(self._begin_blocking(request))
                except Exception as failure:
                    error = failure
        except LateError as error:
            raise TimeoutError(str(error)) from None  # the rest is between verb and section
        finally:
            verb.close()
            if self._waiting and not self.stopping:
                self.notify()  # the next one of those who wait for the same

    async def _wait(self, wait: Wait) -> bool:
        while not (is_ready := bool(self.section.run(wait.ready))):  # another may have been quicker
            if self.stopping or self.is_over(wait):
                break
            future: asyncio.Future[None] = self.loop.create_future()
            waiter = Waiter(wait, partial(self._wake_task, future))
            self._waiting[waiter] = None
            if wait.deadline_ns is not None:
                self._expect(wait.deadline_ns - self.now_ns())
            self.wake()
            try:
                await future
            finally:
                self._waiting.pop(waiter, None)
                self._rested_ns = self.now_ns()
        return is_ready

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

    def _keep_up(self, verb: Verb[None], value: Any = None, error: Any = None) -> None:
        """Go on with the peer's upkeep until it waits, without a task of its own."""
        request: Any = None
        while not self.stopping:
            request = self.step_upkeep(verb, value, error, self._keep_up)
            if not isinstance(request, Calling):
                break
            value, error = self.call(verb, request)
        if isinstance(request, Wait):
            self.add_waiter(request, partial(self._keep_up, verb, request))
        elif isinstance(request, Blocking):
            self._begin_blocking(request).add_done_callback(
                lambda done: self._keep_up(verb, *_outcome(done))
            )

    # --------------------------------------------------------------------------- turns

    def _take_turn(self) -> None:
        self._soon = None
        if self.stopping:
            return
        self._is_resting = False
        try:
            wait_ns = self.take_turn()
        except BaseException as error:  # it must go on: without it nothing is repaired
            if self.stopping:
                return
            self._is_resting = True  # a descriptor that is readable would be a loop
            self._watch(())
            self._expect(_AGAIN_NS)
            if isinstance(error, SystemExit | KeyboardInterrupt):
                raise
            if not transports.ended_at_exit(error):
                _log.exception("%s: its turn failed; it goes on", self.peer.name)
            return
        if self.stopping:
            return
        self._watch(self.peer.fds())
        if wait_ns <= 0:
            self.wake()
        else:
            self._expect(wait_ns)

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

    def _go_on(self, value: Any = None, error: BaseException | None = None) -> None:
        """Go on until it waits; what blocks is done here, since there is no other thread."""
        try:
            while True:
                call = self._call
                request = call.send(value) if error is None else call.throw(error)
                value = error = None
                if isinstance(request, Wait):
                    self._driver.wait(request, self)
                    return
                try:
                    value = request.call()
                except Exception as failure:
                    error = failure
        except StopIteration as end:
            self._result = end.value
        except BaseException as failure:
            self._error = failure
        self._is_done = True
        calls, self._calls = self._calls, []
        for each in calls:
            each(self)


class ManualDriver(TurnDriver):
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
        if self._upkeep is not None:
            self._keep_up(self._upkeep)

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

    async def run(self, verb: Verb[R]) -> R:
        """Run a verb to its end, begun by `begin`."""
        self.check_caller()
        try:
            value: Any = None
            error: BaseException | None = None
            while True:
                request = self.section.run(step, verb, value, error)
                value = error = None
                if isinstance(request, Done):
                    result: R = request.value
                    return result
                try:
                    value = await _hand(request)
                except Exception as failure:
                    error = failure
        except LateError as error:
            raise TimeoutError(str(error)) from None  # the rest is between verb and section
        finally:
            verb.close()
            self.wake()  # the next one of those who wait for the same, in the next turn

    def wait(self, wait: Wait, begun: Begun[Any]) -> None:
        """Have `begun` go on with whether `wait` is ready, when that is over."""
        is_ready = bool(self.section.run(wait.ready))
        if is_ready or self.stopping or self.is_over(wait):
            begun._go_on(is_ready)
        else:  # when it is woken, another one may have been quicker
            begun._waiter = Waiter(wait, lambda: self.wait(wait, begun))
            self._waiting[begun._waiter] = None
            self.wake()

    def forget(self, waiter: Waiter | None) -> None:
        """End a wait, whose call is cancelled."""
        if waiter is not None:
            self._waiting.pop(waiter, None)

    def _keep_up(self, verb: Verb[None], value: Any = None, error: Any = None) -> None:
        while not self.stopping:
            request = self.step_upkeep(verb, value, error, self._keep_up)
            value = error = None
            if isinstance(request, Wait):
                self.add_waiter(request, partial(self._keep_up, verb, request))
                return
            if isinstance(request, Done):
                return
            value, error = self.call(verb, request)


def _outcome(done: "asyncio.Future[Any]") -> tuple[Any, BaseException | None]:
    if done.cancelled():
        return None, asyncio.CancelledError()
    error = done.exception()
    return (None, error) if error is not None else (done.result(), None)


@types.coroutine
def _hand(request: Wait | Blocking) -> Generator[Any, Any, Any]:
    return (yield request)


async def _wait_for(call: Awaitable[R]) -> R:
    return await call


def _step(awaitable: Awaitable[None]) -> None:
    """Run what does not wait."""
    try:
        awaitable.__await__().send(None)
    except StopIteration:
        pass
