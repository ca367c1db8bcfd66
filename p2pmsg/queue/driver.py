"""The background thread that pusher and puller have alike.

Whoever waits (in `push` for room, in `receive` for a job) does the I/O itself, by the same round;
the thread steps in when nobody waits.
"""

import select
from collections.abc import Callable
from typing import Final

from p2pmsg.sync.worker import Worker

_IDLE_MS: Final = 20
"""While somebody else waits for news, how soon the thread looks whether he still does."""
_LONGEST_MS: Final = 250


class Driver:
    """Calls a round whenever there are news, or a deadline is due.

    Args:
        name: of the thread.
        turn: does what there is to do, and returns how long it may be left alone, in ms.
        fds: descriptors that become readable when there are news.

    Attributes:
        waiters: how many other threads wait for news by `wait`.

    """

    def __init__(self, name: str, turn: Callable[[], float], fds: list[int]) -> None:
        self._turn = turn
        self._fds = fds
        self.waiters = 0
        self._worker = Worker(name, "the queue", self._take_turn)
        self.start, self.stop, self.wake = (
            self._worker.start, self._worker.stop, self._worker.wake,
        )  # fmt: skip
        self._alone, self._crowd = select.poll(), select.poll()
        for fd in (self._worker.fileno(), *fds):
            self._alone.register(fd, select.POLLIN)
        self._crowd.register(self._worker.fileno(), select.POLLIN)

    def wait(self, wait_ms: float) -> None:
        """Wait in the caller's thread until there may be news."""
        poll = select.poll()
        for fd in self._fds:
            poll.register(fd, select.POLLIN)
        self.waiters += 1
        try:
            poll.poll(max(0.0, min(wait_ms, _LONGEST_MS)))
        finally:
            self.waiters -= 1

    def _take_turn(self) -> None:
        wait_ms = self._turn()
        if self.waiters:
            self._crowd.poll(max(0.0, min(wait_ms, _IDLE_MS)))
        else:
            self._alone.poll(max(0.0, min(wait_ms, _LONGEST_MS)))
        self._worker.clear()
