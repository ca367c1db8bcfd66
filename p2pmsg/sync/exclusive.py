"""A lock with a way round it that costs a tenth: a flag, for sections without a wait.

CPython changes threads (and handles signals) only between certain bytecodes: at the start of a
function, behind a call and at a jump backwards. Testing a flag and then setting it has none of
these in between, so the first thread that finds it unset has it. `Publisher.publish` does so, in
line; a lock's acquire and release would be a quarter of its time. Where there is no GIL the flag
stays set, and everybody goes by the lock.
"""

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from p2pmsg.sync.shield import shielded

R = TypeVar("R")


class ExclusiveLock:
    """A re-entrant lock that also keeps out those who go by the flag.

    Who goes by the flag does, with no call in between::

        if lock.busy: … go by the lock instead
        lock.busy = True
        try: … (no waiting, no acquire)
        finally: lock.busy = False

    A thread that Ctrl-C may strike does not call `release`, since an interrupt at the start of the
    call would leave the lock taken. It writes out what `release` does::

        lock.acquire()
        try: …
        finally:
            lock.depth -= 1
            lock.busy = lock.depth > 0 or not lock.has_gil
            lock.unlock()

    Attributes:
        busy: the flag; set while somebody is inside, either way.
        depth: how often the thread that has the lock has taken it.
        unlock: the last step of a release, of which C does the whole.
        has_gil: whether this interpreter has a global lock.

    """

    __slots__ = ("_lock", "busy", "depth", "has_gil", "unlock")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.depth = 0
        self.has_gil = has_gil()
        self.busy = not self.has_gil
        self.unlock = self._lock.release

    def acquire(self) -> None:
        """Wait for the lock, and for whoever is inside by the flag."""
        lock = self._lock
        try:
            lock.acquire()
            if self.depth == 0 and self.has_gil:
                while self.busy:
                    time.sleep(0)  # whoever is inside needs the GIL to come out
                self.busy = True
            self.depth += 1
        except BaseException:
            if self.depth == 0 and lock._is_owned():  # type: ignore[attr-defined]
                lock.release()
            raise

    def release(self) -> None:
        """Leave; the last release lets others in, by the flag too."""
        self.depth -= 1
        self.busy = self.depth > 0 or not self.has_gil
        self.unlock()

    def run(self, call: Callable[..., R], *arguments: Any, **options: Any) -> R:
        """Call under the lock."""
        self.acquire()
        try:
            return call(*arguments, **options)
        finally:
            self.depth -= 1
            self.busy = self.depth > 0 or not self.has_gil
            self.unlock()

    def run_whole(self, call: Callable[..., R], *arguments: Any) -> R:
        """Call under the lock, without a wait; Ctrl-C strikes behind it and not within."""
        result: R = shielded(self.run, call, *arguments)
        return result

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def has_gil() -> bool:
    """Whether this interpreter has a global lock."""
    return _HAS_GIL


_HAS_GIL: bool = getattr(sys, "_is_gil_enabled", lambda: True)()
