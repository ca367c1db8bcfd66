"""The short ways of a frame through the subscriber's core: past `ready`, to whoever waits for it.

They are for the next frame of a stream, when it comes in over the only line and nothing is ready.
None: give the frame to `SubscriberCore.receive_frame`, which is the long way, and judges what is
wrong with it.
"""

from struct import error as StructError
from typing import Any, Final

from p2pmsg import wire
from p2pmsg.message import Message, MessageBatch
from p2pmsg.subscriber.core import SubscriberCore
from p2pmsg.subscriber.sessions import Stream
from p2pmsg.wire import LONE_BYTES, NO_COLUMNS, decode_body, decode_plain

_REST_BYTES: Final = wire.REST.size


def stream_of(core: SubscriberCore, stream: Stream, data: bytes) -> Stream:
    """Return the stream that a frame is of, if it is known; else `stream`, the last frame's."""
    if data.startswith(stream.prefix):
        return stream
    zero = data.find(b"\0", 0, wire.TOPIC_BYTES_MAX + 1)
    if zero < 1:
        return stream
    peer = core.peers.get(int.from_bytes(data[zero + 7 : zero + 15], "big"))
    if peer is None:
        return stream
    return peer.streams.get(data[:zero].decode("utf-8", "replace"), stream)


def take_lone(
    core: SubscriberCore, stream: Stream, data: bytes, now_ns: int, count_max: int = 1
) -> Message | None:
    """Return the message of a frame that has one, without key and headers.

    `p2pmsg.sync.receiving` says why it is so long, and calls it with a `count_max` as the other.
    """
    try:
        prefix, sequence, count, length, timestamp_ns, lead = stream.lone.unpack_from(data)
    except StructError:
        return None
    if prefix != stream.prefix or count != 1:
        return None
    value: Any = data[stream.lone.size : -3]
    size = len(value)
    if lead != LONE_BYTES + size or length != size + 7 or size > 255 or data[-3:] != NO_COLUMNS:
        body_at = len(prefix) + _REST_BYTES
        value = wire.NOT_PLAIN if length != len(data) - body_at else decode_plain(data, body_at)
        if value is wire.NOT_PLAIN:
            return None
    if sequence >= wire.SEQUENCE_MAX or not stream.receiver.accept(sequence, 1):
        return None
    peer, line = stream.peer, core.lines[0]
    core.frames_received += 1
    line.received += 1
    line.heard_ns = peer.heard_ns = now_ns
    message = Message(stream.topic, value, timestamp_ns, sequence, peer.origin)
    given = stream.given_messages + 1
    core.lone, stream.given, stream.given_messages = stream, sequence + 1, given
    return message


def take_whole(
    core: SubscriberCore, stream: Stream, data: bytes, now_ns: int, count_max: int
) -> MessageBatch | None:
    """Return the messages of a frame that has at most `count_max`."""
    try:
        prefix, sequence, count, length, timestamp_ns, _ = stream.lone.unpack_from(data)
    except StructError:
        return None
    body_at = len(prefix) + _REST_BYTES
    if prefix != stream.prefix or length != len(data) - body_at or not 0 < count <= count_max:
        return None
    try:
        values, timestamps, keys, headers = decode_body(data, body_at, count, timestamp_ns)
    except wire.FrameError:
        return None
    stop = sequence + count
    if stop > wire.SEQUENCE_MAX or not stream.receiver.accept(sequence, count):
        return None
    peer, line = stream.peer, core.lines[0]
    core.frames_received += 1
    line.received += 1
    line.heard_ns = peer.heard_ns = now_ns
    batch = MessageBatch(
        stream.topic, peer.session, peer.name, sequence, timestamp_ns,
        values, timestamps, keys, headers,
    )  # fmt: skip
    given = stream.given_messages + count
    stream.given, stream.given_messages = stop, given
    return batch
