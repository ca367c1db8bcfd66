"""The short ways of a frame through the subscriber's core: past `ready`, to whoever waits for it.

They are for the next frame of the stream that the last one was of, when it comes in over the only
line and nothing is ready. None: give the frame to `SubscriberCore.receive_frame`, which is the long
way, and judges what is wrong with it.
"""

from typing import Final

from p2pmsg import wire
from p2pmsg.message import Message, MessageBatch
from p2pmsg.subscriber_core import SubscriberCore
from p2pmsg.subscriber_peer import Stream

_unpack_rest: Final = wire.REST.unpack_from
_REST_BYTES: Final = wire.REST.size


def take_lone(core: SubscriberCore, stream: Stream, data: bytes, now_ns: int) -> Message | None:
    """Return the message of a frame that has one, without key and headers.

    `p2pmsg.sync.short` says why it is so long.
    """
    at = len(stream.prefix)
    body_at = at + _REST_BYTES
    if not data.startswith(stream.prefix) or len(data) < body_at:
        return None
    sequence, count, length, timestamp_ns = _unpack_rest(data, at)
    if count != 1 or length != len(data) - body_at:
        return None
    value = wire.decode_plain(data, body_at)
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
