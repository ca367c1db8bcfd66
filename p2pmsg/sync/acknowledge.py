"""Callers that wait until what they published is on the disk: many share one fsync."""

import threading
from collections.abc import Callable
from typing import Final

_LOOK_S: Final = 1.0
"""How often a caller looks whether the publisher was closed meanwhile."""


class Acknowledgements:
    """Group commit: the publisher's thread forces the log to the disk for all who wait.

    A caller reads `begun` when its message was accepted. The next commit that begins has that
    message, so the caller waits until `begun + 1` of them have ended.

    Attributes:
        begun: how many commits have begun; changed under the publisher's lock.

    """

    def __init__(self) -> None:
        self.begun = 0
        self._is_wanted = False
        self._ended = 0
        self._failure: str | None = None
        self._condition = threading.Condition()

    def wait(
        self, number: int, wake: Callable[[], None], is_over: Callable[[], bool]
    ) -> str | None:
        """Wait until so many commits have ended; return why the last one failed, or None.

        Args:
            number: of commits.
            wake: lets the publisher's thread begin one.
            is_over: whether there will be no further one, since the publisher was closed.

        """
        with self._condition:
            if self.begun < number and not self._is_wanted:
                self._is_wanted = True
                wake()
            while self._ended < number:
                if is_over():
                    return "the publisher was closed before it was on the disk"
                self._condition.wait(_LOOK_S)
            return self._failure

    def begin(self) -> bool:
        """Begin a commit, if one is wanted, or go on with one that has not ended.

        It is called under the publisher's lock.
        """
        with self._condition:
            if self._ended == self.begun and self._is_wanted:
                self._is_wanted = False
                self.begun += 1
            return self._ended < self.begun

    def end(self, failure: str | None) -> None:
        """End the commit that has begun, and let those who waited for it go on."""
        with self._condition:
            self._ended += 1
            self._failure = failure
            self._condition.notify_all()
