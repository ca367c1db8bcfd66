"""A lock with a way round it that costs a tenth: a flag, for sections without a wait.

CPython changes threads (and handles signals) only between certain bytecodes: at the start of a
function, behind a call and at a jump backwards. Testing a flag and then setting it has none of
these in between, so the first thread that finds it unset has it. `Publisher.publish` does so, in
line; a lock's acquire and release would be a quarter of its time. Where there is no GIL the flag
stays set, and everybody goes by the lock.
"""

import dis
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType, TracebackType
from typing import Any, Final, TypeVar

from p2pmsg.errors import ReentrantCallError
from transports.shield import shielded

_TURN_S: Final = 50e-6
_TURNS_MAX: Final = 20
"""So that nobody is held up by one who was woken and does not run."""
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])
_by_flag: Final[dict[CodeType, tuple[int, tuple[str, ...]]]] = {}
"""Of each method that goes by a flag: where it sets it, and what it calls outside."""
_NEVER: Final[tuple[int, tuple[str, ...]]] = (sys.maxsize, ())


def goes_by_flag(*outside: str) -> Callable[[F], F]:
    """Mark a method that goes by the flag of its local variable `lock`.

    Args:
        outside: the methods that it calls while it has not set the flag.

    """

    def mark(method: F) -> F:
        code = method.__code__
        sets = (
            step.offset
            for step in dis.get_instructions(code)
            if step.opname == "STORE_ATTR" and step.argval == "busy"
        )
        _by_flag[code] = next(sets), outside
        return method

    return mark


class ExclusiveLock:
    """A lock that also keeps out those who go by the flag.

    Who is inside, either way, cannot come in again: a signal handler that tries gets a
    `ReentrantCallError`, where it would wait for ever, or find the work under the lock half done.

    Who goes by the flag is marked with `goes_by_flag`, and does, with no call in between::

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
        depth: how often the thread that has the lock has taken it: once, where it does not nest.
        unlock: the last step of a release, of which C does the whole.
        has_gil: whether this interpreter has a global lock.
        wanted: whether somebody waits for the lock; see `give_way`.

    """

    __slots__ = ("_lock", "_nests", "busy", "depth", "has_gil", "unlock", "wanted")

    def __init__(self, *, nests: bool = False) -> None:
        """Make it; with `nests` a thread that has the lock may take it once more."""
        self._lock = threading.RLock()
        self._nests = nests
        self.depth = 0
        self.has_gil = has_gil()
        self.busy = not self.has_gil
        self.unlock = self._lock.release
        self.wanted = False

    def acquire(self) -> None:
        """Wait for the lock, and for whoever is inside by the flag.

        Raises:
            ReentrantCallError: this thread is inside, and may not nest.

        """
        lock = self._lock
        # Without a depth, a signal has struck between two steps of this method, or of leaving: who
        # went on would wait for threads that need the lock, and have it taken from under them.
        if lock._is_owned() and not (self._nests and self.depth):  # type: ignore[attr-defined]
            self.wanted = False
            raise ReentrantCallError
        try:
            if not lock.acquire(blocking=False):
                self._refuse_if_set_here()  # whoever has the lock waits for the flag
                self.wanted = True
                lock.acquire()
                self.wanted = False
            if self.depth == 0 and self.has_gil:
                if self.busy:
                    self._refuse_if_set_here()
                    while self.busy:
                        time.sleep(0)  # whoever is inside needs the GIL to come out
                self.busy = True
            self.depth += 1
        except BaseException:
            self.wanted = False
            if self.depth == 0 and lock._is_owned():  # type: ignore[attr-defined]
                lock.release()
            raise

    def give_way(self) -> None:
        """Let in who waits; for a loop that takes the lock again as soon as it has left it.

        A release wakes the one who waits, too late to find the lock free: behind `publish_many` it
        waited for 8 ms, and was woken for nothing after each frame.
        """
        for _ in range(_TURNS_MAX):
            if not self.wanted:
                return
            time.sleep(_TURN_S)

    def refuse_inside(self) -> None:
        """Raise `ReentrantCallError` where this thread is inside; for the start of many steps."""
        self.run(dict)  # a call of C, so that Ctrl-C cannot come before it is left

    def _refuse_if_set_here(self) -> None:
        """Raise where this thread has set the flag further out, and is not out again."""
        frame: FrameType | None = sys._getframe(1)
        inner = ""
        while frame is not None:
            set_at, outside = _by_flag.get(frame.f_code, _NEVER)
            has_set = frame.f_lasti > set_at and inner not in outside
            if has_set and frame.f_locals.get("lock") is self:
                raise ReentrantCallError
            inner, frame = frame.f_code.co_name, frame.f_back

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

    def look(self, call: Callable[..., R], *arguments: Any, **options: Any) -> R:
        """Call what only reads: under the lock, or at once where this thread is inside."""
        try:
            return self.run(call, *arguments, **options)
        except ReentrantCallError:
            return call(*arguments, **options)

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
