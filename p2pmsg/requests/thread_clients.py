"""Connections of which each thread has its own, closed when their thread ends."""

import itertools
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

import transports

Clients = list[transports.ZmqQueueClient]
_getpid: Final = os.getpid


class _OpenClients:
    """The connections of all threads, and those whose threads ended while another was in here."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._of: dict[int, Clients] = {}
        self._pid = _getpid()
        self.ended: deque[int] = deque()

    def __len__(self) -> int:
        return len(self._of)

    def add(self, clients: Clients) -> int:
        with self._lock:
            key = next(self._numbers)
            self._of[key] = clients
        return key

    def end(self, key: int) -> None:
        """Close what belonged to a thread; called as it ends, or by the garbage collector.

        The collector may run while this very thread has the lock, so this does not wait.
        """
        if _getpid() != self._pid:
            return  # of a thread that a forked child does not have
        self.ended.append(key)
        self.close_ended()

    def close_ended(self) -> None:
        """Close what belonged to threads that have ended, unless another thread is in here."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            while self.ended:
                _close(self._of.pop(self.ended.popleft(), ()))
        finally:
            self._lock.release()

    def close_all(self) -> None:
        with self._lock:
            while self._of:
                _close(self._of.popitem()[1])


class _Held:
    """What a thread holds, and lets go of when it ends."""

    __slots__ = ("_key", "_open", "clients")

    def __init__(self, clients: Clients, open_clients: _OpenClients) -> None:
        self.clients = clients
        self._open = open_clients
        self._key = open_clients.add(clients)

    def __del__(self) -> None:
        self._open.end(self._key)


class ThreadClients:
    """The connections of the threads that use them.

    A thread's connections are closed by that thread as it ends. Where that cannot be, since another
    thread opens or closes some at that moment, the next `get` of any thread does it. ZeroMQ's
    sockets may be closed by another thread after a full memory barrier, which the lock is.
    """

    def __init__(self) -> None:
        self._local = threading.local()
        self._open = _OpenClients()

    def __len__(self) -> int:
        """Return how many threads have connections."""
        return len(self._open)

    def get(self, connect: Callable[[], Clients]) -> Clients:
        """Return this thread's own; `connect` makes them, unconnected, where it has none."""
        if self._open.ended:
            self._open.close_ended()
        held: _Held | None = getattr(self._local, "held", None)
        if held is not None:
            return held.clients
        clients = connect()
        try:
            for client in clients:
                client.connect()
        except BaseException:
            _close(clients)
            raise
        self._local.held = _Held(clients, self._open)
        return clients

    def close(self) -> None:
        """Close those of all threads, which must have done with them."""
        self._open.close_all()

    def forget(self) -> None:
        """In a forked child: none of them is the child's."""
        self._open = _OpenClients()


def _close(clients: "Clients | tuple[()]") -> None:
    for client in clients:
        client.close()
