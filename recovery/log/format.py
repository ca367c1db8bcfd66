"""How a segment is laid out, and walking over its records.

A segment is a header and records; a record is a head and a payload, in network byte order::

    segment  magic 8s | version I | first record Q | session Q | floor Q | CRC32C I
    record   magic 2s | kind B | 0 B | payload bytes I | stream I | count I | start Q
             | appended ns q | newest timestamp ns q | payload's CRC32C I | head's CRC32C I

The session is the one of the log's own streams, and new ones of them begin at the floor.

A record of kind STREAM gives a number to a stream within its segment; its payload is the session
and the topic. It says with which sequence (start) the stream goes on, the sequence that it does not
reach before it says so again (newest timestamp), and from where to `start` sequences were skipped
after a crash (appended; `start` itself: none were). A record of kind DATA holds a frame of the
stream, byte for byte. The head has a CRC of its own so that its length can be trusted: a record
that a dying process wrote half is distinguished from one that was damaged later. It begins with the
head's offset in the file, so that a record within a frame, or one that came to another place, is
not taken for one.
"""

from collections.abc import Callable, Iterator
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

MAGIC: Final = b"p2plog\r\n"
VERSION: Final = 1
SEGMENT_HEADER: Final = Struct("!8sIQQQI")
RECORD_MAGIC: Final = b"\xf7R"
RECORD: Final = Struct("!2sBBIIIQqqI")
_CHECKSUM: Final = Struct("!I")
HEAD_BYTES: Final = RECORD.size + _CHECKSUM.size
KIND_STREAM: Final = 1
KIND_DATA: Final = 2
CHUNK_BYTES: Final = 516 * 1024
"""How much is read at a time: two full frames of `publish_many`, or four or eight smaller ones."""
PAYLOAD_MAX: Final = 2**32 - 1
_SEED_MASK: Final = 2**32 - 1
_SESSION: Final = Struct("!Q")
_pack_record = RECORD.pack
_pack_checksum = _CHECKSUM.pack
_unpack_record = RECORD.unpack_from
_unpack_checksum = _CHECKSUM.unpack_from

Read = Callable[[int, int], bytes]
"""`read(byte_count, offset)`: fewer bytes where the file ends."""


def pack_head(
    at: int,
    kind: int,
    payload: bytes | memoryview,
    stream: int,
    count: int,
    start: int,
    appended_ns: int,
    newest_ns: int,
) -> bytes:
    """Return the head of a record that is to be at offset `at`."""
    head = _pack_record(
        RECORD_MAGIC, kind, 0, len(payload), stream, count, start, appended_ns, newest_ns,
        crc32c(payload),
    )  # fmt: skip
    return head + _pack_checksum(crc32c(head, at & _SEED_MASK))


def pack_segment_header(first_record: int, session: int, floor: int) -> bytes:
    """Return a segment's header."""
    fields = (MAGIC, VERSION, first_record, session, floor)
    head = SEGMENT_HEADER.pack(*fields, 0)
    return SEGMENT_HEADER.pack(*fields, crc32c(head[: -_CHECKSUM.size]))


def check_segment_header(data: bytes, first_record: int) -> str | None:
    """Return what is wrong with a segment's header, or None."""
    if len(data) < SEGMENT_HEADER.size:
        return f"{len(data)} bytes are too few for a segment's header"
    magic, version, number, _, _, checksum = SEGMENT_HEADER.unpack_from(data)
    if magic != MAGIC:
        return "it is not a segment of a log"
    if checksum != crc32c(data[: SEGMENT_HEADER.size - _CHECKSUM.size]):
        return "the segment's header is damaged"
    if version != VERSION:
        return f"it has version {version}; this library knows {VERSION}"
    if number != first_record:
        return f"it begins with record {number}, and its name says {first_record}"
    return None


def unpack_segment_header(data: bytes) -> tuple[int, int]:
    """Return the session and the floor that a header has."""
    _, _, _, session, floor, _ = SEGMENT_HEADER.unpack_from(data)
    return session, floor


def pack_stream(session: int, topic: str) -> bytes:
    """Return the payload of a STREAM record."""
    return _SESSION.pack(session) + topic.encode()


def unpack_stream(payload: bytes | memoryview) -> tuple[int, str]:
    """Return (session, topic); raises `ValueError`."""
    if len(payload) < _SESSION.size:
        raise ValueError("a stream needs a session")
    return _SESSION.unpack_from(payload)[0], bytes(payload[_SESSION.size :]).decode()


class Placed(NamedTuple):
    """A record and where it is."""

    offset: int
    kind: int
    stream: int
    messages: int
    start: int
    appended_ns: int
    timestamp_ns_max: int
    payload: memoryview

    @property
    def stop_offset(self) -> int:
        """Where the next record begins."""
        return self.offset + HEAD_BYTES + len(self.payload)


class Walk:
    """Goes over the records of a segment; what is damaged is noted and passed over.

    Args:
        read: reads the file.
        at: the offset of the first record.
        end: where to stop.
        stream: the only stream whose records are given and checked; None: all are.

    Attributes:
        end_valid: after the last good record, once the walk is over.
        is_torn: whether a record at `end_valid` reaches beyond `end`: its writer died, or writes.
        damage: (offset, end, what) of what is not good before `end_valid`, and of what is after it
            unless it is torn.

    """

    def __init__(self, read: Read, at: int, end: int, stream: int | None = None) -> None:
        self._read = read
        self._end = end
        self._stream = stream
        self.end_valid = at
        self.is_torn = False
        self.damage: list[tuple[int, int, str]] = []

    def __iter__(self) -> Iterator[Placed]:
        """Yield the records."""
        at, wanted = self.end_valid, HEAD_BYTES
        while at < self._end and wanted <= self._end - at:
            data = self._read(min(max(CHUNK_BYTES, wanted), self._end - at), at)
            if len(data) < wanted:
                break  # the file became shorter
            yield from self._walk_chunk(data, at)
            at, wanted = self._at, self._wanted
            if not wanted:
                following = self._resynchronise(at)
                if following is None:
                    self.damage.append((at, self._end, "no record begins here"))
                    return
                self.damage.append((at, following, "no record begins here"))
                at, wanted = following, HEAD_BYTES
        if at < self._end:
            self.is_torn = True

    def _walk_chunk(self, data: bytes, base: int) -> Iterator[Placed]:
        """Yield the records that are wholly in `data`; sets where to go on, and what is needed."""
        view, limit, stream = memoryview(data), len(data), self._stream
        at, self._wanted = 0, HEAD_BYTES
        while at + HEAD_BYTES <= limit:
            fields = _unpack_record(data, at)
            payload_at = at + HEAD_BYTES
            head = view[at : payload_at - 4]
            checksum = _unpack_checksum(data, payload_at - 4)[0]
            if fields[0] != RECORD_MAGIC or crc32c(head, base + at & _SEED_MASK) != checksum:
                self._wanted = 0
                break
            stop = payload_at + fields[3]
            if stop > limit:
                self._wanted = stop - at
                break
            if stream is None or fields[4] == stream:
                payload = view[payload_at:stop]
                if crc32c(payload) == fields[9]:
                    self.end_valid = base + stop
                    _, kind, _, _, number, messages, start, appended_ns, newest_ns, _ = fields
                    yield Placed(
                        base + at, kind, number, messages, start, appended_ns, newest_ns, payload
                    )
                else:
                    self.damage.append((base + at, base + stop, "the frame's checksum is wrong"))
            at = stop
        self._at = base + at

    def _resynchronise(self, at: int) -> int | None:
        """Return where the next good record begins after `at`, or None."""
        at += 1
        while self._end - at >= HEAD_BYTES:
            data = self._read(min(CHUNK_BYTES, self._end - at), at)
            found = data.find(RECORD_MAGIC)
            while 0 <= found <= len(data) - HEAD_BYTES:
                if self._is_record(at + found):
                    return at + found
                found = data.find(RECORD_MAGIC, found + 1)
            if len(data) < HEAD_BYTES:
                return None
            at += len(data) - HEAD_BYTES + 1
        return None

    def _is_record(self, at: int) -> bool:
        head = self._read(HEAD_BYTES, at)
        fields = _unpack_record(head)
        if crc32c(head[:-4], at & _SEED_MASK) != _unpack_checksum(head, HEAD_BYTES - 4)[0]:
            return False
        payload = self._read(fields[3], at + HEAD_BYTES) if fields[3] <= self._end - at else b""
        return len(payload) == fields[3] and bool(crc32c(payload) == fields[9])
