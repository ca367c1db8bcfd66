"""The short ways of a frame through the subscriber's core: past `ready`, to whoever waits for it.

They are for the next frame of the stream that the last one was of, when it comes in over the only
line and nothing is ready. None: give the frame to `SubscriberCore.receive_frame`, which is the long
way, and judges what is wrong with it.
"""

from struct import error as StructError
from typing import Any, Final

from p2pmsg import wire
from p2pmsg.message import Message, MessageBatch
from p2pmsg.subscriber_core import SubscriberCore
from p2pmsg.subscriber_peer import Stream
from p2pmsg.wire import LONE_BYTES, NO_COLUMNS, decode_plain

_REST_BYTES: Final = wire.REST.size


def take_lone(core: SubscriberCore, stream: Stream, data: bytes, now_ns: int) -> Message | None:
    """Return the message of a frame that has one, without key and headers.

    `p2pmsg.sync.short` says why it is so long.
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
    message = Message(
        stream.topic, value, None, timestamp_ns, None, sequence, peer.session, peer.name
    )
    given = stream.given_messages + 1
    core.lone, stream.given, stream.given_messages = stream, sequence + 1, given
    return message


def take_whole(
    core: SubscriberCore, stream: Stream, data: bytes, now_ns: int, count_max: int
) -> MessageBatch | None:
    """Return the messages of a frame that has at most `count_max`."""
    if not data.startswith(stream.prefix):
        return None
    peer, line = stream.peer, core.lines[0]
    frame = wire.next_frame(data, stream.prefix, stream.topic, peer.session)
    if frame is None or frame.count > count_max:
        return None
    try:
        values, timestamps, keys, headers = wire.decode_columns(frame)
    except wire.FrameError:
        return None
    sequence, count = frame.sequence, frame.count
    if not stream.receiver.accept(sequence, count):
        return None
    core.frames_received += 1
    line.received += 1
    line.heard_ns = peer.heard_ns = now_ns
    batch = MessageBatch(
        stream.topic, peer.session, peer.name, sequence, frame.base_timestamp_ns,
        values, timestamps, keys, headers,
    )  # fmt: skip
    given = stream.given_messages + count
    stream.given, stream.given_messages = sequence + count, given
    return batch
