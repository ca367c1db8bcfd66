"""Messages to frames: what a publisher packs, as functions of plain data.

========================  =====================================================================
`pack_columns`            what an open batch has besides values
`lone_frame`              a message to a frame of its own, where `native.pack_lone` makes none
`fill_slice`              many values to one frame, packed in one go
========================  =====================================================================

No state, no clock.
"""

from typing import Any, Final

from p2pmsg import codec
from p2pmsg.errors import MessageError, MessageTooLargeError, P2PError
from p2pmsg.wire import ARRAY4, NO_COLUMNS, REST, encoder
from recovery import PartedFrame

_NIL: Final = b"\xc0"
_LARGE_BYTES: Final = 4 * 1024
_VALUES_HEADER_BYTES: Final = 6
_LEAD_BIN32: Final = b"\x94\x91\xc6"
_TIMESTAMP_MAX: Final = 2**62
_TIMESTAMP_MIN: Final = -(2**62)
"""Up to the year 2116; the difference of two such times fits in 64 bits."""
encode_into: Final = encoder.encode_into
_TEXT: Final = frozenset((str,))
_PLAIN: Final = frozenset((type(None), bool, int, float, str, bytes))
_COLUMNS_BYTES: Final = 64
"""What a message's columns take at most, without a key and headers."""
_KEY_BYTES: Final = 4
"""What is allowed for a character of a key."""
PACKING_ERRORS: Final = (TypeError, ValueError, OverflowError, RecursionError, BufferError)


def packing_error(field: str, value: Any, error: Exception) -> MessageError:
    """Return what to raise where msgpack cannot express `value`; it names the path to the part."""
    path = codec.path_of_refused(value, field)
    kind = f"of type {type(value).__name__} " if path == field else ""
    return MessageError(path, f"{kind}cannot be packed as msgpack: {error}")


def pack_exactly(value: Any) -> bytes:
    """Return a value packed, each part as the type it has; `MessageError` names one that cannot."""
    try:
        return codec.exact_encoder.encode(value)
    except MessageError:
        raise
    except PACKING_ERRORS as error:
        raise packing_error("value", value, error) from error


def is_of_packing(error: BaseException) -> bool:
    """Whether packing a value failed: the type of a part is not known, or an int is too large."""
    if isinstance(error, MessageError):
        return error.field.startswith("value") and isinstance(error.__cause__, PACKING_ERRORS)
    return isinstance(error, PACKING_ERRORS) and not isinstance(error, P2PError)


def check_timestamp(timestamp_ns: Any) -> int:
    """Return `timestamp_ns`, or raise `MessageError`."""
    if type(timestamp_ns) is not int or not _TIMESTAMP_MIN < timestamp_ns < _TIMESTAMP_MAX:
        reason = f"must be an int of ns since the epoch within 62 bits, not {timestamp_ns!r}"
        raise MessageError("timestamp_ns", reason)
    return timestamp_ns


def check_key(key: Any) -> str | None:
    """Return `key`, or raise `MessageError`."""
    if key is None:
        return None
    if type(key) is not str:
        raise MessageError("key", f"must be a str or None, not {key!r}")
    if not key.isascii():
        try:
            key.encode()
        except UnicodeEncodeError as error:
            raise MessageError("key", f"must be UTF-8: {error.reason}") from None
    return key


def pack_headers(headers: Any) -> codec.Raw | None:
    """Return the headers packed, so that a later change of the dict changes nothing."""
    if headers is None:
        return None
    if not isinstance(headers, dict) or not _TEXT.issuperset(map(type, headers)):
        raise MessageError("headers", f"must be a dict with str keys or None, not {headers!r}")
    if not _PLAIN.issuperset(map(type, headers.values())):
        headers = codec.prepare(headers, None, "headers")
    try:
        return codec.Raw(encoder.encode(headers))
    except PACKING_ERRORS as error:
        raise packing_error("headers", headers, error) from error


def check_message(
    value: Any,
    *,
    key: str | None = None,
    timestamp_ns: int | None = None,
    headers: dict[str, Any] | None = None,
) -> int:
    """Return how many bytes a message takes at most; `MessageError` where `publish` would raise it.

    Args:
        value: any msgpack value.
        key: its key; None: none.
        timestamp_ns: when it happened; None: when it is published.
        headers: its headers; None: none.

    """
    size = _COLUMNS_BYTES + len(_packed(value))
    if timestamp_ns is not None:
        check_timestamp(timestamp_ns)
    if (text := check_key(key)) is not None:
        size += _KEY_BYTES * len(text)
    if (packed := pack_headers(headers)) is not None:
        size += memoryview(packed).nbytes
    return size


def _packed(value: Any) -> bytes:
    packed = codec.packed_if_plain(value)
    if packed is not None:
        return packed
    try:
        return codec.encode(codec.prepare(value, None))
    except MessageError:
        raise
    except PACKING_ERRORS as error:
        raise packing_error("value", value, error) from error


def pack_columns(
    count: int,
    timestamps_ns: list[int] | None,
    keys: list[str | None] | None,
    headers: list[codec.Raw | None] | None,
) -> tuple[bytes, int]:
    """Return how the body of `count` messages ends, and their latest timestamp.

    A column has an entry for each message up to the last one that has it; None: none has.
    Timestamps, the latest too, are less the frame's base.
    """
    if timestamps_ns is None and keys is None and headers is None:
        return NO_COLUMNS, 0
    packed, latest = [], 0
    for column, padding in ((timestamps_ns, 0), (keys, None), (headers, None)):
        if column is None:
            packed.append(_NIL)
            continue
        filled: list[Any] = padded(column, count, padding)
        packed.append(encoder.encode(filled))
        if column is timestamps_ns:
            latest = max(filled)
    return b"".join(packed), latest


def padded(column: list[Any] | None, count: int, padding: Any) -> list[Any]:
    """Return the column with an entry for each of `count` messages, where it was left out."""
    if column is None:
        return [padding] * count
    column.extend([padding] * (count - len(column)))
    return column


def start_frame(buffer: bytearray, prefix: bytes) -> int:
    """Begin a frame of values in `buffer`; return where the first of them goes.

    It keeps the memory that `buffer` has, which `del buffer[at:]` would give back: growing to a
    frame's size again would copy it several times.
    """
    at = len(prefix) + REST.size + _VALUES_HEADER_BYTES
    if len(buffer) < at:
        buffer += bytes(at)
    encode_into(0, buffer, at - 1)
    buffer[: len(prefix)] = prefix
    return at


def fill_slice(
    prefix: bytes,
    sequence: int,
    timestamp_ns: int,
    values: list[Any] | codec.Raw,
    keys: list[str | None] | None,
    timestamps_ns: list[int] | None,
    buffer: bytearray,
    count: int,
) -> int:
    """Make `buffer` a frame of `count` values, packed in one go; return its latest timestamp.

    `values` may be packed already. The buffer stays in the processor's cache if it is used again
    and again.
    """
    body_at = len(prefix) + REST.size
    start_frame(buffer, prefix)
    buffer[body_at] = ARRAY4
    base, latest = fill_body(buffer, body_at, values, keys, timestamps_ns, timestamp_ns)
    length = len(buffer) - body_at
    REST.pack_into(buffer, len(prefix), sequence, count, length, base)
    return latest


def fill_body(
    buffer: bytearray,
    body_at: int,
    values: Any,
    keys: list[str | None] | None,
    timestamps_ns: list[int] | None,
    timestamp_ns: int,
) -> tuple[int, int]:
    """Write values and columns to a frame that has begun; return its base and latest timestamps."""
    base = latest = timestamp_ns
    field, column = "values", values
    try:
        encode_into(values, buffer, body_at + 1)
        if keys is None and timestamps_ns is None:
            buffer += NO_COLUMNS
            return base, latest
        if timestamps_ns is not None:
            base, latest = timestamps_ns[0], max(timestamps_ns)
        field, column = "timestamps_ns", timestamps_ns and [one - base for one in timestamps_ns]
        encode_into(column, buffer, -1)
        field, column = "keys", keys
        encode_into(keys, buffer, -1)
        buffer += _NIL
    except PACKING_ERRORS as error:
        raise packing_error(field, column, error) from error
    return base, latest


def pack_slice(
    prefix: bytes,
    sequence: int,
    timestamp_ns: int,
    values: list[Any],
    keys: list[str | None] | None,
    timestamps_ns: list[int] | None,
    buffer: bytearray,
) -> tuple[bytes, int]:
    """Return a frame of `values` packed in `buffer`, and its latest timestamp."""
    count = len(values)
    latest = fill_slice(prefix, sequence, timestamp_ns, values, keys, timestamps_ns, buffer, count)
    return bytes(buffer), latest


def lone_frame(
    prefix: bytes,
    sequence: int,
    timestamp_ns: int,
    value: Any,
    key: str | None,
    headers: dict[str, Any] | None,
    bytes_max: int,
) -> tuple[bytes, bytes | PartedFrame]:
    """Return a frame of one message, made without a batch: the way of a stream that is idle.

    `prefix` is the stream's `stream_prefix`. The second is how to keep it, without a copy.
    """
    if type(value) is bytes and len(value) >= _LARGE_BYTES:
        # Its header is made by hand: so it is copied once and not twice.
        lead = _LEAD_BIN32 + len(value).to_bytes(4, "big")
        packed = value
    else:
        lead = b"\x94\x91"
        try:
            packed = encoder.encode(value)
        except PACKING_ERRORS as error:
            raise packing_error("value", value, error) from error
    columns = NO_COLUMNS
    if key is not None or headers is not None:
        packed_headers = pack_headers(headers)
        columns = b"".join(
            (
                _NIL,
                _NIL if check_key(key) is None else encoder.encode([key]),
                _NIL if packed_headers is None else encoder.encode([packed_headers]),
            )
        )
    size = len(packed) + len(columns)
    if size > bytes_max:
        check_size("message", size, bytes_max)
    rest = REST.pack(sequence, 1, len(lead) + size, timestamp_ns)
    parts = (prefix, rest, lead, packed, columns)
    frame = b"".join(parts)
    return frame, frame if size < _LARGE_BYTES else PartedFrame(parts, len(frame))


def check_size(field: str, size: int, limit: int) -> None:
    """Raise `MessageTooLargeError` where `size` is above `limit`."""
    if size > limit:
        raise MessageTooLargeError(field, size, limit)
