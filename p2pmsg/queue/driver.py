"""The background thread of pushers and pullers.

A caller that waits (in `push` until the queue is less full, in `receive` for a job) does the I/O
itself, by the same round; the thread does it while no caller waits.
"""

import select
from collections.abc import Callable, Iterable
from typing import Final

from p2pmsg.sync.worker import Worker

_IDLE_MS: Final = 20
"""While a caller waits, how soon the thread looks whether it still does."""
_LONGEST_MS: Final = 250


class Driver(Worker):
    """Calls a round whenever there is something to read, or a deadline is due.

    Args:
        name: of the thread.
        work: does what there is to do, and returns how long nothing is due, in ms.
        fds: descriptors that become readable when there may be something to read.

    Attributes:
        waiters: how many other threads are in `wait`.

    """

    def __init__(self, name: str, work: Callable[[], float], fds: list[int]) -> None:
        super().__init__(name, "the queue", self._take_turn)
        self._work = work
        self._fds = fds
        self.waiters = 0
        self._alone, self._crowd = select.poll(), select.poll()
        for fd in (self.fileno(), *fds):
            self._alone.register(fd, select.POLLIN)
        self._crowd.register(self.fileno(), select.POLLIN)

    def watch(self, fds: Iterable[int]) -> None:
        """Watch these descriptors from the next wait on, and no others."""
        wanted, now = set(fds), set(self._fds)
        for fd in now - wanted:
            self._alone.unregister(fd)
        for fd in wanted - now:
            self._alone.register(fd, select.POLLIN)
        self._fds = list(wanted)

    def wait(self, wait_ms: float) -> None:
        """Wait in the caller's thread until there may be something to read."""
        poll = select.poll()
        for fd in self._fds:
            poll.register(fd, select.POLLIN)
        self.waiters += 1
        try:
            poll.poll(max(0.0, min(wait_ms, _LONGEST_MS)))
        finally:
            self.waiters -= 1

    def _take_turn(self) -> None:
        wait_ms = self._work()
        if self.waiters:
            self._crowd.poll(max(0.0, min(wait_ms, _IDLE_MS)))
        else:
            self._alone.poll(max(0.0, min(wait_ms, _LONGEST_MS)))
        self.clear()
