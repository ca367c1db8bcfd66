"""Waiting until something is so, in a way that Ctrl-C cannot spoil.

A `threading.Condition` is entered by Python code: an interrupt that comes when its lock was just
taken leaves it taken, and whoever has the news then waits for ever.
"""

import time
from collections.abc import Callable
from queue import Empty, SimpleQueue


class News:
    """Tells the threads that wait for something to look again."""

    def __init__(self) -> None:
        self._waiting: set[SimpleQueue[None]] = set()

    def tell(self) -> None:
        """Have all who wait look again."""
        for mailbox in self._waiting.copy():
            if mailbox.empty():  # one is enough
                mailbox.put(None)

    def wait_for(self, is_so: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until `is_so`, which is looked at first and at all news, at most `timeout` s."""
        mailbox: SimpleQueue[None] = SimpleQueue()
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            self._waiting.add(mailbox)
            while not is_so():
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return False
                try:
                    mailbox.get(timeout=left)
                except Empty:
                    pass
            return True
        finally:
            self._waiting.discard(mailbox)
