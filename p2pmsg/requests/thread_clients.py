"""Connections of which each thread has its own, closed when their thread ends."""

import os
import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

import transports

Clients = list[transports.ZmqQueueClient]
_getpid: Final = os.getpid
_get_ident: Final = threading.get_ident
R = TypeVar("R")


class _Connections:
    """One thread's, with a lock that the thread has while it is in a call.

    The lock is of C, and entered by `with` alone, so that Ctrl-C cannot come between taking it and
    the block that gives it back. It is an RLock, since a signal handler may call, too.
    """

    __slots__ = ("calls", "clients", "lock", "thread")

    def __init__(self, clients: Clients) -> None:
        self.clients = clients
        self.thread = _get_ident()
        self.lock = threading.RLock()
        self.calls = 0

    def close(self, deadline: float) -> None:
        """Close them once their thread has left its call, unless that takes until `deadline`.

        In a signal handler that interrupted a call of its own thread nothing is waited for.
        """
        if self.thread == _get_ident() and self.calls:
            return
        if self.lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            try:
                clients, self.clients = self.clients, []
                for client in clients:
                    client.close()
            finally:
                self.lock.release()


class _AtEnd:
    """What a thread holds, and lets go of when it ends."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call

    def __del__(self) -> None:
        self._call()


class ThreadClients:
    """The connections of the threads that use them.

    A thread's connections are closed by that thread as it ends, by `close` while their thread is in
    no call, and else by their thread when it leaves the call. ZeroMQ's sockets may be closed by
    another thread after a full memory barrier, which the lock of each thread's is.
    """

    def __init__(self) -> None:
        self._local = threading.local()
        # Each step is one operation of a dict, and so atomic: a signal handler and the garbage
        # collector may come in at any time, and would wait for a lock of their own thread.
        self._open: dict[int, _Connections] = {}
        self._is_closed = False

    def __len__(self) -> int:
        """Return how many threads have connections."""
        return len(self._open)

    def call(self, connect: Callable[[], Clients], ask: Callable[[Clients], R]) -> R:
        """Call `ask` with this thread's own; `connect` makes them where it has none.

        Args:
            connect: returns new ones, unconnected.
            ask: it must end soon after `close`, and must not keep what it gets.

        Returns:
            What `ask` does; it gets an empty list where they were closed meanwhile.

        """
        own: _Connections = getattr(self._local, "own", None) or self._connected(connect)
        with own.lock:
            own.calls += 1
            try:
                return ask(own.clients)
            finally:
                own.calls -= 1
                if self._is_closed and not own.calls:
                    own.close(0.0)

    def close(self, timeout: float) -> None:
        """Close those of all threads, within so many seconds; who is in a call closes its own."""
        self._is_closed = True
        deadline = time.monotonic() + timeout
        for key in list(self._open):
            own = self._open.pop(key, None)
            if own is not None:
                own.close(deadline)

    def forget(self) -> None:
        """In a forked child: none of them is the child's."""
        self._open = {}

    def _connected(self, connect: Callable[[], Clients]) -> _Connections:
        clients = connect()
        try:
            for client in clients:
                client.connect()
        except BaseException:
            for client in clients:
                client.close()
            raise
        own = self._local.own = _Connections(clients)
        key, pid, open_connections = id(own), _getpid(), self._open
        open_connections[key] = own

        def end() -> None:
            # A forked child does not have the thread that this was of.
            if _getpid() == pid and open_connections.pop(key, None) is not None:
                own.close(0.0)

        self._local.at_end = _AtEnd(end)
        return own
