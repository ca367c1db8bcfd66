"""What is in a segment: its streams, and where in it they are. Kept in memory, written as `.idx`.

An index file is a header, a table of streams and their entries, in network byte order::

    magic 8s | version I | first record Q | records Q | segment bytes Q | table bytes I
    | entries bytes I | table's CRC32C I | entries' CRC32C I | header's CRC32C I

An entry says: at `offset` is the stream's record that begins with `sequence`, and no record of the
stream before it in this segment has a timestamp above `newest`.
"""

import sys
from array import array
from bisect import bisect_left, bisect_right
from struct import Struct
from typing import Final

from crc32c import crc32c

from recovery.log.format import HEAD_BYTES, KIND_DATA, KIND_STREAM, Placed, unpack_stream

MAGIC: Final = b"p2pidx\r\n"
VERSION: Final = 1
_HEADER: Final = Struct("!8sIQQQIIIII")
_ROW: Final = Struct("!QIQQIQQqqqqQHH")
_HOLE: Final = Struct("!QQ")
_WORD_BYTES: Final = 8
NOTHING_NS: Final = -(2**63)
INDEX_BYTES: Final = 64 * 2**10
"""Distance between the entries of a stream. What is read in vain before a frame is found is at most
that; an entry takes 24 bytes."""
Key = tuple[int, str]
"""A stream: (session, topic)."""


class Entries:
    """Where to begin to look in a segment for a sequence or a time; only appended to."""

    __slots__ = ("newest", "offsets", "starts")

    def __init__(self) -> None:
        self.starts: array[int] = array("q")
        self.offsets: array[int] = array("q")
        self.newest: array[int] = array("q")

    def add(self, offset: int, start: int, newest_ns: int) -> None:
        """Add the frame that begins with `start`."""
        # `starts` is searched while this goes on: the others must be there before it. What they
        # have more than it, an interrupt left.
        count = len(self.starts)
        del self.newest[count:], self.offsets[count:]
        self.newest.append(newest_ns)
        self.offsets.append(offset)
        self.starts.append(start)

    def offset_of_sequence(self, sequence: int) -> int:
        """Return where to begin to look for a sequence."""
        return self.offsets[max(0, bisect_right(self.starts, sequence) - 1)]

    def offset_of_time(self, timestamp_ns: int) -> int:
        """Return where to begin to look for the first frame as new as that."""
        count = len(self.starts)
        return self.offsets[max(0, bisect_left(self.newest, timestamp_ns, 0, count) - 1)]


class StreamIndex:
    """One stream's part of a segment.

    Attributes:
        session, topic, number: the stream, and its number in the segment.
        start, stop: its sequences, from the first frame to the last.
        frames, messages, bytes: how much of it there is.
        timestamp_ns_min, timestamp_ns_max: over the newest timestamp of each frame.
        appended_ns_first, appended_ns_last: when its first frame was appended, and the latest time
            at which one was.
        entries: where in it they are; None where that is in the file only.
        holes: ranges of it that were skipped after a crash.
        mark: the sequence that no message reaches, once that is on the disk.
        limit: the writer's: a mark that is on the disk.
        seen: the writer's: where it ended at the last sync.

    """

    __slots__ = (
        "appended_ns_first", "appended_ns_last", "bytes", "entries", "frames", "holes", "limit",
        "mark", "messages", "number", "seen", "session", "start", "stop", "timestamp_ns_max",
        "timestamp_ns_min", "topic",
    )  # fmt: skip

    def __init__(self, session: int, topic: str, number: int) -> None:
        self.session = session
        self.topic = topic
        self.number = number
        self.start = self.stop = 0
        self.frames = self.messages = self.bytes = 0
        self.timestamp_ns_min, self.timestamp_ns_max = 2**63 - 1, NOTHING_NS
        self.appended_ns_first = self.appended_ns_last = 0
        self.entries: Entries | None = Entries()
        self.holes: list[tuple[int, int]] = []
        self.mark = self.limit = self.seen = 0

    def go_on(self, start: int, lost_from: int, mark: int) -> None:
        """Go on at `start`; what is before it from `lost_from` on was skipped."""
        if lost_from < start:
            self.holes.append((lost_from, start))
        if start > self.stop:
            self.stop = start
            if not self.frames:
                self.start = start
        self.mark = max(self.mark, mark)

    def note(self, start: int, count: int, size: int, newest_ns: int, appended_ns: int) -> None:
        """Take a frame in."""
        if not self.frames:
            self.start = start
            self.appended_ns_first = appended_ns
        self.stop = start + count
        self.messages += count
        self.bytes += size
        if newest_ns > self.timestamp_ns_max:
            self.timestamp_ns_max = newest_ns
        if newest_ns < self.timestamp_ns_min:
            self.timestamp_ns_min = newest_ns
        self.appended_ns_last = max(appended_ns, self.appended_ns_last)
        self.frames += 1


class SegmentIndex:
    """What is in one segment.

    Attributes:
        first_record: the number of its first record, which names it.
        records: how many it has.
        size: bytes of the segment that are good.
        session, floor: what its header says; 0 where that was not read.
        streams: its streams.
        by_number: the same, by their numbers; a number may be missing where a record is damaged.
        next_number: above all numbers that were seen.
        is_closed: whether nothing is appended to it any more.
        is_leaving: whether retention is deleting it, or has deleted it.
        synced: up to which size it does not count as unsynced any more.

    """

    def __init__(self, first_record: int, size: int = 0) -> None:
        self.first_record = first_record
        self.records = self.session = self.floor = 0
        self.size = size
        self.streams: dict[Key, StreamIndex] = {}
        self.by_number: dict[int, StreamIndex] = {}
        self.next_number = 0
        self.is_closed = self.is_leaving = False
        self.synced = 0

    @property
    def name(self) -> str:
        """The segment's file."""
        return segment_name(self.first_record)

    @property
    def stop_record(self) -> int:
        """The number of the record after its last one."""
        return self.first_record + self.records

    @property
    def appended_ns_last(self) -> int:
        """The latest time at which a frame was appended; 0 where it has none."""
        return max((stream.appended_ns_last for stream in self.by_number.values()), default=0)

    @property
    def appended_ns_first(self) -> int | None:
        """When its first frame was appended, or None."""
        return min((s.appended_ns_first for s in self.by_number.values() if s.frames), default=None)

    def add_stream(self, session: int, topic: str, number: int | None = None) -> StreamIndex:
        """Give a number to a stream; None: the next one."""
        number = self.next_number if number is None else number
        self.next_number = max(self.next_number, number + 1)
        stream = self.by_number[number] = StreamIndex(session, topic, number)
        self.streams[session, topic] = stream
        return stream

    def drop_entries(self) -> None:
        """Forget the entries, which are in the index file."""
        for stream in self.by_number.values():
            stream.entries = None

    def take(self, placed: Placed) -> str | None:
        """Take in a record that was read; returns what is wrong with it, or None."""
        self.records += 1
        self.size = placed.stop_offset
        self.next_number = max(self.next_number, placed.stream + 1)
        if placed.kind == KIND_STREAM:
            return self._take_stream(placed)
        if placed.kind != KIND_DATA:
            return f"a record has the unknown kind {placed.kind}"
        stream = self.by_number.get(placed.stream)
        if stream is None:
            return f"a frame belongs to stream {placed.stream}, which has no name"
        if placed.messages < 1 or placed.start < stream.stop:
            return f"{placed.messages} messages at {placed.start} do not follow {stream.stop}"
        entries, size = stream.entries, HEAD_BYTES + len(placed.payload)
        assert entries is not None
        if not stream.frames or placed.offset - entries.offsets[-1] >= INDEX_BYTES:
            entries.add(placed.offset, placed.start, stream.timestamp_ns_max)
        stream.note(
            placed.start, placed.messages, size, placed.timestamp_ns_max, placed.appended_ns
        )
        return None

    def _take_stream(self, placed: Placed) -> str | None:
        try:
            session, topic = unpack_stream(placed.payload)
        except ValueError as error:
            return f"a stream's name is malformed: {error}"
        stream = self.by_number.get(placed.stream)
        if stream is not self.streams.get((session, topic)):
            return f"stream {placed.stream} is named twice"
        if stream is None:
            stream = self.add_stream(session, topic, placed.stream)
        stream.go_on(placed.start, placed.appended_ns, placed.timestamp_ns_max)
        return None


def segment_name(first_record: int) -> str:
    """Return the file name of the segment that begins with a record."""
    return f"{first_record:020d}.log"


def index_name(first_record: int) -> str:
    """Return the file name of that segment's index."""
    return f"{first_record:020d}.idx"


def first_record_of(name: str, suffix: str) -> int | None:
    """Return the record that a file is named by, or None where it is none of ours."""
    stem, _, ending = name.partition(".")
    if ending != suffix or len(stem) != 20 or not (stem.isascii() and stem.isdigit()):
        return None
    return int(stem)


def encode_index(segment: SegmentIndex) -> bytes:
    """Return the content of the index file."""
    table: list[bytes] = []
    columns: list[bytes] = []
    for stream in segment.by_number.values():
        topic = stream.topic.encode()
        entries = stream.entries
        assert entries is not None
        row = _ROW.pack(
            stream.session, stream.number, stream.start, stream.stop, stream.frames,
            stream.messages, stream.bytes, stream.timestamp_ns_min,
            stream.timestamp_ns_max, stream.appended_ns_first, stream.appended_ns_last,
            stream.mark, len(stream.holes), len(topic),
        )  # fmt: skip
        count = len(entries.starts)
        holes = b"".join(_HOLE.pack(*hole) for hole in stream.holes)
        table += (row, topic, holes, count.to_bytes(4, "big"))
        parts = (entries.starts, entries.offsets[:count], entries.newest[:count])
        columns += map(_to_bytes, parts)
    rows, words = b"".join(table), b"".join(columns)
    header = _HEADER.pack(
        MAGIC, VERSION, segment.first_record, segment.records, segment.size, len(rows), len(words),
        crc32c(rows), crc32c(words), 0,
    )  # fmt: skip
    return header[:-4] + crc32c(header[:-4]).to_bytes(4, "big") + rows + words


def decode_index(data: bytes, first_record: int, *, with_entries: bool = False) -> SegmentIndex:
    """Return the index; raises `ValueError` with what is wrong."""
    if len(data) < _HEADER.size:
        raise ValueError(f"{len(data)} bytes are too few for an index")
    magic, version, first, records, size, rows, words, rows_crc, words_crc, crc = (
        _HEADER.unpack_from(data)
    )
    if magic != MAGIC:
        raise ValueError("it is not the index of a segment")
    if crc != crc32c(data[: _HEADER.size - 4]):
        raise ValueError("the index's header is damaged")
    if version != VERSION:
        raise ValueError(f"it has version {version}; this library knows {VERSION}")
    if first != first_record or len(data) != _HEADER.size + rows + words:
        raise ValueError("it belongs to another segment, or was cut")
    table = data[_HEADER.size : _HEADER.size + rows]
    if crc32c(table) != rows_crc:
        raise ValueError("the table's checksum is wrong")
    if crc32c(data[_HEADER.size + rows :]) != words_crc:
        raise ValueError("the entries' checksum is wrong")
    segment = SegmentIndex(first_record, size)
    segment.records = records
    segment.is_closed = True
    _decode_table(segment, table, data[_HEADER.size + rows :] if with_entries else None)
    return segment


def _decode_table(segment: SegmentIndex, table: bytes, words: bytes | None) -> None:
    at = word_at = 0
    while at < len(table):
        row = _ROW.unpack_from(table, at)
        at += _ROW.size
        topic = table[at : at + row[-1]].decode()
        at += row[-1]
        stream = segment.add_stream(row[0], topic, row[1])
        (stream.start, stream.stop, stream.frames, stream.messages, stream.bytes,
         stream.timestamp_ns_min, stream.timestamp_ns_max, stream.appended_ns_first,
         stream.appended_ns_last, stream.mark) = row[2:-2]  # fmt: skip
        stop = at + row[-2] * _HOLE.size
        stream.holes = [*_HOLE.iter_unpack(table[at:stop])]
        at = stop
        length = _WORD_BYTES * int.from_bytes(table[at : at + 4], "big")
        at += 4
        if words is None:
            stream.entries = None
        else:
            entries = stream.entries = Entries()
            for column in (entries.starts, entries.offsets, entries.newest):
                _extend(column, words[word_at : word_at + length])
                word_at += length


def _to_bytes(words: "array[int]") -> bytes:
    swapped = words[:]
    if sys.byteorder == "little":
        swapped.byteswap()
    return swapped.tobytes()


def _extend(words: "array[int]", data: bytes) -> None:
    words.frombytes(data)
    if sys.byteorder == "little":
        words.byteswap()
