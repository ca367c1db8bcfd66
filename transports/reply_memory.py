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
"""From this size on a reply is looked after: 64 smaller ones are no more than half a MiB."""
REQUESTER_BYTES_MAX: Final = 8 * 2**20
"""What may be in the queue of one requester; a frame that is larger goes where nothing is."""
BYTES_MAX: Final = 256 * 2**20
"""What may be in all queues; beyond it who has something there waits."""


class ReplyMemory:
    """Sends replies, and counts those that have not left; for one thread.

    Args:
        requester_bytes_max: in the queue of one requester. Default 8 MiB.
        bytes_max: in all queues. Default 256 MiB.

    Attributes:
        bytes_held: what was in the queues when it was last looked.

    """

    def __init__(
        self, *, requester_bytes_max: int = REQUESTER_BYTES_MAX, bytes_max: int = BYTES_MAX
    ) -> None:
        self._requester_bytes_max = requester_bytes_max
        self._bytes_max = bytes_max
        self._sent: dict[bytes, deque[tuple[zmq.MessageTracker, int]]] = {}
        self._held: dict[bytes, int] = {}
        self.bytes_held = 0

    def has_room(self, requester: bytes, size: int) -> bool:
        """Whether a reply of so many bytes may go into the requester's queue."""
        self._look(requester)
        if self.bytes_held + size > self._bytes_max:
            for other in list(self._sent):
                self._look(other)
        held = self._held.get(requester, 0)
        if not held:
            return True
        return (
            held + size <= self._requester_bytes_max and self.bytes_held + size <= self._bytes_max
        )

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

    def _look(self, requester: bytes) -> None:
        sent = self._sent.get(requester)
        if sent is None:
            return
        while sent and sent[0][0].done:
            size = sent.popleft()[1]
            self._held[requester] -= size
            self.bytes_held -= size
        if not sent:
            del self._sent[requester], self._held[requester]
