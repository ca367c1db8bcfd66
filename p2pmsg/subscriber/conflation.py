"""Frames made into messages, messages that wait in the place of a frame, and conflation.

Conflation: of many values of a key that wait for a slow reader, it gets the newest one.
"""

from collections.abc import Iterator
from typing import Any, Final

from p2pmsg import wire
from p2pmsg.message import Message, MessageBatch
from p2pmsg.subscriber.sessions import Stream
from p2pmsg.subscriber.typed import Misfit, SiftedBatch, sifted
from p2pmsg.wire import Frame
from recovery import Delivery

_MESSAGE_BYTES: Final = 64
_FLOOR_NS: Final = 1_000_000
_NS_PER_MESSAGE: Final = 5000


class DecodedFrame(Frame):
    """Messages that wait to be taken, already decoded.

    Attributes:
        batch: the messages.
        size: how many bytes they count as held.
        settled_ns: until then newer messages are not folded into it.

    """

    __slots__ = ("batch", "settled_ns", "size")

    def __init__(self, stream: Stream, batch: MessageBatch, size: int, settled_ns: int = 0) -> None:
        self.topic, self.session = stream.topic, stream.peer.session
        self.kind, self.flags = wire.Kind.DATA, 0
        self.sequence, self.base_timestamp_ns = batch.sequence, batch.base_timestamp_ns
        self.count = len(batch)
        self.data, self.body_at = b"", 0
        self.batch, self.size, self.settled_ns = batch, size, settled_ns


class SiftedFrame(DecodedFrame):
    """Messages some of whose values are a `Misfit`; those up to a place were taken already.

    Attributes:
        bad: the indexes of these in `batch`, ascending.
        at: the index of the message that comes next.
        bad_at: the index in `bad` of the next one that does not fit.

    """

    __slots__ = ("at", "bad", "bad_at")

    def __init__(
        self,
        stream: Stream,
        batch: MessageBatch,
        bad: list[int],
        size: int,
        settled_ns: int = 0,
        *,
        at: int = 0,
        bad_at: int = 0,
    ) -> None:
        super().__init__(stream, batch, size, settled_ns)
        self.bad, self.at, self.bad_at = bad, at, bad_at
        self.count = len(batch) - at
        self.sequence = self.sequence_at(at)

    def sequence_at(self, at: int) -> int:
        """Return the sequence of the message at an index."""
        batch = self.batch
        return batch.sequences[at] if isinstance(batch, ConflatedBatch) else batch.sequence + at


def bytes_of(frame: Frame) -> int:
    """Return how many bytes a frame counts as held."""
    return frame.size if isinstance(frame, DecodedFrame) else len(frame.data)


def estimated_bytes(batch: MessageBatch) -> int:
    """Return about how many bytes decoded messages take."""
    sizes = (len(v) if isinstance(v, bytes | str) else _MESSAGE_BYTES for v in batch.values)
    return _MESSAGE_BYTES * len(batch) + sum(sizes)


def decode(stream: Stream, delivery: Delivery[Frame]) -> MessageBatch:
    """Return the messages of a delivery; `FrameError` where it is malformed."""
    frame = delivery.item
    if isinstance(frame, SiftedFrame):
        return frame.batch.part(frame.at, len(frame.batch))
    if isinstance(frame, DecodedFrame):
        return frame.batch
    bad: list[int] = []
    if stream.typed is None:
        columns = wire.decode_columns(frame)
    else:
        columns, bad = stream.typed.sift(frame)
    batch = MessageBatch(
        stream.topic, frame.session, stream.peer.name, frame.sequence, frame.base_timestamp_ns,
        *columns,
    )  # fmt: skip
    batch.late = delivery.late
    if bad:
        batch = sifted(batch, bad)
    if delivery.count == frame.count:
        return batch
    return batch.part(delivery.skip, delivery.skip + delivery.count)


def decode_single(stream: Stream, frame: Frame) -> Message:
    """Return the message of a frame of one; `FrameError` where it is malformed."""
    values, timestamps, keys, headers = wire.decode_columns(frame)
    timestamp_ns = frame.base_timestamp_ns if timestamps is None else timestamps[0]
    key = None if keys is None else keys[0]
    header = None if headers is None else headers[0]
    origin = stream.peer.origin
    return Message(stream.topic, values[0], timestamp_ns, frame.sequence, origin, key, header)


def batch_of(message: Message) -> MessageBatch:
    """Return a batch of one message."""
    return MessageBatch(
        message.topic, message.session, message.publisher, message.sequence, message.timestamp_ns,
        [message.value],
        None,
        None if message.key is None else [message.key],
        None if message.headers is None else [message.headers],
    )  # fmt: skip


def refold_ns(count: int) -> int:
    """Return how long a batch of `count` messages is not folded again.

    It is about five times what folding takes, so that a fast reader spends little on it, and a
    slow one is a few ms late.
    """
    return max(_FLOOR_NS, _NS_PER_MESSAGE * count)


class ConflatedBatch(MessageBatch):
    """The newest message of each key, in the order of their sequences, which have holes."""

    __slots__ = ("messages", "sequences")

    def __init__(self, messages: list[Message]) -> None:
        first = messages[0]
        super().__init__(
            first.topic, first.session, first.publisher, first.sequence, first.timestamp_ns,
            [message.value for message in messages],
            [message.timestamp_ns for message in messages],
            [message.key for message in messages],
            [message.headers for message in messages],
        )  # fmt: skip
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
        self._is_sifted = False

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, output: Delivery[Frame], batch: MessageBatch) -> None:
        """Add the messages of the next delivery."""
        self._stop = output.sequence + output.count
        self._count += output.count
        messages = self._messages
        self._is_sifted |= isinstance(batch, SiftedBatch) or isinstance(output.item, SiftedFrame)
        for message in batch:
            messages.pop(message.key, None)
            messages[message.key] = message

    def delivery(self, stream: Stream) -> Delivery[Frame]:
        """Return one delivery that stands for all."""
        batch = ConflatedBatch(list(self._messages.values()))
        size = estimated_bytes(batch)
        frame: Frame = DecodedFrame(stream, batch, size)
        if self._is_sifted:
            bad = [at for at, value in enumerate(batch.values) if type(value) is Misfit]
            frame = SiftedFrame(stream, batch, bad, size) if bad else frame
        return Delivery(frame, self._stop - self._count, 0, self._count)
