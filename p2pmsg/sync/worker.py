"""A background thread that goes on after an exception, and waiting for a condition."""

import select
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import zmq

import transports
from p2pmsg.driver.lifecycle import check_process
from transports.own_log import own_log as _log
from transports.platform import wake_files

_AGAIN_S: Final = 0.05
"""How long it rests after an exception."""
_JOIN_S: Final = 5.0
_WAKES_MAX: Final = 4096
_WAKE: Final = (1).to_bytes(8, sys.byteorder)
"""What is added to an eventfd."""


class Worker:
    """Calls `turn` again and again in a thread, until `stop`, or until its sockets are closed.

    `turn` waits by itself, on its own descriptors and on this one, which is readable after `wake`;
    it calls `clear` then.

    Args:
        name: of the thread.
        owner: whose it is, for the log.
        turn: one round of the work.
        at_end: called by the thread when it ends.

    Attributes:
        stopping: whether the thread is to end, or has ended.
        thread: the thread.

    """

    def __init__(
        self,
        name: str,
        owner: str,
        turn: Callable[[], object],
        *,
        at_end: Callable[[], object] = lambda: None,
    ) -> None:
        check_process()
        self._owner = owner
        self._turn = turn
        self._at_end = at_end
        # Objects, which know that they are closed: a descriptor's number may be another file's.
        self._wake_read, self._wake_write = wake_files()
        self._is_woken = False
        self.stopping = False
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self.thread.start()

    def stop(self) -> None:
        """End the thread, and wait for it."""
        self.stopping = True
        self.wake()
        if self.thread is not threading.current_thread():
            self.thread.join(_JOIN_S)
        self._wake_read.close()
        self._wake_write.close()

    def wake(self) -> None:
        """Have the thread take a turn now."""
        if self._is_woken:
            return  # it has yet to come to `clear`, and what the caller wants is seen after that
        try:
            self._is_woken = True
            self._wake_write.write(_WAKE)  # None where it is full, and then it is awake
        except (OSError, ValueError):  # closed: it has ended
            pass
        except BaseException:  # Ctrl-C before the call
            self._is_woken = False
            raise

    def fileno(self) -> int:
        """Return the descriptor that is readable after `wake`."""
        return -1 if self._wake_read.closed else self._wake_read.fileno()

    def clear(self) -> None:
        """Forget that the thread was woken; before it looks at what there is to do.

        The mark goes last: who finds it set is seen to in this turn.
        """
        while len(self._wake_read.read(_WAKES_MAX) or b"") == _WAKES_MAX:
            pass
        self._is_woken = False

    def rest(self, seconds: float) -> None:
        """Wait in a turn, so long or until `wake`."""
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        poll.poll(seconds * 1000)
        self.clear()

    def _run(self) -> None:
        try:
            self._take_turns()
        finally:
            self._at_end()

    def _take_turns(self) -> None:
        while not self.stopping:
            try:
                self._turn()
            except (transports.ClosedError, zmq.ContextTerminated):
                return
            except Exception:  # the thread must go on: without it nothing is repaired
                if not self.stopping:
                    _log.exception("%s's background thread failed; it goes on", self._owner)
                    time.sleep(_AGAIN_S)


class Notifier:
    """Wakes threads that wait for a condition, in a way that Ctrl-C cannot spoil.

    A `threading.Condition` is entered by Python code: an interrupt that comes when its lock was
    just taken leaves it taken, and the thread that wants to notify then waits for ever.
    """

    def __init__(self) -> None:
        self._waiting: set[threading.Lock] = set()

    def notify(self) -> None:
        """Have all who wait look again."""
        for asleep in self._waiting.copy():
            if asleep.locked():
                with suppress(RuntimeError):  # another thread has just released it
                    asleep.release()

    def wait_for(self, is_so: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until `is_so()`, looked at first and after each `notify`, at most `timeout` s."""
        asleep = threading.Lock()  # taken while this thread is to sleep
        asleep.acquire()
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            self._waiting.add(asleep)
            while not is_so():
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return False
                asleep.acquire(timeout=-1 if left is None else min(left, threading.TIMEOUT_MAX))
            return True
        finally:
            self._waiting.discard(asleep)
