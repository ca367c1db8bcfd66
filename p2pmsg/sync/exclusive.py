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
from types import TracebackType


class ExclusiveLock:
    """A re-entrant lock that also keeps out those who go by the flag.

    Who goes by the flag does, with no call in between::

        if lock.busy: … go by the lock instead
        lock.busy = True
        try: … (no waiting, no acquire)
        finally: lock.busy = False

    Attributes:
        busy: the flag; set while somebody is inside, either way.

    """

    __slots__ = ("_depth", "_lock", "busy")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._depth = 0
        self.busy = not has_gil()

    def acquire(self) -> None:
        """Wait for the lock, and for whoever is inside by the flag."""
        lock = self._lock
        try:
            lock.acquire()
            if self._depth == 0 and has_gil():
                while self.busy:
                    time.sleep(0)  # whoever is inside needs the GIL to come out
                self.busy = True
            self._depth += 1
        except BaseException:
            if self._depth == 0 and lock._is_owned():  # type: ignore[attr-defined]
                lock.release()
            raise

    def release(self) -> None:
        """Leave; the last release lets others in, by the flag too."""
        self._depth -= 1
        if self._depth == 0:
            self.busy = not has_gil()
        self._lock.release()

    @property
    def is_mine(self) -> bool:
        """Whether this thread has the lock."""
        return self._depth > 0 and self._lock._is_owned()  # type: ignore[attr-defined]

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
