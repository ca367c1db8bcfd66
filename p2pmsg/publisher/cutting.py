"""Parts of frames, for those who take no frame as large as the whole."""

from typing import Any, Final

from p2pmsg import codec
from p2pmsg.codec.spans import spans_of_array
from p2pmsg.wire import REST, Frame, FrameError, encoder, values_header

_Columns = tuple[codec.Raw, list[int] | None, list[str | None] | None, codec.Raw]
_Parts = tuple[list[bytes], list[int] | None, list[str | None] | None, list[bytes] | None]
_decode: Final = codec.make_decoder(_Columns).decode
_NIL: Final = b"\xc0"
_COLUMNS_BYTES: Final = 6 + 3 * 5
"""What the headers of four columns take at most."""
_OFFSET_BYTES: Final = 9


def cut(frame: Frame, start: int, bytes_max: int) -> tuple[bytes, int] | None:
    """Return a frame of the messages from `start` on that fit together, and where it ends.

    None where the first of them does not fit.

    Args:
        frame: it has the message with sequence `start`.
        start: a sequence.
        bytes_max: how large the part may be.

    Raises:
        FrameError: the body is malformed.

    """
    columns = values, offsets, keys, headers = _columns_of(frame)
    begin = at = start - frame.sequence
    size = frame.body_at + _COLUMNS_BYTES
    while at < frame.count:
        size += len(values[at]) + (0 if offsets is None else _OFFSET_BYTES)
        size += 0 if keys is None else len(encoder.encode(keys[at]))
        size += 0 if headers is None else len(headers[at])
        if size > bytes_max:
            break
        at += 1
    return None if at == begin else (_join(frame, columns, begin, at), frame.sequence + at)


def part_of(frame: Frame, skip: int, count: int) -> Frame:
    """Return a frame of `count` messages after the first `skip`; `FrameError`: it is malformed."""
    return Frame(_join(frame, _columns_of(frame), skip, skip + count))


def _columns_of(frame: Frame) -> _Parts:
    try:
        raw, offsets, keys, raw_headers = _decode(memoryview(frame.data)[frame.body_at :])
        values, packed = spans_of_array(bytes(raw)), bytes(raw_headers)
        headers = None if packed == _NIL else spans_of_array(packed)
    except (codec.CodecError, ValueError, RecursionError, OverflowError):
        raise FrameError("body") from None
    columns: list[list[Any] | None] = [values, offsets, keys, headers]
    if any(column is not None and len(column) != frame.count for column in columns):
        raise FrameError("columns")
    return values, offsets, keys, headers


def _join(frame: Frame, columns: _Parts, begin: int, stop: int) -> bytes:
    """Return a frame of some messages of `frame`, packed as they were."""
    values, offsets, keys, headers = columns
    body = [values_header(stop - begin), *values[begin:stop]]
    body += [_NIL if one is None else encoder.encode(one[begin:stop]) for one in (offsets, keys)]
    each = headers and [codec.Raw(one) for one in headers[begin:stop]]
    body.append(_NIL if each is None else encoder.encode(each))
    prefix, sequence = frame.data[: frame.body_at - REST.size], frame.sequence + begin
    length = sum(map(len, body))
    rest = REST.pack(sequence, stop - begin, length, frame.base_timestamp_ns)
    return b"".join((prefix, rest, *body))
