"""A lock that a thread may also take by setting a field, for short sections that do not wait.

CPython changes threads, and runs signal handlers, only between certain bytecodes: at the start of a
function, after a call and at a jump backwards. Testing `owner` and then setting it has none of
these in between, so the first thread that finds it None has it. `Publisher.publish` does so, in
line: an acquire and a release would be a third of its time. Without a GIL `owner` is never None,
and every thread takes the lock.
"""

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, TypeVar

from p2pmsg.errors import ReentrantCallError
from transports.signals import defer_signals

_TURN_S: Final = 50e-6
_TURNS_MAX: Final = 20
"""So that nobody is held up by a thread that was woken and does not run."""
_PATIENCE_NS: Final = 1_000_000
"""How long a thread tries to come in before it asks the one that is inside to give way, which costs
that one some 0.1 ms. It may never succeed: who leaves the GIL only inside is never seen outside."""
_HAS_GIL: Final[bool] = getattr(sys, "_is_gil_enabled", lambda: True)()
_threads: Final = threading.local()
_get_ident = threading.get_ident
_MARK: Final = type(threading.RLock())
R = TypeVar("R")


class PublishLock:
    """A lock that refuses the thread that is inside.

    A signal handler that came inside and calls in again gets a `ReentrantCallError`, where it
    would wait for ever, or find the work under the lock half done.

    A section that neither waits nor acquires may go without the lock, so that no call stands
    between the test and the setting::

        lock = self._lock
        me = lock.mark
        if not me._is_owned(): me = lock.ident()
        if lock.owner is not None: … take the lock instead
        lock.owner = me
        try: …
        finally: lock.owner = None

    A thread that Ctrl-C may interrupt does not call `release`, since an interrupt at the start of
    the call would leave the lock taken. It writes out what `release` does::

        lock.acquire()
        try: …
        finally:
            lock.owner = lock.free
            lock.unlock()

    Attributes:
        owner: the thread inside: its `get_ident()`, or its mark; `free` if there is none.
        mark: a lock that one thread owns for as long as it lives, the one that is there most often:
            to ask it takes a third of the time of `get_ident()`, which is a tenth of a `publish`.
        ident: returns which thread calls; what belongs to one thread alone raises here.
        free: None; 0 where only the lock may be taken, since there is no GIL.
        unlock: the last step of a release, of which C does the whole.
        wanted: whether a thread waits for the lock; see `give_way`.

    """

    __slots__ = ("_mutex", "_nests", "free", "ident", "mark", "owner", "unlock", "wanted")

    def __init__(self, *, nests: bool = False, ident: Callable[[], int] = _get_ident) -> None:
        """Make it; with `nests` a thread that has the lock may `run` under it once more."""
        self.ident = ident
        self._mutex: Any = threading.RLock()
        self._nests = nests
        self.mark = _mark_of_thread()
        self.free = None if _HAS_GIL else 0
        self.owner: Any = self.free
        self.unlock = self._mutex.release
        self.wanted = False

    def acquire(self) -> None:
        """Wait for the lock, and for the thread that is inside without it.

        `ReentrantCallError` where that is this thread.
        """
        mutex, me = self._mutex, _get_ident()
        # One that owns the mutex alone was interrupted between two steps of this method: if it went
        # on, it could wait for threads that need the lock.
        if (self.owner != self.free and self._is_inside()) or mutex._is_owned():
            self.wanted = False
            raise ReentrantCallError
        try:
            if not mutex.acquire(blocking=False):
                self.wanted = True
                mutex.acquire()
                self.wanted = False
            if self.owner != self.free:
                until_ns = time.monotonic_ns() + _PATIENCE_NS
                while self.owner != self.free:
                    time.sleep(0)  # the thread that is inside needs the GIL to come out
                    self.wanted = time.monotonic_ns() > until_ns
                self.wanted = False
            self.owner = me
        except BaseException:
            self.wanted = False
            if self.owner != me:
                try:
                    # No call before this one: after it another signal could come.
                    mutex.release()
                except RuntimeError:
                    pass  # it had not been taken
            raise

    def give_way(self) -> None:
        """Let in a thread that waits; for a loop that takes the lock again at once.

        A release wakes the thread that waits, too late to find the lock free: after `publish_many`
        it waited for 8 ms, and was woken for nothing after each frame.
        """
        for _ in range(_TURNS_MAX):
            if not self.wanted:
                return
            time.sleep(_TURN_S)

    @property
    def is_mine(self) -> bool:
        """Whether this thread is inside, or about to be: `acquire` would refuse it."""
        return (self.owner != self.free and self._is_inside()) or bool(self._mutex._is_owned())

    def refuse_inside(self) -> None:
        """Raise `ReentrantCallError` where this thread is inside; for the start of many steps."""
        self.run(dict)  # a call of C, so that Ctrl-C cannot come before it is left

    def release(self) -> None:
        """Leave."""
        self.owner = self.free
        self.unlock()

    def run(self, call: Callable[..., R], *arguments: Any, **options: Any) -> R:
        """Call under the lock."""
        if self._nests and self._is_inside() and self._mutex._is_owned():
            return call(*arguments, **options)
        self.acquire()
        try:
            return call(*arguments, **options)
        finally:
            self.owner = self.free
            self.unlock()

    def _is_inside(self) -> bool:
        owner = self.owner
        if isinstance(owner, _MARK):
            return bool(owner._is_owned())  # type: ignore[attr-defined]
        return bool(owner == _get_ident())

    def favour(self) -> None:
        """Give this thread the short way to say which it is, since it comes often."""
        if not self.mark._is_owned():
            self.mark = _mark_of_thread()

    def read(self, call: Callable[..., R], *arguments: Any, **options: Any) -> R:
        """Call what only reads: under the lock, or at once where this thread is inside."""
        try:
            return self.run(call, *arguments, **options)
        except ReentrantCallError:
            return call(*arguments, **options)

    def run_whole(self, call: Callable[..., R], *arguments: Any) -> R:
        """Call under the lock, without a wait, and with signal handlers deferred."""
        result: R = defer_signals(self.run, call, *arguments)
        return result

    __enter__ = acquire  # a method that calls it would be one call more, for each of many sections

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.owner = self.free
        self.unlock()


def _mark_of_thread() -> Any:
    """Return this thread's mark, which no other thread ever owns."""
    mark = getattr(_threads, "mark", None)
    if mark is None:
        mark = _threads.mark = threading.RLock()
        mark.acquire()
    return mark
