"""The ends file: up to where a relay had the streams of other sessions.

Where the log's own streams go on, its marks and its state say. Of others' streams only the segments
do; so when one comes back shorter, nobody would know. The file is mapped into memory: noting an
end is one store, and survives the death of the process. After a crash of the operating system, and
in a copy, an end may be an older one, which says less, and nothing false.

::

    page      12 records of 320 bytes, then the magic in the last 8 bytes
    record    u64 end, first, segment, session; u32 length of the topic, u32 CRC32C; the topic

`segment` is the newest one that the stream is in, by its first record, and `first` where the stream
begins there: what retention deleted is not taken for lost. The CRC is of session and topic. All
numbers are in the machine's byte order.
"""

import sys
from collections.abc import Iterator
from mmap import mmap
from typing import Final, NamedTuple

from crc32c import crc32c

from recovery.log.catalog import Catalog
from recovery.log.index import Key
from recovery.log.store import LogStore

NAME: Final = "ends"
PAGE: Final = 4096
RECORD_BYTES: Final = 320
TOPIC_BYTES_MAX: Final = RECORD_BYTES - 40
"""The ends of streams with longer topics are not noted; those of messages have 255 at most."""
_PER_PAGE: Final = PAGE // RECORD_BYTES
_MAGIC: Final = int.from_bytes(b"p2pends1", "big")
_PAGE_WORDS: Final = PAGE // 8
_END, _FIRST, _SEGMENT, _SESSION, _CHECK = range(5)
_TOPIC_AT: Final = 40


class End(NamedTuple):
    """Up to where a relay had a stream, and where it began in the newest segment that has it."""

    end: int
    first: int
    segment: int


class _Record:
    """The place of one stream."""

    __slots__ = ("_at", "_memory", "_words")

    def __init__(self, memory: mmap, words: memoryview, at: int) -> None:
        self._memory = memory
        self._words = words
        self._at = at // 8

    @property
    def cell(self) -> memoryview:
        """Where the end is stored, at 0."""
        return self._words[self._at : self._at + 1]

    def key(self) -> Key | None:
        """Return whose it is, or None where it is free, or half written."""
        session, check = self._words[self._at + _SESSION], self._words[self._at + _CHECK]
        at = self._at * 8 + _TOPIC_AT
        topic = self._memory[at : at + min(check & 0xFFFFFFFF, TOPIC_BYTES_MAX)]
        if not topic or check != _check(session, topic):
            return None
        try:
            return session, topic.decode()
        except UnicodeDecodeError:
            return None

    def read(self) -> End:
        """Return what is noted."""
        words, at = self._words, self._at
        return End(words[at + _END], words[at + _FIRST], words[at + _SEGMENT])

    def begin(self, segment: int, first: int) -> None:
        """Note the newest segment; a process that dies in between leaves nothing false."""
        self._words[self._at + _FIRST] = first
        self._words[self._at + _SEGMENT] = segment

    def take(self, session: int, topic: bytes) -> None:
        """Give it to a stream; what makes it one is stored last."""
        self.free()
        words, at = self._words, self._at
        words[at + _FIRST] = words[at + _SEGMENT] = 0
        words[at + _SESSION] = session
        topic_at = at * 8 + _TOPIC_AT
        self._memory[topic_at : topic_at + len(topic)] = topic
        words[at + _CHECK] = _check(session, topic)

    def free(self) -> None:
        """Take it from its stream."""
        self._words[self._at + _CHECK] = 0
        self._words[self._at + _END] = 0


class Ends:
    """The ends of others' streams in a log; the file comes with the first of them.

    Args:
        store: the log's files; this is their writer.

    Attributes:
        refused: how often a stream's end could not be noted, for lack of space on the disk.

    """

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self._records: dict[Key, _Record] = {}
        self._free: list[_Record] = []
        self._bytes = 0
        self.refused = 0
        data = store.read(NAME)
        if data is not None and len(data) >= PAGE:
            self._map(len(data) // PAGE * PAGE)

    def __iter__(self) -> Iterator[tuple[Key, End]]:
        return iter([(key, record.read()) for key, record in self._records.items()])

    def cell(self, key: Key) -> memoryview | None:
        """Return where a stream's end is stored, at 0; None where nothing can be noted."""
        record = self._record(key)
        return None if record is None else record.cell

    def begin(self, key: Key, segment: int, first: int) -> None:
        """Note the newest segment that a stream is in, and the stream's first sequence there."""
        record = self._record(key)
        if record is not None:
            record.begin(segment, first)

    def forget(self, key: Key) -> None:
        """Forget a stream, whose cell is stored to no more."""
        record = self._records.pop(key, None)
        if record is not None:
            record.free()
            self._free.append(record)

    def _record(self, key: Key) -> _Record | None:
        record = self._records.get(key)
        if record is not None:
            return record
        topic = key[1].encode()
        if len(topic) > TOPIC_BYTES_MAX:
            return None
        if not self._free:
            try:
                self._map(max(PAGE, self._bytes))  # each mapping has a descriptor
            except OSError:
                self.refused += 1
                return None
        record = self._records[key] = self._free.pop()
        record.take(key[0], topic)
        return record

    def _map(self, byte_count: int) -> None:
        memory = self._store.map(NAME, self._bytes, byte_count)
        self._bytes += byte_count
        words = memoryview(memory).cast("Q")
        for page in reversed(range(byte_count // PAGE)):  # the first ones are taken first
            magic_at = (page + 1) * _PAGE_WORDS - 1
            is_good = words[magic_at] == _MAGIC
            for index in reversed(range(_PER_PAGE)):
                record = _Record(memory, words, page * PAGE + index * RECORD_BYTES)
                key = record.key() if is_good else None
                if key is None or key in self._records:
                    record.free()
                    self._free.append(record)
                else:
                    self._records[key] = record
            words[magic_at] = _MAGIC


def take_cut(ends: Ends, catalog: Catalog, following: dict[Key, int]) -> dict[Key, tuple[int, int]]:
    """Return what had been appended of others' streams and is gone from the end of the log.

    Such streams go on right there (`following`). What retention has deleted all of is forgotten:
    the segment that had it last is older than all that are kept.
    """
    oldest = catalog.segments[0].first_record if catalog.segments else 0
    cut = {}
    for key, known in ends:
        if known.segment < oldest:
            ends.forget(key)
            continue
        start = following.get(key) or known.first
        if start < known.end:
            cut[key] = (start, known.end)
            following[key] = start
            for segment in catalog.of_stream(key)[-1:]:
                stream = segment.streams[key]
                if not stream.frames:  # its name is left, and nothing else
                    stream.start = stream.stop = start
    return cut


def _check(session: int, topic: bytes) -> int:
    """Return the length of a topic, and above it the CRC of all that identifies a stream."""
    return len(topic) | crc32c(session.to_bytes(8, sys.byteorder) + topic) << 32
