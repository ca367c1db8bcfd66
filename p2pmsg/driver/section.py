"""Who works on a peer's engine: one caller at a time, and what follows an exception in it."""

import inspect
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import sleep
from types import SimpleNamespace
from typing import Any, Final, TypeVar

from p2pmsg.driver.verbs import LateError
from p2pmsg.errors import P2PError, ReentrantCallError

R = TypeVar("R")
OURS: Final = {"p2pmsg", "recovery", "transports", *sys.stdlib_module_names}
"""The packages whose errors are refusals; what raises in others is a user's."""
_LOOKS: Final = 200
_LOOK_S: Final = 0.001
"""How often a thread that must not enter looks at what it reads, and the time in between."""


class Section:
    """A lock, and whether somebody is inside.

    ::

        section.run(engine.flush)

    or, where a call is too much (`with` takes 150 ns, and this takes 70), written out. The name
    is how a call within a call is known::

        entered = self._section
        lock = entered.lock
        try:
            if not lock.acquire():
                entered.refuse()
            if entered.busy:
                entered.check()
            entered.busy = True
            ...                     # the work on the engine
            entered.busy = False
            lock.release()
        except BaseException as error:
            entered.leave(error)
            raise

    An exception that comes inside (Ctrl-C, MemoryError, what a signal's handler raises) leaves
    `busy` as it is, and nothing else is done about it: who enters next finds it, and has the engine
    put right, as after a reconnection. A signal's handler, or a finalizer, that calls the peer it
    interrupted gets a `ReentrantCallError`.

    Args:
        resync: puts the engine right; called inside.
        refuse: raises, for callers in another thread than this one. Default None: any may enter,
            one at a time.

    Attributes:
        lock: its `acquire` takes it, and is false where this thread must not enter; its `release`
            gives it back, at the end of the work.
        refuse: raises, for a thread that must not enter.
        busy: whether somebody is inside, or an exception came inside.
        home: the thread that may enter; None: any may; 0: none may.

    """

    __slots__ = ("_is_home", "_resync", "busy", "home", "lock", "refuse")

    lock: Any

    def __init__(
        self, resync: Callable[[], object], refuse: Callable[[], object] | None = None
    ) -> None:
        self.busy = False
        self.refuse = refuse or bool
        self.home: int | None = None
        self._resync = resync
        self._is_home: Callable[[], object] = partial(bool, 1)
        if refuse is None:
            self.renew()
        else:  # there is nobody to wait for
            here = threading.local()
            here.is_home = True
            self.home = threading.get_ident()
            self._is_home = partial(getattr, here, "is_home", False)
            self.lock = SimpleNamespace(acquire=self._is_home, release=bool)

    def check(self) -> None:
        """Find out why somebody seems to be inside: a caller of this one, or an exception's trace.

        The lock is taken, and is one that the same thread may take once more.

        Raises:
            ReentrantCallError: this thread is inside already.

        """
        current = inspect.currentframe()
        frame = None if current is None else current.f_back
        while frame is not None and (frame := frame.f_back) is not None:
            if frame.f_locals.get("entered") is self:
                raise ReentrantCallError
        try:
            self._resync()
        except P2PError as error:  # no refusal: it is still to be put right
            raise RuntimeError(f"after an exception: {error}") from error
        self.busy = False

    def leave(self, error: BaseException) -> None:
        """Give the lock back after an exception, if this thread has it.

        A `P2PError` or a `LateError` that was raised here is a refusal, which left the engine as it
        was; so does who must not enter. After any other one, also after one that a signal's handler
        raised, and where it comes at the very end of the work, what was taken does not get to the
        caller.
        """
        is_refusal = isinstance(error, P2PError | LateError)
        if is_refusal and not isinstance(error, ReentrantCallError) and _is_ours(error):
            self.busy = False
        elif not isinstance(error, RuntimeError):
            self.busy = True
        with suppress(RuntimeError):
            self.lock.release()

    def run(self, call: Callable[..., R], *arguments: Any) -> R:
        """Call inside.

        Raises:
            ReentrantCallError: this thread is inside already.
            RuntimeError: it is for another thread.

        """
        entered = self
        lock = entered.lock
        try:
            if not lock.acquire():
                entered.refuse()
            if entered.busy:
                entered.check()
            entered.busy = True
            result = call(*arguments)
            entered.busy = False
            lock.release()
            return result
        except BaseException as error:
            entered.leave(error)
            raise

    def read(self, call: Callable[..., R], *arguments: Any) -> R:
        """Call what only reads: inside, or at once where this thread is there already.

        A thread that must not enter reads while nobody is inside, as far as that comes within some
        tenths of a second; what changed while it looked, it looks at once more.
        """
        if not self._is_home():
            for _ in range(_LOOKS):
                with suppress(RuntimeError):
                    if not self.busy:
                        found = call(*arguments)
                        if not self.busy:
                            return found
                sleep(_LOOK_S)
            return call(*arguments)
        try:
            return self.run(call, *arguments)
        except ReentrantCallError:
            return call(*arguments)

    def end(self, refuse: Callable[[], object]) -> None:
        """Let nobody in from now on: who enters gets what `refuse` raises."""
        self.lock, self.refuse = SimpleNamespace(acquire=bool, release=bool), refuse
        self.home = 0

    def renew(self) -> None:
        """Make the lock; in a forked child another one, which no thread of the parent's has."""
        self.lock = threading.RLock()
        self.busy = False


def _is_ours(error: BaseException) -> bool:
    """Whether it was raised here, not by a user's code, such as a signal's handler."""
    at = error.__traceback__
    while at is not None:
        if at.tb_frame.f_globals.get("__name__", "").partition(".")[0] not in OURS:
            return False
        at = at.tb_next
    return True
