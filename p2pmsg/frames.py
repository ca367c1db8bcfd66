"""Frames made into batches: off the recovery channel, or out of a log."""

from functools import lru_cache
from typing import Any, Final

from p2pmsg import wire
from p2pmsg.errors import MessageError
from p2pmsg.message import FixedBatch, MessageBatch
from p2pmsg.wire import Frame, FrameError, Kind

__all__ = ["decode_frame"]

typed_decode: Final = lru_cache(maxsize=64)(wire.typed_decode)


def decode_frame(
    data: bytes, *, publisher: str = "", value_type: Any = None, fixed: bool = False
) -> MessageBatch:
    """Return the messages of a DATA frame, as a log keeps them.

    Args:
        data: the whole frame.
        publisher: who published it; a frame does not say. Default: empty.
        value_type: as for `RangeReader.fetch`.
        fixed: as for `RangeReader.fetch`.

    Raises:
        MessageError: it is no DATA frame, or a malformed one.

    """
    decode = None if value_type is None else typed_decode(value_type)
    try:
        frame = Frame(data)
        if frame.kind != Kind.DATA:
            raise FrameError("kind")
        return batch_of(frame, publisher, decode, fixed=fixed)
    except FrameError as error:
        raise MessageError("frame", f"is malformed: {error}") from error


def batch_of(
    frame: Frame, publisher: str, decode: wire.Decode | None, *, fixed: bool
) -> MessageBatch:
    """Return the messages of a parsed DATA frame; `FrameError` where its body is malformed."""
    head = (frame.topic, frame.session, publisher, frame.sequence, frame.base_timestamp_ns)
    block = wire.find_block(frame) if fixed else None
    if block is not None:
        at, stride, lead = block
        stop = at + frame.count * stride
        _, timestamps, keys, headers = wire.decode_others(frame, stop)
        values = memoryview(frame.data)[at:stop]
        return FixedBatch(*head, values, stride, lead, timestamps, keys, headers)
    if decode is not None:
        try:
            return MessageBatch(*head, *wire.decode_columns(frame, decode))
        except FrameError:
            pass  # a value of another type: then all of them as they are
    return MessageBatch(*head, *wire.decode_columns(frame))
