"""Requests that wait for space in ZeroMQ's queues: one queue for each responder."""

from collections import OrderedDict
from collections.abc import Callable


class UnsentRequests:
    """Queues of requests, by responder, so that one that takes none delays no other.

    A request is in a queue once at most, and leaves all of them when it is over. So each queue is
    bounded by the number of requests that wait for an answer.
    """

    def __init__(self) -> None:
        self._queues: dict[int, OrderedDict[int, bytes]] = {}

    def __len__(self) -> int:
        return sum(len(queue) for queue in self._queues.values())

    def __bool__(self) -> bool:
        return bool(self._queues)

    def waiting_for(self, at: int) -> bool:
        """Whether requests wait for this responder."""
        return at in self._queues

    def add(self, at: int, number: int, data: bytes) -> None:
        """Have a request wait, after those before it; asked again, it keeps its place."""
        self._queues.setdefault(at, OrderedDict())[number] = data

    def discard(self, number: int) -> None:
        """Take a request that is over out of all queues."""
        for at, queue in list(self._queues.items()):
            queue.pop(number, None)
            if not queue:
                del self._queues[at]

    def clear(self) -> None:
        """Take all out."""
        self._queues.clear()

    def send(self, send: Callable[[int, bytes], bool]) -> int:
        """Send what can be sent, oldest first; return how many were sent.

        Args:
            send: sends a request to a responder; False where there is no space.

        """
        sent = 0
        for at, queue in list(self._queues.items()):
            while queue:
                number, data = next(iter(queue.items()))
                if not send(at, data):
                    break
                del queue[number]
                sent += 1
            else:
                del self._queues[at]
        return sent
