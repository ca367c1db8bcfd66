"""The open batches of a publisher, and the buffers that they are filled in."""

from typing import Final

from p2pmsg.publisher.batch import Batch

_BUFFERS_MAX: Final = 8


class OpenBatches(dict[str, Batch]):
    """The batch of each stream that gathers one.

    Attributes:
        topic: whose was begun last, None once it is sealed: who publishes to one topic is spared
            looking it up, a tenth of the time.
        batch: that one.

    """

    __slots__ = ("batch", "topic")

    def __init__(self) -> None:
        super().__init__()
        self.topic: str | None = None
        self.batch: Batch | None = None

    def __setitem__(self, topic: str, batch: Batch) -> None:
        super().__setitem__(topic, batch)
        self.batch, self.topic = batch, topic

    def __delitem__(self, topic: str) -> None:
        if topic == self.topic:
            self.topic = self.batch = None
        super().__delitem__(topic)


class BufferPool:
    """A few warm buffers of a frame's size; more streams than there are make new ones.

    Args:
        bytes_max: a buffer that had to grow further is let go.

    """

    __slots__ = ("_buffers", "_bytes_max")

    def __init__(self, bytes_max: int) -> None:
        self._buffers: list[bytearray] = []
        self._bytes_max = bytes_max

    def take(self) -> bytearray:
        """Return a buffer, which may have anything in it."""
        buffers = self._buffers
        return buffers.pop() if buffers else bytearray()

    def give_back(self, buffer: bytearray) -> None:
        """Keep a buffer that nobody uses any more."""
        if len(self._buffers) < _BUFFERS_MAX and len(buffer) <= self._bytes_max:
            self._buffers.append(buffer)
