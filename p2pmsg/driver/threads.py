"""The driver for threads: one in the background, and the callers' own while they wait."""

import select
import sys
import threading
import time
import weakref
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from io import FileIO
from typing import Any, Final, TypeVar

import zmq

import transports
from p2pmsg.driver.lifecycle import (
    EXIT_S,
    check_process,
    close_at_exit,
    close_in_children,
    was_closed,
)
from p2pmsg.driver.peer import Peer
from p2pmsg.driver.section import Section
from p2pmsg.driver.verbs import Blocking, Done, LateError, Steps, Verb, Wait
from p2pmsg.errors import ReentrantCallError
from transports.own_log import own_log as _log
from transports.platform import wake_files

R = TypeVar("R")
_AGAIN_S: Final = 0.05
"""How long the thread rests after an exception."""
_ASIDE_S: Final = 0.05
"""How often the thread looks whether callers' threads still take the turns."""
_SLICE_NS: Final = 100_000_000
"""How long a caller's thread waits at a time."""
_UPKEEP_S: Final = 1.0
"""How long the upkeep sleeps at a time."""
_JOIN_S: Final = 5.0
_WAKES_MAX: Final = 4096
_WAKE: Final = (1).to_bytes(8, sys.byteorder)
"""What is added to an eventfd."""
_now_ns = time.monotonic_ns
_Woken = Sequence["Sleeper | None"]


class ThreadDriver:
    """Gives a peer its turns.

    While no call waits, the peer's own thread sleeps in its descriptors and takes the turns. A call
    that waits leads: it takes them itself, since a change of threads costs more than most answers
    take; further calls sleep until a turn or another call has brought what they wait for. A peer
    without a `thread_name` has no thread; one with upkeep has a second one for that, so that turns
    go on while a disk takes its time.

    Args:
        peer: opened; its thread starts with `start`.

    Attributes:
        section: what guards the engine.
        stopping: whether `stop` was called.
        may_wait: whether calls that are not awaited may wait all the same.

    """

    may_wait: Final = True

    def __init__(self, peer: Peer) -> None:
        check_process()
        self.peer = peer
        self.section = Section(peer.resync)
        self.stopping = self._is_shut = False
        self._keeping: Steps[None] | None = None
        self._threads: list[threading.Thread] = []
        if peer.thread_name:
            self._add_thread(self._round, peer.thread_name)
        if peer.thread_name and (upkeep := peer.upkeep()) is not None:
            # One of its own: turns go on while a disk takes its time.
            self._keeping = Steps(upkeep, rests=True)
            self._add_thread(self._keep_up, f"{peer.thread_name}-disk")
        self._wake_read, self._wake_write = wake_files()
        self._close_wake = weakref.finalize(self, _close, self._wake_read, self._wake_write)
        self._is_woken = False
        self._waiting: dict[Steps[Any], Sleeper | None] = {}
        """Calls that wait, and what wakes them: those who lead, an eventfd."""
        self._leader: Steps[Any] | None = None
        self._leads_until_ns = 0
        """Until when the leader is taken to lead: a signal's handler may hold it up, and wait."""
        self._due_ns = 0
        """Until when who takes the turns sleeps."""
        self._aside, self._keeper = Sleeper(), Sleeper()

    def _add_thread(self, call: Callable[[], object], name: str) -> None:
        made = threading.Thread(target=self._run, args=(call,), name=name, daemon=True)
        self._threads.append(made)

    def start(
        self, owner: Any, close: Callable[[Any, float], object], exit_s: float = EXIT_S
    ) -> None:
        """Start the thread; `close(owner, seconds)` is called at the end of the program.

        That may take `exit_s`. One without a thread has nothing to finish then, and is collected
        when nobody has it.
        """
        self._owner = owner
        close_in_children(self)
        for each in self._threads:
            each.start()
        if self._threads:
            close_at_exit(owner, close, exit_s)

    def stop(self) -> None:
        """End the thread, shut the peer, and have all calls that wait look once more.

        A second call does nothing, nor one in a forked child: all is the parent's there.
        """
        if self._is_shut:
            return
        was_closed(self._owner)
        self.stopping = True
        self.wake()
        self._keeper.wake()
        for each in self._threads:
            if each is not threading.current_thread():
                each.join(_JOIN_S)
        self.section.run(self.peer.shut)
        self._is_shut = True
        sleepers: list[Sleeper | None] = self.section.run(lambda: [*self._waiting.values()])
        for sleeper in (*sleepers, None):
            self._wake(sleeper)
        self._close_wake()

    def check_caller(self) -> None:
        """Do nothing: any thread may call."""

    def wake(self) -> None:
        """Have a turn taken now, by the peer's thread or the caller's that takes them."""
        if self._is_woken:
            return  # it has yet to look, and what the caller wants is seen after that
        self._is_woken = True  # should Ctrl-C come now, the thread looks within 0.25 s all the same
        with suppress(OSError, ValueError):  # closed: it has ended
            self._wake_write.write(_WAKE)  # None where it is full, and then it is awake
        self._aside.wake()

    def run(self, verb: Verb[R]) -> R:
        """Run a verb to its end, and wait where it waits.

        Raises:
            Others: what the verb raises.

        """
        steps, section, has_slept = Steps(verb), self.section, False
        try:
            while True:
                request, woken, fds = section.run(self._go_on, steps, has_slept)
                for sleeper in woken:
                    self._wake(sleeper)
                if isinstance(request, Done):
                    result: R = request.value
                    return result
                if has_slept := isinstance(request, Wait):
                    self._wait(steps, request, fds)
                else:
                    steps.call()
        except BaseException as error:
            if isinstance(steps.request, Done):  # what it took does not get to its caller
                section.busy = True
            with suppress(ReentrantCallError):
                for sleeper in section.run(self._end, steps):
                    self._wake(sleeper)
            if isinstance(error, LateError):
                raise TimeoutError(str(error)) from None  # the rest is between verb and section
            raise

    def _forget(self) -> None:
        """In a forked child: the thread and the descriptors are the parent's."""
        self.stopping = self._is_shut = True
        self.section.renew()
        self.peer.abandon()

    # ------------------------------------------------------------------- a call that waits

    def _go_on(self, steps: Steps[Any], has_slept: bool) -> tuple[Any, _Woken, Collection[int]]:
        """Inside: go on with a call, with a turn where it lacks one; find who leads then.

        Returns:
            What it has yielded, who else is to be woken, and in what it waits where it leads.

        """
        peer, before = self.peer, steps.request
        request: Any = steps.go_on(_now_ns, self._is_shut)
        if not isinstance(request, Wait):
            return request, self._leave(steps) if self._waiting or self._keeping else (), ()
        now_ns, leader, due_ns = _now_ns(), self._leader, 0
        others_lead = leader is not None and leader is not steps and now_ns < self._leads_until_ns
        if others_lead:
            is_due = request is not before  # it may have taken from ZeroMQ what that sleeps for
        elif is_due := request.by_io:
            is_due = has_slept or (due_ns := peer.next_deadline_ns()) <= now_ns
        if is_due and not self.stopping:
            due_ns = 0
            peer.turn(now_ns)
            request = steps.go_on(_now_ns, self._is_shut)
            if not isinstance(request, Wait):
                return request, self._leave(steps), ()
        if others_lead or not request.by_io:
            sleeper = self._waiting.get(steps) or Sleeper()
            woken = self._leave(steps) if leader is steps else self._find_woken(steps)
            self._waiting[steps] = sleeper
            return request, woken, ()
        self._waiting[steps] = None
        self._leader, self._leads_until_ns = steps, now_ns + 2 * _SLICE_NS
        self._due_ns = due_ns or peer.next_deadline_ns()
        return request, self._find_woken(steps), peer.fds()

    def _is_led(self) -> bool:
        """Whether a call takes the turns."""
        return self._leader is not None and _now_ns() < self._leads_until_ns

    def _leave(self, steps: Steps[Any]) -> _Woken:
        """Inside: wait no more; return who is to be woken."""
        self._waiting.pop(steps, None)
        if self._leader is steps:
            self._leader = None
        woken = self._find_woken(steps)
        if not woken and self._leader is None:
            for each, sleeper in self._waiting.items():
                if each.request.by_io:
                    return (sleeper,)  # to lead
        return woken

    def _find_woken(self, steps: Steps[Any] | None = None) -> _Woken:
        """Inside: return who has what it waits for: of those who wait for the same, the first."""
        if self._keeping is not None:
            self._see_to_upkeep(self._keeping)
        if not self._waiting:
            return ()
        woken: dict[Callable[[], object], Sleeper | None] = {}
        for each, sleeper in self._waiting.items():
            if each is not steps:
                ready = each.request.ready
                if ready not in woken and ready():
                    woken[ready] = sleeper
        return [*woken.values()]

    def _end(self, steps: Steps[Any]) -> _Woken:
        """Inside: end a call that an exception has ended."""
        try:
            steps.close()
        finally:
            woken = self._leave(steps)
        return woken

    def _wake(self, sleeper: "Sleeper | None") -> None:
        if sleeper is None:
            self.wake()
        else:
            sleeper.wake()

    def _wait(self, steps: Steps[Any], wait: Wait, fds: Collection[int]) -> None:
        """Sleep: who leads in the descriptors, others until they are woken."""
        now_ns, time_ns = _now_ns(), _SLICE_NS
        if wait.deadline_ns is not None:
            time_ns = min(time_ns, wait.deadline_ns - now_ns)
        sleeper = self._waiting.get(steps)
        if sleeper is None:
            self._poll(fds, min(time_ns, self._due_ns - now_ns))
        else:
            sleeper.sleep(time_ns / 1e9)

    def _see_to_upkeep(self, keeping: Steps[None]) -> None:
        """Inside: have the upkeep go on if it can."""
        if isinstance(keeping.request, Wait) and keeping.request.ready():
            self._keeper.wake()

    # --------------------------------------------------------------------- the threads

    def _run(self, call: Callable[[], object]) -> None:
        while not self.stopping:
            try:
                call()
            except (transports.ClosedError, zmq.ContextTerminated):
                return
            except Exception:  # the thread must go on: without it nothing is repaired
                if not self.stopping:
                    _log.exception("%s: its background thread failed; it goes on", self.peer.name)
                    time.sleep(_AGAIN_S)

    def _round(self) -> None:
        if self._is_led():  # who leads sees to what is due
            self._aside.sleep(_ASIDE_S)
            return
        woken, fds = self.section.run(self._turn)
        for sleeper in woken:
            self._wake(sleeper)
        if not (self.stopping or self._is_led()):
            self._poll(fds, self._due_ns - _now_ns())
            if self._is_led():
                self.wake()  # it may have come meanwhile, and this been meant for it

    def _turn(self) -> tuple[_Woken, Collection[int]]:
        if self.stopping:
            return (), ()
        self.peer.turn(_now_ns())
        woken = self._find_woken()
        self._due_ns = self.peer.next_deadline_ns()
        return woken, self.peer.fds()

    def _poll(self, fds: Collection[int], time_ns: int) -> None:
        """Wait until one of these is readable, or until `wake`: at most so long, and 0.25 s."""
        poll, wakes = select.poll(), self._wake_read
        try:
            for fd in (wake_fd := wakes.fileno(), *fds):
                poll.register(fd, select.POLLIN)
            found = poll.poll(max(0.0, min(time_ns, 250_000_000)) / 1e6)
            if (wake_fd, select.POLLIN) not in found:
                return
            while len(wakes.read(_WAKES_MAX) or b"") == _WAKES_MAX:
                pass
        except (OSError, ValueError):  # it was closed meanwhile
            return
        self._is_woken = False  # last: who finds it set is seen to in the next turn

    def _keep_up(self) -> None:
        """Go on with the peer's upkeep until it waits, and sleep until it goes on."""
        keeping = self._keeping
        assert keeping is not None
        before = keeping.request
        try:
            request, woken = self.section.run(self._go_on_keeping, keeping)
        except BaseException:  # its next one goes on, after a rest
            upkeep = self.peer.upkeep()
            assert upkeep is not None
            self._keeping = Steps(upkeep, rests=True)
            self.section.run(keeping.close)  # so that it holds nothing any more
            raise
        for sleeper in woken:
            self._wake(sleeper)
        if isinstance(request, Blocking):
            keeping.call()
        elif isinstance(request, Wait) and request is not before:
            time.sleep(0)  # others enter before it goes on
        else:
            deadline_ns = request.deadline_ns if isinstance(request, Wait) else None
            self._keeper.sleep(min(_UPKEEP_S, (_until(deadline_ns) - _now_ns()) / 1e9))

    def _go_on_keeping(self, keeping: Steps[None]) -> tuple[Any, _Woken]:
        request = keeping.go_on(_now_ns)
        if self.peer.next_deadline_ns() < self._due_ns:
            self.wake()
        return request, self._find_woken()


class Sleeper:
    """Wakes the one thread that waits for it, now or later, in a way that Ctrl-C cannot spoil.

    A `threading.Condition` is entered by Python code: an interrupt that comes when its lock was
    just taken leaves it taken, and the thread that wants to notify then waits for ever.
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def wake(self) -> None:
        """Wake it."""
        if self._lock.locked():
            with suppress(RuntimeError):  # another thread has just done so
                self._lock.release()

    def sleep(self, time_s: float) -> None:
        """Sleep until `wake`, for so long at most; not at all where that was called before."""
        self._lock.acquire(timeout=max(0.0, time_s))


def _until(deadline_ns: int | None) -> int:
    return 2**63 if deadline_ns is None else deadline_ns


def _close(*files: FileIO) -> None:
    for each in files:
        each.close()
