"""What the drivers have in common that take a peer's turns in one thread."""

import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from p2pmsg.driver.lifecycle import close_in_children
from p2pmsg.driver.peer import Peer
from p2pmsg.driver.section import Section
from p2pmsg.driver.verbs import Done, LateError, Steps, Verb, Wait

if TYPE_CHECKING:
    import asyncio

R = TypeVar("R")
SAFETY_NS: Final = 200_000_000
"""Longest time between two turns. ZeroMQ's descriptor signals a change only once, and a send takes
the signal, too; a turn that missed one is made up for after so long."""
AGAIN_NS: Final = 50_000_000
"""How long it rests after an exception."""


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
    _upkeep_rests = True
    """Whether others go on at each wait of the upkeep."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self._thread = threading.get_ident()
        self.section = Section(peer.resync, self.check_caller)
        self.now_ns = peer.now_ns
        self.stopping = False
        self._waiting: dict[Waiter, None] = {}
        close_in_children(self)

    def check_caller(self) -> None:
        """Raise `RuntimeError` where the caller is not where the peer was made."""
        if threading.get_ident() != self._thread:
            raise RuntimeError(f"{self.peer.name} was made in one thread and is used in another")

    def running_loop(self) -> "asyncio.AbstractEventLoop | None":
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
        over, due_ns = self.section.run(self._turn, now_ns)
        self._call(over)
        return max(0, due_ns - now_ns)

    def _turn(self, now_ns: int) -> tuple[list[Waiter], int]:
        self.peer.turn(now_ns)
        over, due_ns = self._find_over()
        return over, min(due_ns, self.peer.next_deadline_ns())

    def notify(self) -> int:
        """Wake calls whose wait is over: of equal ones the first; return the next deadline.

        The one that is woken looks for others when it has taken what it waited for. So of a
        thousand tasks that wait for jobs, one is woken for one job, and one call is made a turn.
        """
        over, due_ns = self.section.run(self._find_over)
        self._call(over)
        return due_ns

    def _call(self, over: list[Waiter]) -> None:
        for each in over:
            if self._waiting.pop(each, each) is None:
                each.go_on()

    def _find_over(self) -> tuple[list[Waiter], int]:
        """Inside: return whose wait is over, and the deadline of the others."""
        over, due_ns = list[Waiter](), 2**63
        if not self._waiting:
            return over, due_ns
        now_ns, looked = self.now_ns(), dict[Callable[[], object], bool]()
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

    def go_on(self, steps: Steps[Any], again: Callable[[], object]) -> Any:
        """Go on with a verb that no task waits for until it waits; then `again` is called.

        Returns:
            What it has yielded last; None where the peer is closed.

        """
        while not self.stopping:
            request = self.section.run(steps.go_on, self.now_ns)
            if isinstance(request, Wait):
                self.add_waiter(request, again)
                return request
            if isinstance(request, Done) or not self._has_called(steps, again):
                return request
        return None

    def _has_called(self, steps: Steps[Any], again: Callable[[], object]) -> bool:
        """Make a verb's call; False: `again` is called when that has ended."""
        steps.call()
        return True

    def _begin_upkeep(self) -> None:
        if (upkeep := self.peer.upkeep()) is not None:
            self._keep_up(Steps(upkeep, rests=self._upkeep_rests))

    def _keep_up(self, steps: Steps[None]) -> None:
        """Go on with the peer's upkeep; where it fails, the next one begins after a rest."""
        try:
            self.go_on(steps, partial(self._keep_up, steps))
        except BaseException:
            if not self.stopping:
                rest = Wait(bool, self.now_ns() + AGAIN_NS)
                self.add_waiter(rest, self._begin_upkeep)
                self.section.run(steps.close)  # so that it holds nothing any more
            raise

    def _forget(self) -> None:
        """In a forked child: the loop and the descriptors are the parent's."""
        self.stopping = True
        self.section.renew()
        self.peer.abandon()


class TaskDriver(TurnDriver):
    """The same with verbs that are awaited. What a subclass adds is how one waits."""

    async def run(self, verb: Verb[R]) -> R:
        """Run a verb to its end; others go on where it waits, and now and then.

        A call that is cancelled is so where it waits: nothing was taken yet.

        Raises:
            RuntimeError: it is called where the peer does not belong.
            Others: what the verb raises.

        """
        self.check_caller()
        steps, section = Steps(verb), self.section
        try:
            if self.must_rest():
                await self.rest()
            while True:
                request = section.run(steps.go_on, self.now_ns, self.stopping)
                if isinstance(request, Done):
                    result: R = request.value
                    return result
                if not isinstance(request, Wait):
                    await self._make_call(steps)
                elif not self.stopping:
                    await self._sleep(request)
        except LateError as error:
            raise TimeoutError(str(error)) from None  # the rest is between verb and section
        finally:
            steps.close()
            if self._waiting and not self.stopping:
                self._see_to_others()  # the next one of those who wait for the same

    def _see_to_others(self) -> None:
        """Have others look that wait."""
        self.wake()

    async def _sleep(self, wait: Wait) -> None:
        """Wait until it is to be looked at again."""
        raise NotImplementedError

    async def _make_call(self, steps: Steps[Any]) -> None:
        """Make the call that a verb has yielded."""
        steps.call()
