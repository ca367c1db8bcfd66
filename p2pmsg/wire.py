"""The wire format: topic, one zero byte, a 38-byte header in network byte order, a msgpack body.

========  ================  ==================================================================
bytes     field
========  ================  ==================================================================
0–1       magic             ``p2``
2         version           1
3         kind              see `Kind`
4         flags             see the names that begin with `FLAG_`
5         compression       0: none; others are for later
6–13      session
14–21     sequence          of the first message; of a heartbeat, the next sequence
22–25     count             of messages
26–29     body length
30–37     base timestamp    ns since the epoch, signed
========  ================  ==================================================================

The body of a DATA frame is one msgpack array ``[values, timestamps, keys, headers]``, each a list
with an entry a message, or nil where the whole column is absent. Timestamps are offsets from the
base timestamp. The values' array may have a longer header than msgpack needs.
"""

import enum
import struct
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Final, get_args

from p2pmsg import codec

MAGIC: Final = b"p2"
VERSION: Final = 1
HEADER: Final = struct.Struct("!2sBBBBQQIIq")
TOPIC_BYTES_MAX: Final = 255
SEQUENCE_MAX: Final = 2**63 - 1
FLAG_CLOSING: Final = 1
"""On a heartbeat: the publisher is closing and waits for its subscribers to catch up."""
FLAG_RETRANSMISSION: Final = 2
"""On what a multicast repeats; receivers take it off again."""
FLAG_PLAIN: Final = 4
"""On DATA: the body has values only, so that frames can be joined without decoding them."""
FLAG_RELAY: Final = 8
"""On a welcome: a relay is here, and its session is the relay's id; see `p2pmsg.relay`."""
FLAG_SEALED: Final = 16
"""On a welcome: all other datagrams are sealed; see `p2pmsg.multicast.seal`. It is a hint only."""

_COUNT32: Final = struct.Struct("!BI")
ARRAY4: Final = 0x94


class Kind(enum.IntEnum):
    """What a frame is. The values up to 15 are for the data channel."""

    DATA = 1
    HEARTBEAT = 2
    FRAGMENT = 3
    """A part of a frame that is larger than a datagram; see `p2pmsg.multicast.datagram`."""
    MARK = 4
    """In a multicast: its sequence is how many bytes were sent before it."""
    PARITY = 5
    """In a multicast: what helps to work out lost frames; see `p2pmsg.multicast.parity`."""
    WELCOME = 16
    PROBE = 17
    ECHO = 18
    JOINED = 19
    NACK = 20
    REFUSED = 21
    HEADS_REQUEST = 22
    HEADS = 23
    LEAVE = 24
    MARKED = 25
    """Subscriber to publisher, by UDP: I have come to this mark."""
    ADMITTED = 26
    """Multicast publisher to a subscriber that joined: its token for requests by UDP."""
    DENIED = 27
    """Publisher or relay to who asks: you may not have this."""
    KEYS = 28
    """Publisher of a sealed multicast to a subscriber: keys; see `p2pmsg.multicast.keys`."""
    KEYS_HELD = 29
    SETTLED = 30
    """Subscriber to publisher: what is below this of a stream needs to be kept for me no more."""
    JOBS = 32
    QUEUE_HELLO = 33
    QUEUE_WELCOME = 34
    QUEUE_CHALLENGE = 35
    QUEUE_REPORT = 36
    QUEUE_CONFIRM = 37
    QUEUE_RECALL = 38
    QUEUE_LEAVE = 39
    QUEUE_ADMIN = 40
    QUEUE_ANSWER = 41
    REQUEST = 48
    REPLY = 49
    SESSIONS_REQUEST = 64
    """Subscriber to relay: whose streams do you serve?"""
    SESSIONS = 65


_KINDS: Final = frozenset(int(kind) for kind in Kind)


class FrameError(Exception):
    """A frame off the wire is not one; its argument is a short reason, for counting."""


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


_BEGIN: Final = struct.Struct("!2sBBBBQ")
REST: Final = struct.Struct("!QIIq")
_unpack_rest: Final = REST.unpack_from


def stream_prefix(topic: str, session: int, flags: int = 0) -> bytes:
    """Return how all DATA frames of a stream begin, up to the sequence."""
    lead = (MAGIC, bytes((VERSION, Kind.DATA, flags, 0)), session.to_bytes(8, "big"))
    return b"".join((topic.encode(), b"\0", *lead))


def position_of(frame: bytes | memoryview) -> tuple[str, int]:
    """Return topic and first sequence of a DATA frame that was made here."""
    made = bytes(frame)
    zero = made.index(0)
    return made[:zero].decode(), REST.unpack_from(made, zero + 15)[0]


@lru_cache(maxsize=256)
def single_struct(prefix_bytes: int) -> struct.Struct:
    """Return what reads a `stream_prefix`, `REST`, and how a body of one short value begins."""
    return struct.Struct(f"!{prefix_bytes}s{REST.format[1:]}I")


SINGLE_BYTES: Final = 0x9491C400
"""How a body of one value begins that is bytes, fewer than 256; the last byte is their number."""


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


_Others = tuple[list[int] | None, list[str | None] | None, list[dict[str, Any] | None] | None]
Columns = tuple[
    list[Any], list[int] | None, list[str | None] | None, list[dict[str, Any] | None] | None
]
Decode = Callable[[memoryview], Columns]
_decode_columns: Final[Decode] = codec.make_decoder(Columns).decode
encoder: Final = codec.encoder
_WIRE_ERRORS: Final = (codec.CodecError, ValueError, RecursionError, OverflowError)


def typed_decode(value_type: Any) -> Decode:
    """Return a `decode` for `decode_columns` that makes each value a `value_type`."""
    columns: Any = tuple[list[value_type], *get_args(_Others)]  # type: ignore[misc]
    decode: Decode = codec.make_decoder(columns).decode
    return decode


def decode_columns(frame: Frame, decode: Decode = _decode_columns) -> Columns:
    """Return the columns of a DATA frame; `FrameError` where the body is malformed."""
    return decode_body(frame.data, frame.body_at, frame.count, frame.base_timestamp_ns, decode)


def decode_body(
    data: bytes, body_at: int, count: int, base_ns: int, decode: Decode = _decode_columns
) -> Columns:
    """Return the columns of `count` messages; `FrameError` where the body has no such."""
    try:
        columns = decode(memoryview(data)[body_at:])
    except _WIRE_ERRORS:
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


_BIN8: Final = 0xC4
_BIN16: Final = 0xC5
_decode_others: Final = codec.make_decoder(_Others).decode
_ARRAY3: Final = b"\x93"
NO_COLUMNS: Final = b"\xc0\xc0\xc0"
"""How a body ends that has values only."""


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


def decode_others(frame: Frame, at: int) -> Columns:
    """Return the columns after the values; those are left empty, and end at `at` in the frame."""
    rest = frame.data[at:]
    if rest == NO_COLUMNS:
        return [], None, None, None
    try:
        timestamps, keys, headers = _decode_others(_ARRAY3 + rest)
    except _WIRE_ERRORS:
        raise FrameError("body") from None
    for column in (timestamps, keys, headers):
        if column is not None and len(column) != frame.count:
            raise FrameError("columns")
    if timestamps is not None:
        base = frame.base_timestamp_ns
        timestamps = [base + offset for offset in timestamps]
    return [], timestamps, keys, headers


_PLAIN_BEGIN: Final = b"\x94\x91"
_decode_value: Final = codec.make_decoder().decode


def decode_one(
    data: bytes,
    body_at: int,
    base_ns: int,
    decode_value: Callable[[memoryview], Any] = _decode_value,
    decode: Decode = _decode_columns,
) -> tuple[Any, int, str | None, dict[str, Any] | None]:
    """Return value, timestamp, key and headers of a body of one message; `FrameError` if malformed.

    Decoding the columns takes 3.5 µs with cold caches, and a value alone a fifth.
    """
    at = body_at + 2
    if data[body_at:at] == _PLAIN_BEGIN and data.endswith(NO_COLUMNS, at + 1):
        try:
            return decode_value(memoryview(data)[at:-3]), base_ns, None, None
        except _WIRE_ERRORS:
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


def topic_prefixes(topics: Iterable[str]) -> list[bytes]:
    """Return the prefixes of the frames that a subscriber of these topics takes.

    A topic that ends in `*` means all that begin with the rest. All topics are a prefix for each
    byte that a topic may begin with, and not the empty one: control frames begin with a zero byte,
    so the empty prefix means each answer that is for another subscriber, too.
    """
    prefixes: list[bytes] = []
    for topic in topics:
        if topic == "*":
            prefixes += _FIRST_BYTES
        else:
            prefixes.append(topic[:-1].encode() if topic.endswith("*") else topic.encode() + b"\0")
    return prefixes


_FIRST_BYTES: Final = [bytes((byte,)) for byte in (*range(1, 0x80), *range(0xC2, 0xF5))]
"""What UTF-8 text may begin with (RFC 3629, section 4), except for the zero byte."""


def control_frame(
    kind: Kind,
    session: int,
    body: Any = None,
    *,
    sequence: int = 0,
    topic: bytes = b"",
    flags: int = 0,
    timestamp_ns: int = 0,
) -> bytes:
    """Return a frame other than DATA, with `body` (a msgspec struct, or packed) in msgpack."""
    packed = b"" if body is None else body if type(body) is bytes else encoder.encode(body)
    header = HEADER.pack(
        MAGIC, VERSION, kind, flags, 0, session, sequence, 0, len(packed), timestamp_ns
    )
    return b"".join((topic, b"\0", header, packed))


def control_prefix(kind: Kind, session: int | None = None) -> bytes:
    """Return how control frames of `kind` begin (of that session, where given)."""
    prefix = b"\0" + MAGIC + bytes((VERSION, kind))
    return prefix if session is None else prefix + b"\0\0" + session.to_bytes(8, "big")


def values_header(count: int) -> bytes:
    """Return how a body with `count` values begins."""
    return bytes((ARRAY4,)) + _COUNT32.pack(0xDD, count)
