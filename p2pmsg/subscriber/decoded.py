"""Frames made into messages, and messages that wait in the place of a frame."""

from p2pmsg import wire
from p2pmsg.message import Message, MessageBatch
from p2pmsg.subscriber.sessions import Stream
from p2pmsg.wire import Frame
from recovery import Delivery

_MESSAGE_BYTES = 64


class DecodedFrame(Frame):
    """Messages that wait to be taken, already decoded.

    Attributes:
        batch: the messages.
        size: how many bytes they count as held.
        settled_ns: until then newer messages are not folded into it.

    """

    __slots__ = ("batch", "settled_ns", "size")

    def __init__(
        self, stream: Stream, batch: MessageBatch, size: int, settled_ns: int = 0
    ) -> None:
        self.topic, self.session = stream.topic, stream.peer.session
        self.kind, self.flags = wire.Kind.DATA, 0
        self.sequence, self.base_timestamp_ns = batch.sequence, batch.base_timestamp_ns
        self.count = len(batch)
        self.data, self.body_at = b"", 0
        self.batch, self.size, self.settled_ns = batch, size, settled_ns


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
    if isinstance(frame, DecodedFrame):
        return frame.batch
    values, timestamps, keys, headers = wire.decode_columns(frame)
    batch = MessageBatch(
        stream.topic, frame.session, stream.peer.name, frame.sequence, frame.base_timestamp_ns,
        values, timestamps, keys, headers,
    )  # fmt: skip
    batch.late = delivery.late
    if delivery.count == frame.count:
        return batch
    return batch.part(delivery.skip, delivery.skip + delivery.count)


def decode_single(stream: Stream, frame: Frame) -> Message:
    """Return the message of a frame of one; `FrameError` where it is malformed."""
    values, timestamps, keys, headers = wire.decode_columns(frame)
    return Message(
        stream.topic,
        values[0],
        frame.base_timestamp_ns if timestamps is None else timestamps[0],
        frame.sequence,
        stream.peer.origin,
        None if keys is None else keys[0],
        None if headers is None else headers[0],
    )


def batch_of(message: Message) -> MessageBatch:
    """Return a batch of one message."""
    return MessageBatch(
        message.topic,
        message.session,
        message.publisher,
        message.sequence,
        message.timestamp_ns,
        [message.value],
        None,
        None if message.key is None else [message.key],
        None if message.headers is None else [message.headers],
    )
