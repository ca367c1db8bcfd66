"""What a subscriber makes of frames and time-outs."""

import time
from math import isnan

from p2pmsg import wire
from p2pmsg.config import check
from p2pmsg.message import Message, MessageBatch
from p2pmsg.subscriber.sessions import Stream
from p2pmsg.wire import Frame
from recovery import Delivery

_FOREVER_S = 1e9


def deadline(timeout: float | None) -> int | None:
    """Return when `timeout` seconds will have passed, or None; `ConfigError` for no number."""
    if timeout is None:
        return None
    if type(timeout) is not float or not 0.0 <= timeout <= _FOREVER_S:
        # What most give is spared this: 1 µs with cold caches.
        ok = isinstance(timeout, int | float) and not isnan(timeout)
        check("timeout", timeout, ok, "a number of seconds, or None")
        timeout = min(timeout, _FOREVER_S)
    return time.monotonic_ns() + int(timeout * 1e9)


def read_single(stream: Stream, frame: Frame) -> Message:
    """Read a frame of one message, the kind that latency is asked of."""
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


def read(stream: Stream, delivery: Delivery[Frame]) -> MessageBatch:
    """Read the messages of a frame that are to be handed on."""
    frame = delivery.item
    values, timestamps, keys, headers = wire.decode_columns(frame)
    batch = MessageBatch(
        stream.topic,
        frame.session,
        stream.peer.name,
        frame.sequence,
        frame.base_timestamp_ns,
        values,
        timestamps,
        keys,
        headers,
    )
    batch.late = delivery.late
    if delivery.count == frame.count:
        return batch
    return batch.part(delivery.skip, delivery.skip + delivery.count)


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
