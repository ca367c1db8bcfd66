"""The tail file: how the log's last writer left it, and what it had accepted and not written yet.

It is mapped into memory and shared with the kernel, so what is stored in it survives the death of
the process at no cost of a system call. A crash of the operating system may tear it: then only what
was written with the file is read.

::

    page 0   magic, boot id, slot size, state, session, the file's identity, a CRC32C of these six;
             the segment that was written last and how far, how many slots there are, see `Tail`
    slot 0   messages of one stream that were accepted and are in no frame yet, see `TailSlot`
    slot 1   …

All numbers are u64 in the machine's byte order: it is read on the machine that wrote it.

What is written once for a file or for a batch has a checksum. What is stored with each message has
none, which would cost more than the copy of the message: how far the messages go, and they
themselves. Damage there is known where the bytes are no msgpack values any more.
"""

import enum
import struct
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from mmap import mmap
from typing import Final, NamedTuple

from crc32c import crc32c

from recovery.log.store import LogStore

NAME: Final = "tail"
PAGE: Final = 4096
SLOTS_MAX: Final = 64
"""Streams whose messages may be gathered at a time; those of others are written one by one."""
_MAGIC: Final = int.from_bytes(b"p2ptail1", "big")
_U64: Final = struct.Struct("=Q")
_FIXED: Final = struct.Struct("=6Q")
_NUMBERS: Final = struct.Struct("=10Q")
_MAGIC_AT, _BOOT_AT, _SLOT_BYTES_AT, _STATE_AT, _SESSION_AT, _IDENTITY_AT = range(6)
_CHECKSUM_AT, _SEGMENT_AT, _SIZE_AT, _SLOTS_AT = range(6, 10)
_END, _COLUMNS, _SESSION, _FIRST, _BASE_NS, _ORIGIN, _TOPIC_BYTES, _CHECKSUM = range(8)
_STREAM_AT: Final = 8 * _SESSION
"""Of a slot's last page: where it begins to say whose messages these are, with a checksum."""
_TOPIC_AT: Final = 64
_TOPIC_BYTES_MAX: Final = 1024


class State(enum.IntEnum):
    """What a writer does with the log, or has done."""

    OPEN = 1
    SYNCED = 2
    """As `OPEN`; what is not on the disk was not sent."""
    CLOSED = 3
    """Everything is on the disk, and each segment has its index."""
    GIVEN_UP = 4
    """Messages were sent that are in no log: nobody goes on in its session."""


class TailHead(NamedTuple):
    """What page 0 says."""

    state: State
    session: int
    """Of the log's own streams."""
    is_of_this_boot: bool
    """Whether the system has not been started again since."""
    is_copy: bool
    """Whether it is in another file than it was written to."""
    gathered_max: int
    """How many messages of a stream may be in the slots."""
    end: tuple[int, int] | None
    """The segment that was written last and how far; None: that is not known."""


class TailSlot:
    """Messages of one stream, on their way into one frame.

    Their values stand one after the other in `memory`, from where the writer chose. Columns (what a
    message has in addition to its value) follow where values cannot come, and the last page has the
    numbers. What counts is what the first of them covers: it is stored last.

    Attributes:
        memory: the slot.
        header: its last page as numbers. `header[0]`, where the values end that count, is stored
            after each message; 0: the slot is free. `header[1]`: how many bytes of columns there
            are.
        bytes_max: where values end at the latest, and how many bytes of columns there is space for.

    """

    __slots__ = ("bytes_max", "header", "memory", "number")

    def __init__(self, number: int, memory: mmap) -> None:
        self.number = number
        self.memory = memory
        self.header = memoryview(memory)[-PAGE:].cast("Q")
        self.bytes_max = (len(memory) - PAGE) // 2

    def begin(self, session: int, topic: bytes, first: int, base_ns: int, origin: int) -> None:
        """Begin to gather messages of a stream, whose topic has at most 1024 bytes.

        `first` is the sequence of the first message, `base_ns` the time of messages that are given
        none, in ns since the epoch, and `origin` where in `memory` the first value goes, from 1 on.
        """
        header = self.header
        header[_END] = header[_COLUMNS] = 0
        header[_SESSION], header[_FIRST], header[_ORIGIN] = session, first, origin
        header[_BASE_NS] = base_ns % 2**64
        header[_TOPIC_BYTES] = len(topic)
        at = len(self.memory) - PAGE + _TOPIC_AT
        self.memory[at : at + len(topic)] = topic
        header[_CHECKSUM] = self.checksum(topic)
        header[_END] = origin

    def checksum(self, topic: bytes) -> int:
        """Return the CRC32C of whose messages the slot has, as far as it is written once."""
        at = len(self.memory) - PAGE
        numbers = self.memory[at + _STREAM_AT : at + 8 * _CHECKSUM]
        return int(crc32c(topic, crc32c(numbers)))

    def add_columns(self, data: bytes) -> bool:
        """Add what a message has in addition to its value; False where there is no space."""
        size = self.header[_COLUMNS]
        if size + len(data) > self.bytes_max:
            return False
        at = self.bytes_max + size
        self.memory[at : at + len(data)] = data
        self.header[_COLUMNS] = size + len(data)
        return True


class TailContent:
    """What a process that died had accepted of one stream, and had in no frame yet.

    Attributes:
        session, topic: of the stream.
        first: the sequence of the first message.
        base_ns: the time of messages that were given none, in ns since the epoch.
        values: one after the other, as they were packed.
        columns: records of what messages had in addition, the same way; perhaps some of messages
            that are not in `values`.

    """

    __slots__ = ("base_ns", "columns", "first", "session", "topic", "values")

    def __init__(self, slot: TailSlot) -> None:
        header, memory, space = slot.header, slot.memory, slot.bytes_max
        columns_bytes, topic_bytes = header[_COLUMNS], header[_TOPIC_BYTES]
        origin, end = header[_ORIGIN], header[_END]
        is_good = 0 < origin <= end <= space and 0 < topic_bytes <= _TOPIC_BYTES_MAX
        if not is_good or columns_bytes > space:
            raise ValueError(f"slot {slot.number} is damaged")
        self.session, self.first = header[_SESSION], header[_FIRST]
        base_ns = header[_BASE_NS]
        self.base_ns = base_ns - 2**64 if base_ns >= 2**63 else base_ns
        at = len(memory) - PAGE + _TOPIC_AT
        topic = memory[at : at + topic_bytes]
        if header[_CHECKSUM] != slot.checksum(topic):
            raise ValueError(f"slot {slot.number} is damaged: its checksum is wrong")
        self.topic = topic.decode()
        self.values = memory[origin:end]
        self.columns = memory[space : space + columns_bytes]


class Tail:
    """The tail file of a log's writer.

    Args:
        store: the log's files.
        slot_bytes: the size of a slot's values, as of its columns. 0: no messages are gathered.
        session: of the log's own streams.
        state: `OPEN` or `SYNCED`.

    """

    def __init__(
        self, store: LogStore, slot_bytes: int = 0, session: int = 0, state: State = State.OPEN
    ) -> None:
        self._store = store
        self._size = 0 if not slot_bytes else PAGE + 2 * _whole_pages(slot_bytes)
        self._free: list[TailSlot] = []
        self._slots: list[TailSlot] = []
        write_tail(store, session, state, self._size)
        self._map = store.map(NAME, 0, PAGE)
        self._header = memoryview(self._map).cast("Q")

    def on_end(self, segment: int, size: int) -> None:
        """Note how far the newest segment was written, so that one that is cut is noticed.

        `segment` is the number of its first record, and `size` in bytes.
        """
        header = self._header
        if header[_SEGMENT_AT] != segment:
            header[_SIZE_AT] = 0  # at no moment the size of another one
            header[_SEGMENT_AT] = segment
        header[_SIZE_AT] = size

    def take(self) -> TailSlot | None:
        """Return a free slot; None where there is none, or no space for one on the disk."""
        if self._free:
            return self._free.pop()
        number = len(self._slots)
        if number >= SLOTS_MAX or not self._size:
            return None
        try:
            memory = self._store.map(NAME, PAGE + number * self._size, self._size)
        except OSError:
            return None  # messages are written one by one for now, and it is tried again
        slot = TailSlot(number, memory)
        self._slots.append(slot)
        self._header[_SLOTS_AT] = len(self._slots)
        return slot

    def give_back(self, slot: TailSlot) -> None:
        """Free a slot, and keep it for another stream."""
        slot.header[_END] = 0
        self._free.append(slot)

    def give_up(self) -> None:
        """Say that nobody is to go on in the session; where the disk takes nothing, in memory."""
        fixed = bytearray(self._map[: _FIXED.size])
        fixed[8 * _STATE_AT : 8 * _STATE_AT + 8] = _U64.pack(State.GIVEN_UP)
        self._header[_STATE_AT], self._header[_CHECKSUM_AT] = State.GIVEN_UP, crc32c(bytes(fixed))
        with suppress(OSError):
            write_tail(self._store, self._header[_SESSION_AT], State.GIVEN_UP)

    def resync(self, used: Collection[TailSlot]) -> None:
        """Free all but the slots that are in `used`, after an exception at any line."""
        self._free.clear()
        for slot in self._slots:
            if slot not in used:
                self.give_back(slot)


def write_tail(
    store: LogStore,
    session: int,
    state: State,
    size: int = 0,
    end: tuple[int, int] = (0, 0),
    *,
    is_copy: bool = False,
) -> None:
    """Put a tail file in the place of another one; raises `OSError`.

    Args:
        store: the log's files.
        session: of the log's own streams.
        state: how the log is.
        size: of a slot, in bytes.
        end: the segment that was written last and how far.
        is_copy: whether it is to stay the copy of another one.

    """

    def encode(identity: str) -> bytes:
        number = 0 if is_copy else crc32c(identity.encode())
        fixed = _FIXED.pack(_MAGIC, _boot_number(store), size, state, session, number)
        numbers = _NUMBERS.pack(*_FIXED.unpack(fixed), crc32c(fixed), *end, 0)
        return numbers.ljust(PAGE, b"\0")

    store.replace(NAME, encode, durable=True)


def read_head(store: LogStore) -> TailHead | None:
    """Return what page 0 says, or None where there is no file.

    Raises:
        ValueError: it is damaged.

    """
    data = store.read(NAME)
    if data is None:
        return None
    numbers = _numbers(data)
    size, identity = numbers[_SLOT_BYTES_AT], crc32c(store.identity(NAME).encode())
    is_of_this_boot = numbers[_BOOT_AT] == _boot_number(store)
    has_end = numbers[_SIZE_AT] and (is_of_this_boot or numbers[_STATE_AT] == State.CLOSED)
    return TailHead(
        state=State(numbers[_STATE_AT]),
        session=numbers[_SESSION_AT],
        is_of_this_boot=is_of_this_boot,
        is_copy=numbers[_IDENTITY_AT] != identity,
        gathered_max=(size - PAGE) // 2 + 1 if size else 0,  # a message has a byte
        end=(numbers[_SEGMENT_AT], numbers[_SIZE_AT]) if has_end else None,
    )


def known_head(store: LogStore) -> TailHead | None:
    """Do as `read_head`; None where it is damaged, too, which `verify` reports."""
    try:
        return read_head(store)
    except ValueError:
        return None


def read_slots(store: LogStore) -> Iterator[TailContent]:
    """Yield what a process that died had accepted, and had in no frame yet.

    Raises:
        ValueError: a slot is damaged, which the death of a process does not do.

    """
    return _contents_of(_taken_slots(store, store.read(NAME)))


def _contents_of(slots: Iterator[tuple[int, bytes]]) -> Iterator[TailContent]:
    for number, data in slots:
        memory = mmap(-1, len(data))
        memory[:] = data
        yield TailContent(TailSlot(number, memory))


def find_damage(
    store: LogStore, check: Callable[[TailContent], object] | None = None
) -> str | None:
    """Return what is wrong with the messages there, or None; a process may be writing them.

    `check` is called with what there is of each stream, and raises `ValueError` where these are no
    messages. Default: they are not looked at.
    """
    data = store.read(NAME)
    if data is None:
        return "it is missing, and may have had messages that were accepted"
    try:
        for content in _contents_of(_taken_slots(store, data)):
            if check is not None:
                _check(content, check)
    except ValueError as error:
        return str(error) if store.read(NAME) == data else None
    return None


def _check(content: TailContent, check: Callable[[TailContent], object]) -> None:
    try:
        check(content)
    except ValueError as error:
        raise ValueError(f"the messages of {content.topic!r} are damaged: {error}") from error


def _taken_slots(store: LogStore, data: bytes | None) -> Iterator[tuple[int, bytes]]:
    numbers = None if data is None else _numbers(data)
    if data is None or numbers is None or numbers[_BOOT_AT] != _boot_number(store):
        return  # what a crash of the system may have torn is not read
    size = numbers[_SLOT_BYTES_AT]
    if not size:
        return
    if len(data) < PAGE + size * numbers[_SLOTS_AT]:
        what = f"it says that it has {numbers[_SLOTS_AT]} slots of {size} bytes"
        raise ValueError(f"{what}, and has {len(data)} bytes in all")
    for number, at in enumerate(range(PAGE, len(data) - size + 1, size)):
        if _U64.unpack_from(data, at + size - PAGE)[0]:
            yield number, data[at : at + size]


def _numbers(data: bytes) -> tuple[int, ...]:
    """Return page 0."""
    if len(data) < PAGE:
        raise ValueError(f"it has {len(data)} bytes, which are too few")
    numbers = _NUMBERS.unpack_from(data)
    if numbers[_MAGIC_AT] != _MAGIC:
        raise ValueError("it is no tail of a log")
    if numbers[_CHECKSUM_AT] != crc32c(data[: _FIXED.size]):
        raise ValueError("its first page is damaged")
    return numbers


def _boot_number(store: LogStore) -> int:
    return crc32c(store.boot_id().encode())


def _whole_pages(byte_count: int) -> int:
    return -(-byte_count // PAGE) * PAGE
