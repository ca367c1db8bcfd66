"""The packets of MoldUDP64, in network byte order.

====== ====================== ================================================================
bytes  downstream packet      request packet
====== ====================== ================================================================
0–9    session, padded with spaces on the right
10–17  sequence               sequence of the first message wanted
18–19  number of messages     number of messages wanted
20–    message blocks: length (2), message
====== ====================== ================================================================

Sequences begin with 1. A packet of 0 messages is a heartbeat and one of 65,535 the end of the
session; the sequence of both is the one that the next message has, or would have had.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from p2pmsg.checks import check
from p2pmsg.errors import ConfigError
from p2pmsg.wire import SEQUENCE_MAX, FrameError

HEADER: Final = struct.Struct("!10sQH")
HEADER_BYTES: Final = HEADER.size
SESSION_BYTES: Final = 10
END_OF_SESSION: Final = 0xFFFF
MESSAGES_MAX: Final = 0xFFFE
MESSAGE_BYTES_MAX: Final = 0xFFFF
_LENGTH: Final = struct.Struct("!H")


class Packet(NamedTuple):
    """A downstream packet; one without messages only says where the feed stands."""

    session: bytes
    sequence: int
    messages: list[bytes]
    is_end: bool = False


def session_bytes(name: str) -> bytes:
    """Return a session's name as it goes over the wire; `ConfigError` where it does not fit."""
    ok = isinstance(name, str) and name.isascii() and name.isprintable() and not name.isspace()
    limit = "1 to 10 ASCII characters, not all of them spaces"
    check("session", name, ok and 0 < len(name) <= SESSION_BYTES, limit)
    return name.encode().ljust(SESSION_BYTES)


def read_packet(data: bytes | memoryview) -> Packet:
    """Return the packet in a datagram; `FrameError` where it is none."""
    size = len(data)
    if size < HEADER_BYTES:
        raise FrameError("truncated")
    session, sequence, count = HEADER.unpack_from(data)
    is_end = count == END_OF_SESSION
    if sequence + (0 if is_end else count) > SEQUENCE_MAX:
        raise FrameError("sequence")
    if not count or is_end:
        if size != HEADER_BYTES:
            raise FrameError("length")
        return Packet(session, sequence, [], is_end)
    messages: list[bytes] = []
    at = HEADER_BYTES
    unpack = _LENGTH.unpack_from
    for _ in range(count):
        if at + 2 > size:
            raise FrameError("count")
        stop = at + 2 + unpack(data, at)[0]
        if stop > size:
            raise FrameError("length")
        messages.append(bytes(data[at + 2 : stop]))
        at = stop
    if at != size:
        raise FrameError("length")
    return Packet(session, sequence, messages)


def read_request(data: bytes) -> tuple[bytes, int, int]:
    """Return (session, sequence, count) of a request; `FrameError` where it is none."""
    if len(data) != HEADER_BYTES:
        raise FrameError("length")
    session, sequence, count = HEADER.unpack(data)
    if not sequence or not count or sequence + count > SEQUENCE_MAX:
        raise FrameError("range")
    return session, sequence, count


def packet(session: bytes, sequence: int, messages: Sequence[bytes]) -> bytes:
    """Return a downstream packet, which must have space for all the messages."""
    pieces = [HEADER.pack(session, sequence, len(messages))]
    for message in messages:
        pieces += (_LENGTH.pack(len(message)), message)
    return b"".join(pieces)


def packets(
    session: bytes, sequence: int, messages: Iterable[bytes], bytes_max: int
) -> list[tuple[int, int, bytes]]:
    """Return (sequence, count, packet) of as few packets as hold the messages.

    A message that alone passes `bytes_max` has a packet of its own, which IP cuts into fragments.
    """
    made: list[tuple[int, int, bytes]] = []
    held: list[bytes] = []
    size = HEADER_BYTES
    for message in messages:
        if not isinstance(message, bytes | bytearray | memoryview):
            kind = type(message).__name__
            raise ConfigError("message", "bytes, which is all that MoldUDP64 carries", kind)
        length = len(message)
        check("len(message)", length, length <= MESSAGE_BYTES_MAX - 64, "at most 65471")
        if held and (size + 2 + length > bytes_max or len(held) == MESSAGES_MAX):
            made.append((sequence, len(held), packet(session, sequence, held)))
            sequence += len(held)
            held, size = [], HEADER_BYTES
        held.append(bytes(message))
        size += 2 + length
    if held:
        made.append((sequence, len(held), packet(session, sequence, held)))
    return made


def heartbeat(session: bytes, following: int) -> bytes:
    """Return a packet that says which sequence comes next."""
    return HEADER.pack(session, following, 0)


def end_of_session(session: bytes, following: int) -> bytes:
    """Return a packet that says that nothing comes any more."""
    return HEADER.pack(session, following, END_OF_SESSION)


def request(session: bytes, sequence: int, count: int) -> bytes:
    """Return a request for messages that were missed."""
    return HEADER.pack(session, sequence, min(count, MESSAGES_MAX))
