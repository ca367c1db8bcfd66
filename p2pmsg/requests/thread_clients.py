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

    def close(self) -> None:
        """Close them, by the thread that has the lock; again is nothing."""
        clients, self.clients = self.clients, []
        for client in clients:
            client.close()

    def close_by(self, deadline: float) -> None:
        """Close them once their thread has left its call, unless that takes until `deadline`.

        In a signal handler that interrupted a call of its own thread nothing is waited for.
        """
        if self.thread == _get_ident() and self.calls:
            return
        if not self.lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            return
        try:
            self.close()
        finally:
            self.lock.release()


class _OpenConnections:
    """Those of all threads, by their `id`.

    Each step is one operation of a dict, and so atomic: a signal handler and the garbage
    collector may come in at any time, and a lock would have them wait for the thread they are in.
    """

    def __init__(self) -> None:
        self._of: dict[int, _Connections] = {}
        self._pid = _getpid()

    def __len__(self) -> int:
        return len(self._of)

    def add(self, own: _Connections) -> None:
        self._of[id(own)] = own

    def end(self, own: _Connections) -> None:
        """Close what belonged to a thread; called as it ends, or by the garbage collector."""
        if _getpid() != self._pid:
            return  # of a thread that a forked child does not have
        if self._of.pop(id(own), None) is not None:
            own.close_by(0.0)

    def close_all(self, deadline: float) -> None:
        while self._of:
            try:
                own = self._of.popitem()[1]
            except KeyError:
                return  # its thread ended just now
            own.close_by(deadline)


class _Held:
    """What a thread holds, and lets go of when it ends."""

    __slots__ = ("_open", "own")

    def __init__(self, own: _Connections, open_connections: _OpenConnections) -> None:
        self.own = own
        self._open = open_connections
        open_connections.add(own)

    def __del__(self) -> None:
        self._open.end(self.own)


class ThreadClients:
    """The connections of the threads that use them.

    A thread's connections are closed by that thread as it ends, by `close` while their thread is in
    no call, and else by their thread when it leaves the call. ZeroMQ's sockets may be closed by
    another thread after a full memory barrier, which the lock of each thread's is.
    """

    def __init__(self) -> None:
        self._local = threading.local()
        self._open = _OpenConnections()
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
        own = self._own(connect)
        with own.lock:
            own.calls += 1
            try:
                return ask(own.clients)
            finally:
                own.calls -= 1
                if self._is_closed and not own.calls:
                    own.close()

    def close(self, timeout: float) -> None:
        """Close those of all threads, within so many seconds; who is in a call closes its own."""
        self._is_closed = True
        self._open.close_all(time.monotonic() + timeout)

    def forget(self) -> None:
        """In a forked child: none of them is the child's."""
        self._open = _OpenConnections()

    def _own(self, connect: Callable[[], Clients]) -> _Connections:
        held: _Held | None = getattr(self._local, "held", None)
        if held is not None:
            return held.own
        clients = connect()
        try:
            for client in clients:
                client.connect()
        except BaseException:
            for client in clients:
                client.close()
            raise
        held = self._local.held = _Held(_Connections(clients), self._open)
        return held.own
