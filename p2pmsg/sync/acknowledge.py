"""Callers that wait until what they published is on the disk: many share one fsync."""

import threading
from collections.abc import Callable
from typing import Final

from transports.signals import defer_signals

_LOOK_S: Final = 1.0
"""How often a caller looks whether the publisher was closed meanwhile."""


class _Commit:
    """What callers wait for: its lock is taken until it has ended."""

    __slots__ = ("failure", "lock")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()
        self.failure: str | None = None


class Acknowledgements:
    """Group commit: the publisher's thread forces the log to the disk for all who wait.

    A caller reads `begun` when its message was accepted. The next commit that begins has that
    message, so the caller waits until `begun + 1` of them have ended.

    Each commit has a lock of its own, which is taken until the commit has ended. Who gets it then
    passes it on at once: so one caller after the other is woken, and each publishes again while
    the next one wakes. All of them woken at a time would fight for the interpreter, and half as
    many messages would go through.

    Attributes:
        begun: how many commits have begun; changed under the publisher's lock.
        is_wanted: whether somebody waits for one that has not begun.
        ended: how many have ended.
        failure: why the last of them failed, or None.

    """

    def __init__(self) -> None:
        self.begun = 0
        self.is_wanted = False
        self.ended = 0
        self.failure: str | None = None
        self._commits: dict[int, _Commit] = {}
        self._lock = threading.Lock()

    def wait(
        self, number: int, wake: Callable[[], None], is_over: Callable[[], bool]
    ) -> str | None:
        """Wait until so many commits have ended; return why the last of them failed, or None.

        Args:
            number: of commits, at most one more than have begun.
            wake: lets the publisher's thread begin one.
            is_over: whether there will be no further one, since the publisher was closed.

        """
        # A signal handler that came within, and closes the publisher, would wait for its thread,
        # which waits for this lock while it has the publisher's.
        commit, is_first = defer_signals(self._join, number)
        if is_first:
            wake()
        while not commit.lock.acquire(timeout=_LOOK_S):
            if self.ended >= number:  # Ctrl-C kept a caller from passing it on
                return commit.failure
            if is_over():
                return "the publisher was closed before it was on the disk"
        commit.lock.release()
        return commit.failure

    def _join(self, number: int) -> tuple[_Commit, bool]:
        """Return what to wait for, and whether the caller is the first who wants it."""
        with self._lock:
            if self.ended >= number:
                over = _Commit()
                over.failure = self.failure
                over.lock.release()
                return over, False
            commit = self._commits.get(number)
            if commit is None:
                commit = self._commits[number] = _Commit()
            is_first = self.begun < number and not self.is_wanted
            self.is_wanted |= is_first
            return commit, is_first

    def ask(self) -> int:
        """Ask for a commit, without waiting; return how many must have ended then."""
        with self._lock:
            self.is_wanted = True
            return self.begun + 1

    @property
    def is_due(self) -> bool:
        """Whether a commit is to begin now: one is wanted, and none is on its way or put off."""
        return self.is_wanted and self.ended == self.begun

    def begin(self) -> bool:
        """Begin a commit, if one is wanted, or go on with one that has not ended.

        It is called under the publisher's lock.
        """
        with self._lock:
            if self.is_due:
                self.is_wanted = False
                self.begun += 1
            return self.ended < self.begun

    def end(self, failure: str | None) -> None:
        """End the commit that has begun, and let those who waited for it go on."""
        with self._lock:
            self.ended += 1
            self.failure = failure
            commit = self._commits.pop(self.ended, None)
        if commit is not None:
            commit.failure = failure
            commit.lock.release()
