"""What a transport does: frames in, frames out.

Two channels connect a publisher with its subscribers. On the *data* channel frames fan out, chosen
by a prefix. On the *recovery* channel a subscriber asks its publisher for something (a NACK, a
replay) and gets frames that are for it alone. A frame is bytes; nothing here looks inside, except
for the prefix.

No method blocks unless its name or a parameter says so. No class here is thread-safe: one thread at
a time uses an object. `close()` may be called again, and by another thread than the owner's once
that one has stopped. Any other method of an object that is closed raises `ClosedError`.
"""

from typing import Protocol


class DataSender(Protocol):
    """The publisher's end of the data channel."""

    @property
    def endpoint(self) -> str:
        """Where it is bound, with the port that the system picked."""

    def send(self, frame: bytes | memoryview, *, wait_ms: int = 0) -> bool:
        """Send to all receivers whose prefix matches, or to none.

        Args:
            frame: what to send.
            wait_ms: how long to wait for space at most. Default 0: not at all.

        Returns:
            Whether it was sent. False: the queue of one receiver at least is full.

        """

    def send_shedding(self, frame: bytes | memoryview) -> None:
        """Send to all receivers whose prefix matches and whose queue has space; the others miss it.

        A receiver that missed a frame may miss the following ones too, even those that `send` took,
        until it has caught up.
        """

    def receive_subscriptions(self) -> list[bytes]:
        r"""Return what came in about subscriptions since the last call, oldest first.

        Each is `b"\x01" + prefix` for a prefix that its first receiver took up, and
        `b"\x00" + prefix` for one that its last receiver gave up. It must be called now and then,
        since the queue is bounded.
        """

    def close(self, linger_ms: int = 0) -> None:
        """Close; frames that are still queued get `linger_ms` to leave. Default 0: none."""
