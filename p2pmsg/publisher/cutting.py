"""Parts of frames, for those who take no frame as large as the whole."""

from typing import Any, Final

from p2pmsg import codec
from p2pmsg.codec.spans import spans_of_array
from p2pmsg.wire import REST, Frame, FrameError, encoder, values_header

_Columns = tuple[codec.Raw, list[int] | None, list[str | None] | None, codec.Raw]
_decode: Final = codec.make_decoder(_Columns).decode
_NIL: Final = b"\xc0"
_COLUMNS_BYTES: Final = 6 + 3 * 5
"""What the headers of four columns take at most."""
_OFFSET_BYTES: Final = 9


def cut(frame: Frame, start: int, bytes_max: int) -> tuple[bytes, int] | None:
    """Return a frame of the messages from `start` on that fit together, and where it ends.

    None where the first of them does not fit. Its messages are packed as they were.

    Args:
        frame: it has the message with sequence `start`.
        start: a sequence.
        bytes_max: how large the part may be.

    Raises:
        FrameError: the body is malformed.

    """
    try:
        raw, offsets, keys, raw_headers = _decode(memoryview(frame.data)[frame.body_at :])
        values = spans_of_array(bytes(raw))
        packed = bytes(raw_headers)
        headers = None if packed == _NIL else spans_of_array(packed)
    except (codec.CodecError, ValueError, RecursionError, OverflowError):
        raise FrameError("body") from None
    columns: list[list[Any] | None] = [values, offsets, keys, headers]
    if any(column is not None and len(column) != frame.count for column in columns):
        raise FrameError("columns")
    begin = at = start - frame.sequence
    size = frame.body_at + _COLUMNS_BYTES
    while at < frame.count:
        size += len(values[at]) + (0 if offsets is None else _OFFSET_BYTES)
        size += 0 if keys is None else len(encoder.encode(keys[at]))
        size += 0 if headers is None else len(headers[at])
        if size > bytes_max:
            break
        at += 1
    if at == begin:
        return None
    body = [values_header(at - begin), *values[begin:at]]
    body += [_NIL if one is None else encoder.encode(one[begin:at]) for one in (offsets, keys)]
    each = headers and [codec.Raw(one) for one in headers[begin:at]]
    body.append(_NIL if each is None else encoder.encode(each))
    length = sum(map(len, body))
    prefix = frame.data[: frame.body_at - REST.size]
    rest = REST.pack(start, at - begin, length, frame.base_timestamp_ns)
    return b"".join((prefix, rest, *body)), frame.sequence + at
