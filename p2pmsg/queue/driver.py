"""The background thread that pusher and puller have alike.

Whoever waits (in `push` for room, in `receive` for a job) does the I/O itself, by the same round;
the thread steps in when nobody waits.
"""

import logging
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import Final

import transports

_IDLE_MS: Final = 20
"""While somebody else waits for news, how soon the thread looks whether he still does."""
_LONGEST_MS: Final = 250
_log = logging.getLogger("p2pmsg")


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
        self._stopping = False
        self._ears, self._mouth = socket.socketpair()
        self._ears.setblocking(False)
        self._mouth.setblocking(False)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and wait for it."""
        self._stopping = True
        self.wake()
        if self._thread is not threading.current_thread():
            self._thread.join(5.0)
        self._ears.close()
        self._mouth.close()

    def wake(self) -> None:
        """Have the thread take a turn now."""
        try:
            self._mouth.send(b"\0")
        except OSError:  # full: it is awake; closed: it has ended
            pass

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

    def _run(self) -> None:
        alone, crowd = select.poll(), select.poll()
        alone.register(self._ears, select.POLLIN)
        crowd.register(self._ears, select.POLLIN)
        for fd in self._fds:
            alone.register(fd, select.POLLIN)
        while not self._stopping:
            try:
                wait_ms = self._turn()
                if self.waiters:
                    crowd.poll(max(0.0, min(wait_ms, _IDLE_MS)))
                else:
                    alone.poll(max(0.0, min(wait_ms, _LONGEST_MS)))
                self._listen()
            except transports.ClosedError:
                return
            except Exception:  # the thread must go on: without it nothing is given back
                if self._stopping:
                    return
                _log.exception("the queue's background thread failed; it goes on")
                time.sleep(0.05)

    def _listen(self) -> None:
        try:
            while self._ears.recv(4096):
                pass
        except BlockingIOError:
            pass
