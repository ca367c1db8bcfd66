"""The open batch: messages of one stream on their way into one frame."""

from typing import Any, Final

import msgspec

from p2pmsg.errors import MessageError, MessageTooLargeError
from p2pmsg.wire import HEADER, MAGIC, REST, VERSION, Kind, data_frame, encoder, values_header

_NIL: Final = b"\xc0"
_NO_COLUMNS: Final = _NIL * 3
_LARGE_BYTES: Final = 4 * 1024
_TIMESTAMP_MAX: Final = 2**62
_TIMESTAMP_MIN: Final = -(2**62)
"""Up to the year 2116; the difference of two such times fits in 64 bits."""
_encode_into: Final = encoder.encode_into
PACKING_ERRORS: Final = (TypeError, ValueError, OverflowError, RecursionError)


def packing_error(field: str, value: Any, error: Exception) -> MessageError:
    """Return what to raise where msgpack cannot express `value`."""
    kind = type(value).__name__
    return MessageError(field, f"of type {kind} cannot be packed as msgpack: {error}")


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


def pack_headers(headers: Any) -> msgspec.Raw | None:
    """Return the headers packed, so that a later change of the dict changes nothing."""
    if headers is None:
        return None
    if not isinstance(headers, dict) or not all(type(name) is str for name in headers):
        raise MessageError("headers", f"must be a dict with str keys or None, not {headers!r}")
    try:
        return msgspec.Raw(encoder.encode(headers))
    except PACKING_ERRORS as error:
        raise packing_error("headers", headers, error) from error


class Batch:
    """Messages packed one behind the other, ready to become a frame.

    A message is in when its end is in `ends`: that one append is the moment of acceptance, so an
    interrupt (Ctrl-C) at any other place leaves something that `repair` can cut off.

    Attributes:
        buffer: the frame so far: topic, zero byte, room for the header, values.
        ends: where in `buffer` each message ends.
        before: the first message's sequence less one, so that `before + len(ends)` is the last's.
        limit: the batch is full when `buffer` has so many bytes. What the columns beside the values
            will take at most has been taken off.
        opened_ns: when, by the monotonic clock; the linger counts from here.

    """

    __slots__ = (
        "_body_at",
        "_headers",
        "_keys",
        "_timestamps",
        "base_timestamp_ns",
        "before",
        "buffer",
        "ends",
        "limit",
        "opened_ns",
    )

    def __init__(
        self, topic: bytes, sequence: int, timestamp_ns: int, now_ns: int, frame_bytes: int
    ) -> None:
        prefix = topic + bytes(1 + HEADER.size)
        self._body_at = len(prefix)
        self.buffer = bytearray(prefix + values_header(0))
        self.ends: list[int] = []
        self.before = sequence - 1
        self.base_timestamp_ns = timestamp_ns
        self.opened_ns = now_ns
        self.limit = frame_bytes
        self._timestamps: list[int] | None = None
        self._keys: list[str | None] | None = None
        self._headers: list[msgspec.Raw | None] | None = None

    @property
    def values_at(self) -> int:
        """Where in `buffer` the first message begins."""
        return self._body_at + 6

    @property
    def start(self) -> int:
        """Where in `buffer` the next message begins."""
        return self.ends[-1] if self.ends else self._body_at + 6

    def add_columns(self, key: Any, timestamp_ns: Any, headers: Any) -> None:
        """Add what a message has beside its value."""
        count = len(self.ends)
        extra = 0
        if key is not None:
            if type(key) is not str or not key.isascii():
                check_key(key)
            keys = self._keys
            if keys is None or len(keys) != count:
                keys = self._keys = _padded(keys, count, None)
            keys.append(key)
            extra = 5 + 4 * len(key)
        if timestamp_ns is not None:
            if type(timestamp_ns) is not int or not _TIMESTAMP_MIN < timestamp_ns < _TIMESTAMP_MAX:
                check_timestamp(timestamp_ns)
            column = self._timestamps
            if column is None or len(column) != count:
                column = self._timestamps = _padded(column, count, 0)
            column.append(timestamp_ns - self.base_timestamp_ns)
            extra += 9
        if headers is not None:
            packed = pack_headers(headers)
            self._headers = packs = _padded(self._headers, count, None)
            packs.append(packed)
            extra += memoryview(packed).nbytes  # type: ignore[arg-type]
        self.limit -= extra

    def repair(self) -> None:
        """Cut off what belongs to no accepted message."""
        count = len(self.ends)
        del self.buffer[self.start :]
        for column in (self._timestamps, self._keys, self._headers):
            if column is not None:
                del column[count:]

    def seal(self, topic_length: int, session: int) -> tuple[bytes, int]:
        """Return the frame, and the latest timestamp in it. It may be called again."""
        self.repair()
        buffer, count = self.buffer, len(self.ends)
        at = self._body_at
        latest = self.base_timestamp_ns
        if self._timestamps is not None:
            self._timestamps = _padded(self._timestamps, count, 0)
            latest += max(self._timestamps)
        for column in (self._timestamps, self._keys, self._headers):
            if column is None:
                buffer += _NIL
            else:
                padding = 0 if column is self._timestamps else None
                buffer += encoder.encode(_padded(column, count, padding))
        buffer[at : at + 6] = values_header(count)
        HEADER.pack_into(
            buffer,
            topic_length + 1,
            MAGIC,
            VERSION,
            Kind.DATA,
            0,
            0,
            session,
            self.before + 1,
            count,
            len(buffer) - at,
            self.base_timestamp_ns,
        )
        return bytes(buffer), latest


def _padded(column: list[Any] | None, count: int, padding: Any) -> list[Any]:
    """Return the column with an entry for each of `count` messages, where it was left out."""
    if column is None:
        return [padding] * count
    column.extend([padding] * (count - len(column)))
    return column


def pack_slice(
    topic: bytes,
    session: int,
    sequence: int,
    timestamp_ns: int,
    values: list[Any],
    keys: list[str | None] | None,
    timestamps_ns: list[int] | None,
) -> tuple[bytes, int]:
    """Return a frame of `values` packed in one go, and its latest timestamp."""
    base = timestamp_ns if timestamps_ns is None else timestamps_ns[0]
    latest = base if timestamps_ns is None else max(timestamps_ns)
    try:
        packed = encoder.encode(values)
    except PACKING_ERRORS as error:
        raise packing_error("values", values, error) from error
    if keys is None and timestamps_ns is None:
        columns = _NO_COLUMNS
    else:
        try:
            columns = b"".join(
                (
                    _NIL
                    if timestamps_ns is None
                    else encoder.encode([time - base for time in timestamps_ns]),
                    _NIL if keys is None else encoder.encode(keys),
                    _NIL,
                )
            )
        except PACKING_ERRORS as error:
            raise packing_error("keys", keys, error) from error
    frame = data_frame(topic, session, sequence, len(values), base, (b"\x94", packed, columns))
    return frame, latest


def pack_alone(
    prefix: bytes,
    sequence: int,
    timestamp_ns: int,
    value: Any,
    key: str | None,
    headers: dict[str, Any] | None,
    bytes_max: int,
) -> bytes:
    """Return a frame of one message, made without a batch: the way of a stream that is idle.

    `prefix` is the stream's `stream_prefix`.
    """
    if type(value) is bytes and len(value) >= _LARGE_BYTES:
        # Its header is made by hand, so that the value is copied once and not twice.
        lead = b"\x94\x91\xc6" + len(value).to_bytes(4, "big")
        packed = value
    else:
        lead = b"\x94\x91"
        try:
            packed = encoder.encode(value)
        except PACKING_ERRORS as error:
            raise packing_error("value", value, error) from error
    columns = _NO_COLUMNS
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
    check_size("message", size, bytes_max)
    rest = REST.pack(sequence, 1, len(lead) + size, timestamp_ns)
    return b"".join((prefix, rest, lead, packed, columns))


def check_size(field: str, size: int, limit: int) -> None:
    """Raise `MessageTooLargeError` where `size` is above `limit`."""
    if size > limit:
        raise MessageTooLargeError(field, size, limit)
