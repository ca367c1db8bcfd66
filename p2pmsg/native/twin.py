"""What `compiled` does, in Python: frames into messages, with the same names and arguments.

All of it is a function of its arguments, or a value: no socket, no state, no clock.
"""

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, Protocol, TypeVar

from p2pmsg import codec
from p2pmsg.native.format import (
    ARRAY4,
    MAGIC,
    NO_COLUMNS,
    SEQUENCE_MAX,
    TOPIC_BYTES_MAX,
    VERSION,
    FrameError,
    Kind,
)

_KINDS: Final = frozenset(int(kind) for kind in Kind)
_BEGIN: Final = struct.Struct("!2sBBBBQ")
_REST: Final = struct.Struct("!QIIq")
_unpack_rest: Final = _REST.unpack_from
_SEALED: Final = struct.Struct("!QIIqBBI")
"""The rest of the header, and how a body begins."""
_ARRAY32: Final = 0xDD
_REST_BYTES: Final = 24
_VALUE_AT: Final = _REST_BYTES + 4
_unpack_from: Final = [
    struct.Struct(f"!{prefix}sQIIqI").unpack_from for prefix in range(TOPIC_BYTES_MAX + 16)
]
"""By the length of a stream's prefix: what reads that, the rest of a header, and four bytes."""
_BYTES: Final = 0x9491C400
"""How a body of one value begins that is bytes, fewer than 256; the last byte is their number."""
_BIN8: Final = 0xC4
_BIN16: Final = 0xC5
_PLAIN_BEGIN: Final = b"\x94\x91"
_NIL: Final = b"\xc0"
_LEADS: Final = tuple(bytes((ARRAY4, 0x91, _BIN8, length)) for length in range(256))
LONE_BYTES_MAX: Final = 4096 - 2

Others = tuple[list[int] | None, list[str | None] | None, list[dict[str, Any] | None] | None]
Columns = tuple[
    list[Any], list[int] | None, list[str | None] | None, list[dict[str, Any] | None] | None
]
Decode = Callable[[memoryview], Columns]
F = TypeVar("F", bound=Callable[..., Any])
WIRE_ERRORS: Final = (codec.CodecError, ValueError, RecursionError, OverflowError)
decode_columns: Final[Decode] = codec.make_decoder(Columns).decode
decode_value: Final[Callable[[Any], Any]] = codec.make_decoder().decode


class Typed(Protocol):
    """Decodes values into a type; see `subscriber.typed`."""

    def decode_one(self, data: bytes, body_at: int, base_ns: int) -> "Lone":
        """Do as `decode_one`."""

    def decode_body(self, data: bytes, body_at: int, count: int, base_ns: int) -> Columns:
        """Do as `decode_body`."""


Lone = tuple[Any, int, str | None, dict[str, Any] | None]
"""Value, timestamp, key and headers of a message."""


class Frame:
    """A parsed frame; the body is not looked into yet.

    Attributes:
        topic: decoded; empty on control frames.
        data: the whole frame.
        body_at: where in `data` the body begins.

    The others are the header's fields.

    """

    __slots__ = (
        "base_timestamp_ns", "body_at", "count", "data", "flags", "kind", "sequence", "session",
        "topic",
    )  # fmt: skip

    def __init__(self, data: bytes) -> None:
        """Parse `data`; `FrameError` where it is not a frame."""
        zero = data.find(b"\0", 0, TOPIC_BYTES_MAX + 1)
        if zero < 0:
            raise FrameError("no topic")
        body_at = zero + 39
        if len(data) < body_at:
            raise FrameError("truncated")
        self.topic, self.kind, self.flags, self.session = _begin_of(data[: zero + 15])
        self.sequence, count, length, self.base_timestamp_ns = _unpack_rest(data, zero + 15)
        if length != len(data) - body_at:
            raise FrameError("length")
        if self.sequence + count > SEQUENCE_MAX:
            raise FrameError("sequence")
        # Each value takes a byte at least: else a hundred bytes might stand for billions.
        if self.kind == 1 and (
            not zero or not 0 < count <= length or count != _count_of(data, body_at)
        ):
            raise FrameError("count")
        self.count, self.body_at, self.data = count, body_at, data

    def covers(self, sequence: int) -> bool:
        """Whether the message with `sequence` is in it."""
        return bool(self.sequence <= sequence < self.sequence + self.count)


@lru_cache(maxsize=4096)
def _begin_of(prefix: bytes) -> tuple[str, int, int, int]:
    """Return topic, kind, flags and session, with which a frame begins; or raise `FrameError`.

    All frames of a stream begin alike, and all that one asks a session of one kind.
    """
    at = len(prefix) - 15
    magic, version, kind, flags, compression, session = _BEGIN.unpack_from(prefix, at + 1)
    if magic != MAGIC:
        raise FrameError("magic")
    if version != VERSION:
        raise FrameError("version")
    if kind not in _KINDS:
        raise FrameError("kind")
    if compression:
        raise FrameError("compression")
    try:
        return prefix[:at].decode(), kind, flags, session
    except UnicodeDecodeError:
        raise FrameError("topic") from None


def _count_of(data: bytes, at: int) -> int:
    """Return how many values a DATA body says that it has; -1 where it is no such body."""
    if len(data) < at + 2 or data[at] != ARRAY4:
        return -1
    lead = data[at + 1]
    if lead == 0xDD:
        return int.from_bytes(data[at + 2 : at + 6], "big")
    if lead == 0xDC:
        return int.from_bytes(data[at + 2 : at + 4], "big")
    return lead & 0x0F if lead & 0xF0 == 0x90 else -1


def decode_body(
    data: bytes, body_at: int, count: int, base_ns: int, decode: Decode = decode_columns
) -> Columns:
    """Return the columns of `count` messages; `FrameError` where the body has no such."""
    try:
        columns = decode(memoryview(data)[body_at:])
    except WIRE_ERRORS:
        raise FrameError("body") from None
    values, timestamps, keys, headers = columns
    if (
        len(values) != count
        or (timestamps is not None and len(timestamps) != count)
        or (keys is not None and len(keys) != count)
        or (headers is not None and len(headers) != count)
    ):
        raise FrameError("columns")
    if timestamps is not None:
        timestamps = [base_ns + offset for offset in timestamps]
    return values, timestamps, keys, headers


def find_block(frame: Frame) -> tuple[int, int, int] | None:
    """Return where the values of a DATA frame are, if they are bytes of one length (to 65,535).

    That is: where in `frame.data` they begin, the bytes from one to the next, and how many of those
    lead each (msgpack's own). None where they are anything else.
    """
    data, count = frame.data, frame.count
    lead = data[frame.body_at + 1]
    at = frame.body_at + (6 if lead == 0xDD else 4 if lead == 0xDC else 2)
    if len(data) < at + 3 or data[at] not in (_BIN8, _BIN16):
        return None
    head = 2 if data[at] == _BIN8 else 3
    stride = head + int.from_bytes(data[at + 1 : at + head], "big")
    stop = at + count * stride
    if stop > len(data) or stride == head:
        return None
    for place in range(head):
        if data[at + place : stop : stride] != data[at + place : at + place + 1] * count:
            return None
    return at, stride, head


def decode_one(
    data: bytes,
    body_at: int,
    base_ns: int,
    decode_value: Callable[[Any], Any] = decode_value,
    decode: Decode = decode_columns,
) -> Lone:
    """Return value, timestamp, key and headers of a body of one message; `FrameError` if malformed.

    Decoding the columns takes 3.5 µs with cold caches, and a value alone a fifth.
    """
    at = body_at + 2
    if data[body_at:at] == _PLAIN_BEGIN and data.endswith(NO_COLUMNS, at + 1):
        try:
            return decode_value(memoryview(data)[at:-3]), base_ns, None, None
        except WIRE_ERRORS:
            pass  # such as an array of one value that ends like that
    if _count_of(data, body_at) != 1:
        raise FrameError("count")
    values, timestamps, keys, headers = decode_body(data, body_at, 1, base_ns, decode)
    return (
        values[0],
        base_ns if timestamps is None else timestamps[0],
        None if keys is None else keys[0],
        None if headers is None else headers[0],
    )


def read_frame(
    data: bytes,
    prefix: bytes,
    count_max: int,
    make: Callable[..., Any],
    topic: str,
    origin: Any,
    typed: Typed | None,
) -> Any:
    """Return the messages of a stream's frame, in one step.

    A thread that waits for a message wakes with cold caches, and each function on the way then
    costs ten times what it does in a loop.

    Args:
        data: the frame.
        prefix: how the stream's DATA frames begin; see `wire.stream_prefix`.
        count_max: how many messages are wanted at most.
        make: makes a lone message: topic, value, timestamp, sequence, origin, key, headers.
        topic: what `make` gets.
        origin: as well.
        typed: decodes values into a type; None: as they are.

    Returns:
        What `make` made; or first sequence, count, base timestamp and columns; or None: it is not
        of the stream, or has more messages, or is malformed.

    """
    at = len(prefix)
    try:
        begin, sequence, count, length, timestamp_ns, lead = _unpack_from[at](data)
    except (struct.error, IndexError):
        return None
    if begin != prefix or not 0 < count <= count_max:
        return None
    if count == 1 and typed is None:  # first what most are
        value = data[at + _VALUE_AT : -3]
        size = len(value)
        is_bytes = lead == _BYTES + size and size < 256 and data[-3:] == NO_COLUMNS
        if is_bytes and length == size + 7 and sequence < SEQUENCE_MAX:
            return make(topic, value, timestamp_ns, sequence, origin)
    at += _REST_BYTES
    if length != len(data) - at or sequence + count > SEQUENCE_MAX:
        return None
    try:
        if count > 1:
            decode = decode_body if typed is None else typed.decode_body
            return sequence, count, timestamp_ns, decode(data, at, count, timestamp_ns)
        decode_lone = decode_one if typed is None else typed.decode_one
        value, timestamp_ns, key, headers = decode_lone(data, at, timestamp_ns)
    except FrameError:
        return None
    return make(topic, value, timestamp_ns, sequence, origin, key, headers)


def pack_lone(
    prefix: bytes, sequence: int, timestamp_ns: int, value: Any, key: Any, bytes_max: int
) -> bytes | None:
    """Return a frame of one message without headers; None: that is not for here.

    For here are values of msgpack's own types, and keys, of 4 KiB in all at most; compiled, the
    commonest of them. The bytes are those that the encoder makes.

    Args:
        prefix: how the stream's DATA frames begin; see `wire.stream_prefix`.
        sequence: the message's.
        timestamp_ns: as well.
        value: of any type.
        key: its key, or None.
        bytes_max: how large value and columns may be.

    """
    if type(value) is bytes and len(value) < 256:
        # It is spared the encoder, which takes 1 us with cold caches.
        lead, packed = _LEADS[len(value)], value
    else:
        lead = _PLAIN_BEGIN
        plain = codec.packed_if_plain(value)
        if plain is None:
            return None
        packed = plain
    columns = NO_COLUMNS
    if key is not None:
        if type(key) is not str or not key.isascii():
            return None
        columns = b"".join((_NIL, codec.encode([key]), _NIL))
    size = len(packed) + len(columns)
    if size > bytes_max or size > LONE_BYTES_MAX:
        return None
    rest = _REST.pack(sequence, 1, len(lead) + size, timestamp_ns)
    return b"".join((prefix, rest, lead, packed, columns))


def seal_frame(
    buffer: bytearray, body_at: int, sequence: int, timestamp_ns: int, count: int, columns: bytes
) -> None:
    """Make `buffer`, which ends with values, a frame.

    Args:
        buffer: topic and so on, space for the header and how values begin, and the values.
        body_at: where the body begins.
        sequence: of the first message.
        timestamp_ns: the base of all times.
        count: of values.
        columns: how the body ends: times, keys and headers, packed.

    """
    length = len(buffer) + len(columns) - body_at
    buffer += columns
    given = sequence, count, length, timestamp_ns, ARRAY4, _ARRAY32, count
    _SEALED.pack_into(buffer, body_at - _REST_BYTES, *given)


def appending(publish: F) -> F:
    """Return a publisher's `publish`, which appends to open batches itself.

    Compiled, it is another function of the same signature, which appends first what it can: a
    message without key, time and headers, with a value of msgpack's common types and no more than
    4 KiB (bytes may be longer), to a batch that is there and has space for it, while nobody is
    inside of the section. All else it leaves to `publish`. No other thread and no signal's handler
    runs between its first look and its last store, since it holds the GIL: so it takes no lock. In
    a Python without the GIL it is this function.

    Args:
        publish: a method of who has a `_section`, and `_batches` that it guards.

    """
    return publish
