"""Conflation: of many values of a key that wait for a slow reader, it gets the newest one."""

from collections.abc import Iterator
from typing import Any, Final

from p2pmsg.message import Message, MessageBatch
from p2pmsg.subscriber.decoded import DecodedFrame, estimated_bytes
from p2pmsg.subscriber.sessions import Stream
from p2pmsg.wire import Frame
from recovery import Delivery

_FLOOR_NS: Final = 1_000_000
_NS_PER_MESSAGE: Final = 5000


def refold_ns(count: int) -> int:
    """Return how long a batch of `count` messages is not folded again.

    It is some five times what folding takes, so that a fast reader spends little on it, and a slow
    one is a few ms late.
    """
    return max(_FLOOR_NS, _NS_PER_MESSAGE * count)


class ConflatedBatch(MessageBatch):
    """The newest message of each key, in the order of their sequences, which have holes.

    Attributes:
        messages: themselves.
        sequences: one a message.

    """

    __slots__ = ("messages", "sequences")

    def __init__(self, messages: list[Message]) -> None:
        first = messages[0]
        super().__init__(
            first.topic,
            first.session,
            first.publisher,
            first.sequence,
            first.timestamp_ns,
            [message.value for message in messages],
            [message.timestamp_ns for message in messages],
            [message.key for message in messages],
            [message.headers for message in messages],
        )
        self.messages = messages
        self.sequences = [message.sequence for message in messages]

    def iterate(self, values: Iterator[Any]) -> Iterator[Message]:
        """Return the messages, driven by an iterator over the values."""
        return map(lambda message, _: message, self.messages, values)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return super().__getitem__(index)
        return self.messages[index]

    def part(self, start: int, stop: int) -> MessageBatch:
        """Return the messages from index `start` up to `stop`."""
        if start == 0 and stop == len(self.values):
            return self
        return ConflatedBatch(self.messages[start:stop])


class Newest:
    """The newest message of each key of deliveries of a stream that follow one another."""

    def __init__(self) -> None:
        self._stop = self._count = 0
        self._messages: dict[str | None, Message] = {}

    def add(self, output: Delivery[Frame], batch: MessageBatch) -> None:
        """Add the messages of the next delivery."""
        self._stop = output.sequence + output.count
        self._count += output.count
        messages = self._messages
        for message in batch:
            messages.pop(message.key, None)
            messages[message.key] = message

    def delivery(self, stream: Stream) -> Delivery[Frame]:
        """Return one delivery in the place of all."""
        batch = ConflatedBatch(list(self._messages.values()))
        frame: Frame = DecodedFrame(stream, batch, estimated_bytes(batch))
        return Delivery(frame, self._stop - self._count, 0, self._count)
