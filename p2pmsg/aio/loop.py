"""Runs a peer's rounds in an asyncio event loop, in place of a background thread."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import Final

import transports
from p2pmsg.aio.own_loop import OwnLoop
from transports.own_log import own_log as _log

SAFETY_S: Final = 0.1
"""Longest time between two rounds. ZeroMQ's descriptor signals a change only once, and a send takes
the signal, too; a round that missed one is made up for after so long."""
_AGAIN_S: Final = 0.05
"""How long it rests after an exception."""


class LoopDriver:
    """Calls `turn` in its loop when a descriptor is readable, a deadline is due, or after `wake`.

    A turn does what there is to do for at most 5 ms, never waits, and returns after how many
    seconds it is to be called again: 0 where there is more to do at once; other tasks run first.

    Args:
        owner: whose it is, for errors and the log, e.g. "the subscriber".
        turn: one round of the work.
        fds: descriptors that become readable when there may be something to do.
        at_loop_end: closes the owner, at once, where its loop ends before it was closed (as at the
            end of `asyncio.run`); a warning that names it is logged first. Default: only the
            driver stops.
        by_caller: where no event loop runs: the loop to take turns in, which the peer's caller
            drives, or True for a new one. Default False: an event loop must run.

    Attributes:
        loop: the running loop in which it was made, or its own.
        stopping: whether `stop` was called.
        safety_s: longest time between two turns, in seconds. Default `SAFETY_S`.

    Raises:
        RuntimeError: no event loop is running.

    """

    def __init__(
        self,
        owner: str,
        turn: Callable[[], float],
        fds: Iterable[int] = (),
        at_loop_end: Callable[[], object] | None = None,
        by_caller: asyncio.AbstractEventLoop | bool = False,
    ) -> None:
        self.loop: asyncio.AbstractEventLoop
        try:
            self.loop = asyncio.get_running_loop()
        except RuntimeError:
            if not by_caller:
                what = f"{owner} must be made where an event loop runs"
                raise RuntimeError(what) from None
            self.loop = OwnLoop() if by_caller is True else by_caller
        self._thread = threading.get_ident()
        self._owner = owner
        self._turn = turn
        self._fds = set(fds)
        self._soon: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._waiting: dict[asyncio.Future[bool], Callable[[], bool]] = {}
        self._is_woken = False
        self._is_resting = False
        self._at_loop_end = at_loop_end
        self._guard: AsyncGenerator[None, None] | None = None
        self.stopping = False
        self.safety_s = SAFETY_S

    def start(self) -> None:
        """Begin to call `turn`."""
        for fd in self._fds:
            self.loop.add_reader(fd, self.take_turn)
        if isinstance(self.loop, OwnLoop):
            self.loop.users += 1
        self.guard()
        self.wake()

    def guard(self) -> None:
        """See to it that the end of the loop closes the owner, before `start`, too."""
        if self._guard is None and not isinstance(self.loop, OwnLoop):
            self._guard = self._until_loop_end()
            _step(self._guard.asend(None))

    def watch(self, fds: Iterable[int]) -> None:
        """Look at these descriptors from now on; those that are gone must still be open."""
        wanted = set(fds)
        if not self._is_resting:
            for fd in self._fds - wanted:
                self.loop.remove_reader(fd)
            for fd in wanted - self._fds:
                self.loop.add_reader(fd, self.take_turn)
        self._fds = wanted

    def stop(self) -> None:
        """End it, before the descriptors are closed; all who wait look once more."""
        if self.stopping:
            return
        self.stopping = True
        for handle in (self._soon, self._timer):
            if handle is not None:
                handle.cancel()
        if not self.loop.is_closed():
            for fd in self._fds:
                self.loop.remove_reader(fd)
            self.notify()
        self._fds.clear()
        guard, self._guard = self._guard, None
        if guard is not None:
            _step(guard.aclose())
        if isinstance(self.loop, OwnLoop):
            self.loop.leave()

    def check_loop(self) -> None:
        """Raise `RuntimeError` where the caller is not in this driver's loop."""
        try:
            here: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is not self.loop:
            if here is None and isinstance(self.loop, OwnLoop):
                if threading.get_ident() == self._thread:
                    return
                what = f"{self._owner} was made in one thread and is used in another"
                raise RuntimeError(what)
            if isinstance(self.loop, OwnLoop):
                what = f"{self._owner} was made outside of an event loop of asyncio"
                raise RuntimeError(f"{what}: use turn() and begin(), or make it in the loop")
            where = "outside of an event loop" if here is None else "in another event loop"
            raise RuntimeError(f"{self._owner} was made in one event loop and is used {where}")

    def wake(self) -> None:
        """Have a turn taken in the loop's next round."""
        if not self._is_woken and not self.stopping:
            self._is_woken = True
            self._soon = self.loop.call_soon(self.take_turn)

    def expect(self, seconds: float) -> None:
        """Have a turn taken within so many seconds."""
        if self.stopping or self._is_woken:
            return
        at = self.loop.time() + min(seconds, self.safety_s)
        if self._timer is None or at < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer, self._timer_at = self.loop.call_at(at, self._time_out), at

    def take_turn(self) -> None:
        """Take a turn now, and arrange for the next one."""
        self._is_woken = False
        if self.stopping:
            return
        if self._is_resting:
            self._is_resting = False
            for fd in self._fds:
                self.loop.add_reader(fd, self.take_turn)
        try:
            wait_s = self._turn()
        except BaseException as error:  # it must go on: without it nothing is repaired
            is_for_program = isinstance(error, SystemExit | KeyboardInterrupt)
            if self.stopping:
                if is_for_program:
                    raise
                return
            self._rest()
            if is_for_program:
                self.expect(_AGAIN_S)
                raise
            if transports.ended_at_exit(error):
                return  # this loop is in a daemon thread; there is nothing to be done any more
            _log.exception("%s's round failed; it goes on", self._owner)
            wait_s = _AGAIN_S
        self.notify()
        if self.stopping:
            return
        if wait_s <= 0:
            self.wake()
        else:
            self.expect(wait_s)

    def notify(self) -> None:
        """Have all who wait look again."""
        for future, is_so in [*self._waiting.items()]:
            if not future.done() and (self.stopping or is_so()):
                future.set_result(True)

    async def wait_for(self, is_so: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until `is_so()`, looked at first and after each turn, at most `timeout` s.

        Nothing is taken here, so that a caller that is cancelled has lost nothing.
        """
        if is_so() or self.stopping:
            return is_so()
        future = self.loop.create_future()
        self._waiting[future] = is_so
        timer = None
        if timeout is not None:
            timer = self.loop.call_later(timeout, _give_up, future)
        try:
            await future
        finally:
            if timer is not None:
                timer.cancel()
            self._waiting.pop(future, None)
        return is_so()

    async def _until_loop_end(self) -> AsyncGenerator[None, None]:
        """Wait for the end of the loop, which closes the generators that were begun in it."""
        try:
            yield
        finally:
            if not self.stopping:
                self._guard = None
                _log.warning("%s was not closed before its event loop ended", self._owner)
                try:
                    if self._at_loop_end is not None:
                        self._at_loop_end()
                finally:
                    self.stop()

    def _rest(self) -> None:
        """Do not look at descriptors until the next turn: one that is readable would be a loop."""
        self._is_resting = True
        for fd in self._fds:
            self.loop.remove_reader(fd)

    def _time_out(self) -> None:
        self._timer = None
        self.take_turn()


def _step(awaitable: Awaitable[None]) -> None:
    """Run what does not wait."""
    try:
        awaitable.__await__().send(None)
    except StopIteration:
        pass


def _give_up(future: "asyncio.Future[bool]") -> None:
    if not future.done():
        future.set_result(False)
