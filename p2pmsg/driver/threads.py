"""The driver for threads: one in the background, and the callers' own while they wait."""

import select
import sys
import threading
import time
import weakref
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
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
from p2pmsg.driver.verbs import Blocking, Done, LateError, Verb, Wait, step
from p2pmsg.errors import ReentrantCallError
from transports.own_log import own_log as _log
from transports.platform import wake_files

R = TypeVar("R")
_AGAIN_S: Final = 0.05
"""How long the thread rests after an exception."""
_ASIDE_NS: Final = 50_000_000
"""How often the thread looks whether callers' threads still take the turns."""
_SLICE_NS: Final = 100_000_000
"""How long a caller's thread waits at a time, and is taken to be the one that takes the turns."""
_UPKEEP_NS: Final = 1_000_000_000
"""How long the upkeep sleeps at a time."""
_JOIN_S: Final = 5.0
_WAKES_MAX: Final = 4096
_WAKE: Final = (1).to_bytes(8, sys.byteorder)
"""What is added to an eventfd."""
_now_ns = time.monotonic_ns


class ThreadDriver:
    """Gives a peer its turns.

    While no call waits, the peer's own thread sleeps in its descriptors and takes the turns. A call
    that waits takes them itself, since a change of threads costs more than most answers take;
    further calls sleep until it has taken one. A peer without a `thread_name` has no thread; one
    with upkeep has a second one for that, so that turns go on while a disk takes its time.

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
        self._upkeep = peer.upkeep()
        self._upkeep_waits: Wait | None = None
        self._threads: list[threading.Thread] = []
        if peer.thread_name:
            self._add_thread(self._round, peer.thread_name)
        if peer.thread_name and self._upkeep is not None:
            # One of its own: turns go on while a disk takes its time.
            self._add_thread(self._keep_up, f"{peer.thread_name}-disk")
        self._wake_read, self._wake_write = wake_files()
        self._close_wake = weakref.finalize(self, _close, self._wake_read, self._wake_write)
        self._is_woken = False
        self._leads_until_ns = 0
        self._leader = 0
        self._due_ns = 0
        """Until when who takes the turns sleeps."""
        self._sleepers, self._aside, self._keeper = Sleepers(), Sleepers(), Sleepers()

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
        self._sleepers.wake()
        self.wake()
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
        value: Any = None
        error: BaseException | None = None
        request: Any = None
        has_blocked = False
        try:
            while True:
                request = self.section.run(step, verb, value, error)
                value = error = None
                if self._leader:  # this may have taken from ZeroMQ what its thread sleeps for
                    self.wake()
                if has_blocked and self._sleepers.asleep:  # for this, perhaps
                    self._sleepers.wake_ready()
                has_blocked = False
                if isinstance(request, Done):
                    result: R = request.value
                    return result
                if isinstance(request, Wait):
                    value = self._wait(request)
                else:
                    try:
                        value = request.call()
                    except Exception as failure:
                        error = failure
                    has_blocked = True
        except LateError as error:
            raise TimeoutError(str(error)) from None  # the rest is between verb and section
        except BaseException:
            if isinstance(request, Done):  # what it took does not get to its caller
                self.section.busy = True
            with suppress(ReentrantCallError):
                self.section.run(verb.close)
            raise

    def _forget(self) -> None:
        """In a forked child: the thread and the descriptors are the parent's."""
        self.stopping = self._is_shut = True
        self.section.renew()
        self.peer.abandon()

    # ------------------------------------------------------------------- a call that waits

    def _wait(self, wait: Wait) -> bool:
        """Wait in the caller's thread, and take the peer's turns meanwhile, unless another does."""
        if not wait.by_io:
            return self._wait_asleep(wait)
        me = threading.get_ident()
        has_slept = False
        try:
            while True:
                is_ready, due_ns, fds = self.section.run(self._look, wait, has_slept)
                if has_slept and self._sleepers.asleep:
                    self._sleepers.wake_ready()
                now_ns = _now_ns()
                if is_ready or self._is_shut:
                    return is_ready
                if wait.deadline_ns is not None:
                    if now_ns >= wait.deadline_ns:
                        return False
                    due_ns = min(due_ns, wait.deadline_ns)
                has_slept = self._leader in (0, me) or now_ns >= self._leads_until_ns
                if has_slept:
                    self._leader, self._leads_until_ns = me, now_ns + 2 * _SLICE_NS
                    self._due_ns = due_ns
                    self._poll(fds, min(due_ns - now_ns, _SLICE_NS))
                else:
                    left_ns = min(_SLICE_NS, _until(wait.deadline_ns) - now_ns)
                    self._sleepers.sleep(left_ns, partial(self.section.run, wait.ready))
        finally:
            if self._leader == me:
                self._leader = 0
                if self._sleepers.asleep:
                    self._sleepers.wake_ready(one_more=True)

    def _wait_asleep(self, wait: Wait) -> bool:
        """Wait for what another thread brings, which is woken for it."""
        is_ready = partial(self.section.run, wait.ready)
        while not (ready := bool(is_ready())) and not self._is_shut:
            left_ns = min(_SLICE_NS, _until(wait.deadline_ns) - _now_ns())
            if left_ns <= 0:
                break
            if self._upkeep is None:
                self.wake()
            self._keeper.wake()
            self._sleepers.sleep(left_ns, is_ready)
        return ready

    def _look(self, wait: Wait, has_slept: bool) -> tuple[bool, int, Collection[int]]:
        """Look, and where that is in vain after the sleep, take a turn and look again."""
        if wait.ready():
            return True, 0, ()
        if has_slept and not self.stopping:
            self.peer.turn(_now_ns())
            self._see_to_upkeep()
            if wait.ready():
                return True, 0, ()
        return False, self.peer.next_deadline_ns(), self.peer.fds()

    def _see_to_upkeep(self) -> None:
        """After a turn: have the upkeep go on if it can."""
        waits = self._upkeep_waits
        if waits is not None and self._keeper.asleep and waits.ready():
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
            self._aside.sleep(_ASIDE_NS, lambda: self.stopping)
            return
        fds, due_ns = self.section.run(self._turn)
        self._sleepers.wake_ready(one_more=not self._is_led())
        self._due_ns = due_ns
        self._sleep(fds, due_ns)

    def _turn(self) -> tuple[Collection[int], int]:
        if self.stopping:
            return (), 0
        self.peer.turn(_now_ns())
        self._see_to_upkeep()
        return self.peer.fds(), self.peer.next_deadline_ns()

    def _is_led(self) -> bool:
        """Whether a caller's thread takes the turns."""
        return self._leader != 0 and _now_ns() < self._leads_until_ns

    def _sleep(self, fds: Collection[int], due_ns: int) -> None:
        """Sleep until something comes or is due, or until `wake`."""
        if not (self.stopping or self._is_led()):
            self._poll(fds, due_ns - _now_ns())
            if self._is_led():
                self.wake()  # it may have come meanwhile, and this been meant for it

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
        value: Any = None
        error: Exception | None = None
        if (wait := self._upkeep_waits) is not None:
            value = bool(self.section.run(wait.ready))
            left_ns = min(_UPKEEP_NS, _until(wait.deadline_ns) - _now_ns())
            if not value and left_ns > 0:
                self._keeper.sleep(left_ns, partial(self.section.run, self._is_upkeep_due, wait))
                return
        self._upkeep_waits = None
        while not self.stopping:
            try:
                request = self.section.run(step, self._upkeep, value, error)
            except BaseException:  # its next one goes on, after a rest
                self._upkeep = self.peer.upkeep()
                raise
            value = error = None
            if isinstance(request, Blocking):
                try:
                    value = request.call()
                except Exception as failure:
                    error = failure
                continue
            self._upkeep_waits = request if isinstance(request, Wait) else Wait(bool)
            self._sleepers.wake_ready()
            if self.section.run(self.peer.next_deadline_ns) < self._due_ns:
                self.wake()
            if self.section.run(self._upkeep_waits.ready):
                time.sleep(0)  # others enter before it goes on
            return

    def _is_upkeep_due(self, wait: Wait) -> bool:
        return self.stopping or bool(wait.ready())


class Sleepers:
    """Threads that sleep until another one wakes them, in a way that Ctrl-C cannot spoil.

    A `threading.Condition` is entered by Python code: an interrupt that comes when its lock was
    just taken leaves it taken, and the thread that wants to notify then waits for ever.

    Attributes:
        asleep: a lock for each, with the call that says whether its wait is over.

    """

    def __init__(self) -> None:
        self.asleep: dict[threading.Lock, Callable[[], object]] = {}

    def wake(self) -> None:
        """Wake all."""
        for each in [*self.asleep]:
            _release(each)

    def wake_ready(self, *, one_more: bool = False) -> None:
        """Wake those whose wait is over, and `one_more`, which is to take the turns.

        A thread that wakes up in vain costs more than a look for it, and takes the interpreter.
        """
        for each, is_over in [*self.asleep.items()]:
            if is_over():
                _release(each)
            elif one_more:
                one_more = False
                _release(each)

    def sleep(self, time_ns: int, is_over: Callable[[], object]) -> None:
        """Sleep for so long, or until it is woken; not at all where `is_over()` by now."""
        own = threading.Lock()
        own.acquire()
        try:
            self.asleep[own] = is_over
            if not is_over():  # who woke others before this did not find it
                own.acquire(timeout=max(0, time_ns) / 1e9)
        finally:
            self.asleep.pop(own, None)


def _release(asleep: threading.Lock) -> None:
    if asleep.locked():
        with suppress(RuntimeError):  # another thread has just released it
            asleep.release()


def _until(deadline_ns: int | None) -> int:
    return 2**63 if deadline_ns is None else deadline_ns


def _close(*files: FileIO) -> None:
    for each in files:
        each.close()
