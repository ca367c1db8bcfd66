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

import struct
from collections.abc import Iterable
from typing import Any, Final, get_args

from p2pmsg import codec
from p2pmsg.native import Frame as Frame
from p2pmsg.native import decode_body as decode_body
from p2pmsg.native import decode_one as decode_one
from p2pmsg.native import find_block as find_block
from p2pmsg.native import read_frame as read_frame
from p2pmsg.native.format import ARRAY4 as ARRAY4
from p2pmsg.native.format import MAGIC as MAGIC
from p2pmsg.native.format import NO_COLUMNS as NO_COLUMNS
from p2pmsg.native.format import SEQUENCE_MAX as SEQUENCE_MAX
from p2pmsg.native.format import TOPIC_BYTES_MAX as TOPIC_BYTES_MAX
from p2pmsg.native.format import VERSION as VERSION
from p2pmsg.native.format import FrameError as FrameError
from p2pmsg.native.format import Kind as Kind
from p2pmsg.native.twin import WIRE_ERRORS, Others
from p2pmsg.native.twin import Columns as Columns
from p2pmsg.native.twin import Decode as Decode
from p2pmsg.native.twin import decode_columns as _decode_columns

HEADER: Final = struct.Struct("!2sBBBBQQIIq")
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
REST: Final = struct.Struct("!QIIq")


def stream_prefix(topic: str, session: int, flags: int = 0) -> bytes:
    """Return how all DATA frames of a stream begin, up to the sequence."""
    lead = (MAGIC, bytes((VERSION, Kind.DATA, flags, 0)), session.to_bytes(8, "big"))
    return b"".join((topic.encode(), b"\0", *lead))


def position_of(frame: bytes | memoryview) -> tuple[str, int]:
    """Return topic and first sequence of a DATA frame that was made here."""
    made = bytes(frame)
    zero = made.index(0)
    return made[:zero].decode(), REST.unpack_from(made, zero + 15)[0]


encoder: Final = codec.encoder


def typed_decode(value_type: Any) -> Decode:
    """Return a `decode` for `decode_columns` that makes each value a `value_type`."""
    columns: Any = tuple[list[value_type], *get_args(Others)]  # type: ignore[misc]
    decode: Decode = codec.make_decoder(columns).decode
    return decode


def decode_columns(frame: Frame, decode: Decode = _decode_columns) -> Columns:
    """Return the columns of a DATA frame; `FrameError` where the body is malformed."""
    return decode_body(frame.data, frame.body_at, frame.count, frame.base_timestamp_ns, decode)


_decode_others: Final = codec.make_decoder(Others).decode
_ARRAY3: Final = b"\x93"


def decode_others(frame: Frame, at: int) -> Columns:
    """Return the columns after the values; those are left empty, and end at `at` in the frame."""
    rest = frame.data[at:]
    if rest == NO_COLUMNS:
        return [], None, None, None
    try:
        timestamps, keys, headers = _decode_others(_ARRAY3 + rest)
    except WIRE_ERRORS:
        raise FrameError("body") from None
    for column in (timestamps, keys, headers):
        if column is not None and len(column) != frame.count:
            raise FrameError("columns")
    if timestamps is not None:
        base = frame.base_timestamp_ns
        timestamps = [base + offset for offset in timestamps]
    return [], timestamps, keys, headers


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
