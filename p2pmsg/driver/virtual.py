"""The driver for a network in memory, whose time passes, from event to event, while calls wait."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, Protocol, TypeVar

from p2pmsg.driver.peer import Peer
from p2pmsg.driver.section import Section
from p2pmsg.driver.turns import TaskDriver, TurnDriver, Waiter
from p2pmsg.driver.verbs import Done, LateError, Steps, Verb, Wait
from recovery.checks import to_ns
from transports.own_log import own_log as _log

R = TypeVar("R")
ENDLESS_NS: Final = 60_000_000_000
"""How long is waited, by the network's clock, where a real peer would wait without end."""
_NEVER_NS: Final = 2**63
_PASSES: Final = 4
"""How often the loop goes through its tasks between two events of the network."""


class _Clock(Protocol):
    now_ns: int


class Time(Protocol):
    """A network's time: what happens when."""

    @property
    def clock(self) -> _Clock:
        """What is moved from event to event."""

    @property
    def next_ns(self) -> int | None:
        """When the next thing happens; None: nothing does."""

    def at(self, time_ns: int, action: Callable[..., None], *args: Any) -> None:
        """Let `action(*args)` happen at a time."""

    def run_until(self, end_ns: int) -> None:
        """Let happen what happens up to a time."""


class EventDriver(TurnDriver):
    """Gives a peer its turns when something has come, when its deadline is there, and after `wake`.

    The base of both that follow. What blocks is done at once, and takes no time.

    Args:
        peer: opened, on a network in memory.
        network: whose time passes.
        turns: let it pass.

    """

    _upkeep_rests = False

    def __init__(self, peer: Peer, network: Time, turns: "Turns") -> None:
        super().__init__(peer)
        self.section = Section(peer.resync)
        self._network, self._turns = network, turns
        self._expected_ns = self._added_ns = 0
        self._is_turning = self._is_woken = False

    def start(self, *_: object) -> None:
        """Begin; nothing ends it but who has it."""
        self._begin_upkeep()
        self.wake()

    def wake(self) -> None:
        """Have a turn taken as the next thing that happens; tasks that wait look again."""
        self._expect(self.now_ns())
        self._turns.stir()

    def check_caller(self) -> None:
        """Do nothing: any thread may call that lets time pass."""

    def arrived(self) -> None:
        """Take a turn, since something has come."""
        if not self.stopping:
            self._take_turn()

    def kill(self) -> None:
        """End as a process that is killed: nothing is shut, and nothing goes on."""
        self.stopping = True
        self._waiting.clear()

    def add_waiter(self, wait: Wait, go_on: Callable[[], object]) -> None:
        """Have `go_on` called when `wait`, which is not ready now, is over."""
        self._waiting[Waiter(wait, go_on)] = None
        due_ns = _NEVER_NS - 1 if wait.deadline_ns is None else wait.deadline_ns
        if self._is_turning:
            self._added_ns = min(self._added_ns, due_ns)
        else:
            due_ns = min(due_ns, self.section.run(self.peer.next_deadline_ns))
            self._expect(max(due_ns, self.now_ns() + 1))

    def _take_turn(self) -> None:
        self._is_turning, self._is_woken, self._added_ns = True, False, _NEVER_NS
        try:
            wait_ns = self.take_turn()
        except BaseException:
            if not self.stopping:  # else it was killed within
                raise
            return
        finally:
            self._is_turning = False
        if self.stopping:
            return
        now_ns = self.now_ns()
        due_ns = min(now_ns + wait_ns, self._added_ns)
        if self._added_ns < _NEVER_NS:  # what was begun may have changed it
            due_ns = min(due_ns, self.section.run(self.peer.next_deadline_ns))
        self._expect(now_ns + 1 if self._is_woken else max(due_ns, now_ns + 1))

    def _expect(self, due_ns: int) -> None:
        """Have a turn taken at a time, unless an earlier one is expected."""
        self._is_woken |= self._is_turning  # at its end it is known when
        if self._is_turning or self.stopping:
            return
        if self._expected_ns <= self.now_ns() or due_ns < self._expected_ns:
            self._expected_ns = due_ns
            self._network.at(due_ns, self._on_time, due_ns)

    def _on_time(self, due_ns: int) -> None:
        if due_ns == self._expected_ns and not self.stopping:
            self._expected_ns = 0
            self._take_turn()


class VirtualDriver(EventDriver):
    """The same for code without asyncio.

    A call that waits lets the network's time pass until its wait is over, one without a limit 60 s
    of it at most.
    """

    may_wait = True

    def run(self, verb: Verb[R]) -> R:
        """Run a verb to its end, and let time pass where it waits.

        Raises:
            Others: what the verb raises.

        """
        steps, has_waited = Steps(verb), False
        try:
            while True:
                request = self.section.run(steps.go_on, self.now_ns, self.stopping or has_waited)
                if isinstance(request, Done):
                    result: R = request.value
                    return result
                if isinstance(request, Wait):
                    self._wait(request)
                    has_waited = True
                else:
                    steps.call()
                    has_waited = False
        except LateError as error:
            raise TimeoutError(str(error)) from None  # the rest is between verb and section
        finally:
            steps.close()

    def _wait(self, wait: Wait) -> None:
        """Let time pass until a wait is over."""
        now_ns = self.now_ns()
        end_ns = now_ns + ENDLESS_NS if wait.deadline_ns is None else wait.deadline_ns
        if end_ns > now_ns:
            self.wake()  # what the call has begun is to be sent

        def is_over() -> bool:
            return self.stopping or bool(self.section.run(wait.ready))

        self._turns.let_pass(is_over, end_ns)


class VirtualLoopDriver(EventDriver, TaskDriver):
    """The same for code of asyncio: other tasks go on while time passes."""

    def running_loop(self) -> asyncio.AbstractEventLoop | None:
        """Return the event loop that runs."""
        with suppress(RuntimeError):
            return asyncio.get_running_loop()
        return None

    def must_rest(self) -> bool:
        """Return True: tasks take turns also where messages are always there."""
        return True

    async def rest(self) -> None:
        """Let other tasks run, before time passes."""
        self._turns.hold()
        await asyncio.sleep(0)

    def stop(self) -> None:
        """Shut the peer, and have all calls that wait look once more."""
        super().stop()
        self._turns.stir()

    async def _sleep(self, wait: Wait) -> None:
        self.wake()

        def is_over() -> bool:
            return self.stopping or bool(self.section.run(wait.ready))

        await self._turns.wait_until(is_over, wait.deadline_ns)


class Turns:
    """Lets a network's time pass while tasks wait, from event to event, other tasks in between.

    The order is that of the loop's own queue, so the same seed and the same program give the same
    run, where nothing else is awaited than the network. Waits without a limit let at most 60
    seconds pass in which nothing is asked of the network; then they rest until something is.

    Args:
        network: whose time it is.

    """

    def __init__(self, network: Time) -> None:
        self._network = network
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: dict[asyncio.Future[None], tuple[Callable[[], bool], int | None]] = {}
        self._handle: asyncio.Handle | None = None
        self._rest_ns = self._left = self._working = 0
        self._home: asyncio.AbstractEventLoop | None = None

    def let_pass(self, is_so: Callable[[], bool], end_ns: int) -> bool:
        """Let time pass until `is_so()`, or a time; return whether it is.

        Tasks of `in_background` go on meanwhile.
        """
        network = self._network
        if self._home is not None:
            return self._home.run_until_complete(self.wait_until(is_so, end_ns))
        while not is_so() and network.clock.now_ns < end_ns:
            due_ns = network.next_ns
            network.run_until(end_ns if due_ns is None else min(due_ns, end_ns))
        return is_so()

    @contextmanager
    def in_background(self) -> Iterator[asyncio.AbstractEventLoop]:
        """Have an event loop whose tasks go on while code without asyncio lets time pass."""
        with asyncio.Runner() as runner:
            before, self._home = self._home, self._home or runner.get_loop()
            try:
                yield self._home
            finally:
                self._home = before

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Let no time pass, while a thread works."""
        self._working += 1
        try:
            yield
        finally:
            self._working -= 1
            self.stir()

    async def wait_until(self, is_so: Callable[[], bool], end_ns: int | None) -> bool:
        """Wait until `is_so()`, or a time of the network's clock; return whether it is."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # the former one has ended
            self._loop, self._waiting, self._handle = loop, {}, None
        clock = self._network.clock
        is_over = False
        while not is_so() and not is_over:  # another task may have been quicker
            future: asyncio.Future[None] = loop.create_future()
            self._waiting[future] = is_so, end_ns
            self.stir()
            try:
                await future
            finally:
                self._waiting.pop(future, None)
            is_over = end_ns is not None and clock.now_ns >= end_ns
        return is_so()

    async def wait_for(self, is_so: Callable[[], bool], seconds: float | None) -> bool:
        """Do as `wait_until`, for so many seconds of the network's time. None: without end."""
        now_ns = self._network.clock.now_ns
        return await self.wait_until(is_so, None if seconds is None else now_ns + to_ns(seconds))

    def hold(self) -> None:
        """Let no time pass yet: a task has something to do."""
        self._left = _PASSES

    def stir(self) -> None:
        """Note that something is asked of the network: waits without a limit begin again."""
        self._rest_ns = self._network.clock.now_ns + ENDLESS_NS
        loop = self._loop
        if self._handle is None and self._waiting and loop is not None and not loop.is_closed():
            self._handle = loop.call_soon(self._pass, loop)

    def _pass(self, loop: asyncio.AbstractEventLoop) -> None:
        if loop is not self._loop:
            return
        self._handle = None
        if self._working:
            return
        self._left -= 1
        if self._left < 0:
            self._left = _PASSES
            try:
                if not self._step():
                    return
            except Exception as error:
                for future in self._waiting:
                    if not future.done():
                        future.set_exception(error)
                return
        self._handle = loop.call_soon(self._pass, loop)

    def _step(self) -> bool:
        """Wake who may go on, or else let the next event happen; False: it rests."""
        if self._wake():
            return True
        ends = [end_ns for future, (_, end_ns) in self._waiting.items() if not future.done()]
        if not ends:
            return False
        network, limits = self._network, [end_ns for end_ns in ends if end_ns is not None]
        limit_ns = min(limits, default=self._rest_ns)
        if not limits and network.clock.now_ns >= limit_ns:
            what = "tasks wait without a limit, and nothing was asked of the network"
            _log.warning("the virtual network's time stands still: %d %s", len(ends), what)
            return False
        due_ns = network.next_ns
        network.run_until(limit_ns if due_ns is None else min(due_ns, limit_ns))
        self._wake()
        return True

    def _wake(self) -> bool:
        now_ns, has_woken = self._network.clock.now_ns, False
        for future, (is_so, end_ns) in self._waiting.items():
            if not future.done() and (is_so() or (end_ns is not None and now_ns >= end_ns)):
                future.set_result(None)
                has_woken = True
        return has_woken
