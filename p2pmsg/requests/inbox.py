"""Requests that were received and not looked at yet, each with the time of its receipt."""

from collections import deque
from typing import Final, Protocol

_COUNT_MAX: Final = 10_000
_BYTES_MAX: Final = 16 * 2**20
_EVERY_NS: Final = 10_000_000
"""How often what has come is received, while other requests are worked on: how exact its time of
receipt is, where handlers do not take longer."""
Arrival = tuple[bytes, bytes, str, int]
"""Where a request came from, its frame, its user ("" without keys), and when it was received."""


class Receives(Protocol):
    """A socket: `transports.ZmqQueueServer`."""

    user: str

    def receive(self) -> tuple[bytes, bytes] | None:
        """Return the next request, or None; it never waits."""


class Inbox:
    """Takes requests from the socket while others are worked on, to know since when they wait.

    It holds 10,000 requests and 16 MiB at most; what is beyond that stays in the socket.

    Args:
        server: the socket.
        burst: how many it receives at once. Default: all that it may hold.

    """

    def __init__(self, server: Receives, *, burst: int = _COUNT_MAX) -> None:
        self._server = server
        self._burst = burst
        self._arrivals: deque[Arrival] = deque()
        self._bytes = 0
        self._due_ns = 0

    def __len__(self) -> int:
        return len(self._arrivals)

    def take(self) -> Arrival | None:
        """Return the oldest request, or None."""
        if not self._arrivals:
            return None
        arrival = self._arrivals.popleft()
        self._bytes -= len(arrival[1])
        return arrival

    def fill(self, now_ns: int) -> None:
        """Receive what has come, unless that was done within the last 10 ms."""
        if now_ns < self._due_ns:
            return
        for _ in range(self._burst):
            if len(self._arrivals) >= _COUNT_MAX or self._bytes >= _BYTES_MAX:
                return
            found = self._server.receive()
            if found is None:
                self._due_ns = now_ns + _EVERY_NS
                return
            where, data = found
            self._arrivals.append((where, data, self._server.user, now_ns))
            self._bytes += len(data)
