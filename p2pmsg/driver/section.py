"""Who works on a peer's engine: one caller at a time, and what follows an exception in it."""

import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from p2pmsg.driver.verbs import LateError
from p2pmsg.errors import P2PError, ReentrantCallError

R = TypeVar("R")
_NESTED_S: Final = 0.05
"""So long a caller that seems to be inside already waits for the lock, until it is refused."""
_PAUSE_S: Final = 0.001
_get_ident = threading.get_ident


class Section:
    """A lock, and who is inside.

    ::

        section.run(engine.flush)

    or, where a call is too much, written out::

        me = get_ident()
        if me == section.owner or me != section.home:
            section.check(me)
        with section.lock:
            if section.owner:
                section.resync()
            section.owner = me
            …
            section.owner = 0

    An exception that comes inside (Ctrl-C, MemoryError, what a signal's handler raises) leaves
    `owner` as it is, and nothing else is done about it: who enters next finds it, and has the
    engine put right, as after a reconnection. A signal's handler, or a finalizer, that calls the
    peer which it interrupted gets a `ReentrantCallError`.

    Args:
        resync: puts the engine right; called inside.
        thread: the only one that may enter, as of an event loop. Default None: any.
        refuse: raises, for others. Default: nobody is refused.

    Attributes:
        lock: taken by who is inside.
        owner: the thread that is inside, or that an exception threw out; 0: neither.
        home: the thread that came last, or the only one that may.

    """

    __slots__ = ("_refuse", "_resync", "home", "lock", "owner", "thread")

    def __init__(
        self,
        resync: Callable[[], object],
        thread: int | None = None,
        refuse: Callable[[], object] = lambda: None,
    ) -> None:
        self.lock = threading.Lock()
        self.owner = 0
        self.thread = thread
        self.home = thread or 0
        self._resync = resync
        self._refuse = refuse

    def check(self, me: int) -> None:
        """Raise where thread `me` must not enter: it is inside already, or is the wrong one."""
        if self.thread is None:
            self.home = me
        elif me != self.thread:
            self._refuse()
        if self.owner != me:
            return
        until = time.monotonic() + _NESTED_S
        while self.lock.locked():  # by this thread, or by another one that has just come in
            if self.owner != me:
                return
            if time.monotonic() > until:
                raise ReentrantCallError
            time.sleep(_PAUSE_S)

    def resync(self) -> None:
        """Have the engine put right, inside; where that is interrupted, it is done once more."""
        self.owner = _get_ident()
        self._resync()
        self.owner = 0

    def run(self, call: Callable[..., R], *arguments: Any) -> R:
        """Call inside.

        A `P2PError` or `LateError` is its own refusal, which leaves the engine as it was.

        Raises:
            ReentrantCallError: this thread is inside already.
            RuntimeError: it is for another thread.

        """
        me = _get_ident()
        if me == self.owner or me != self.home:
            self.check(me)
        with self.lock:
            if self.owner:
                self.resync()
            self.owner = me
            try:
                result = call(*arguments)
            except (P2PError, LateError):
                self.owner = 0
                raise
            self.owner = 0
            return result

    def read(self, call: Callable[..., R], *arguments: Any) -> R:
        """Call what only reads: inside, or at once where this thread is there already."""
        try:
            return self.run(call, *arguments)
        except ReentrantCallError:
            return call(*arguments)

    def renew(self) -> None:
        """In a forked child: nobody is inside, and a thread of the parent's may have been."""
        self.lock = threading.Lock()
        self.owner = 0
