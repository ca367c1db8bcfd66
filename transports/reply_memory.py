"""How much of what a ROUTER sends is still in its queues.

A queue is bounded in frames, and a frame may have a MiB. A requester that asks and never reads kept
64 of them, and a hundred such requesters 3 GB. ZeroMQ does not say what is in a queue; it does say
when it has let go of memory that is Python's.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

import zmq

TRACKED_BYTES: Final = 8 * 1024
"""From this size on a reply is counted: 64 smaller ones are no more than half a MiB."""
REQUESTER_BYTES_MAX: Final = 8 * 2**20
"""What may be in the queue of one requester; a larger frame goes into an empty queue."""
BYTES_MAX: Final = 256 * 2**20
"""What may be in all queues; beyond it a requester that has something there waits."""


class ReplyMemory:
    """Sends replies, and counts those that have not left; for one thread.

    Attributes:
        bytes_held: what was in the queues when they were last checked.

    """

    def __init__(self) -> None:
        self._sent: dict[bytes, deque[tuple[zmq.MessageTracker, int]]] = {}
        self._held: dict[bytes, int] = {}
        self.bytes_held = 0

    def has_space(self, requester: bytes, size: int) -> bool:
        """Whether a reply of so many bytes may go into the requester's queue."""
        self._release(requester)
        if self.bytes_held + size > BYTES_MAX:
            for other in list(self._sent):
                self._release(other)
        held = self._held.get(requester, 0)
        fits = held + size <= REQUESTER_BYTES_MAX and self.bytes_held + size <= BYTES_MAX
        return not held or fits

    def send(self, send: Callable[..., object], requester: bytes, frame: bytes, flags: int) -> None:
        """Call `send`, and count the frame until ZeroMQ has let go of it."""
        message = zmq.Frame(frame, track=True, copy=False)
        send(message, flags, False)
        tracker = message.tracker
        assert tracker is not None
        size = len(frame)
        self._sent.setdefault(requester, deque()).append((tracker, size))
        self._held[requester] = self._held.get(requester, 0) + size
        self.bytes_held += size

    def _release(self, requester: bytes) -> None:
        sent = self._sent.get(requester)
        if sent is None:
            return
        while sent and sent[0][0].done:
            size = sent.popleft()[1]
            self._held[requester] -= size
            self.bytes_held -= size
        if not sent:
            del self._sent[requester], self._held[requester]
