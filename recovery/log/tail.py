"""The tail file: what must outlive a killed process, and is in no segment.

It is mapped into memory and shared with the kernel, so what is stored in it survives the death of
the process at no cost of a system call. A crash of the operating system may tear it; then it is not
read.

::

    page 0   magic, boot id, slot size, a CRC32C of these three, the segment that was written last
             and how far, how many slots there are, see `Tail`
    slot 0   messages of one stream that were accepted and are in no frame yet, see `TailSlot`
    slot 1   …

All numbers are u64 in the machine's byte order: it is read on the machine that wrote it.

What is written once for a file or for a batch has a checksum. What is stored with each message has
none, which would cost more than the copy of the message: how far the messages go, and they
themselves. Damage there is known where the bytes are no msgpack values any more.
"""

import struct
from collections.abc import Callable, Collection, Iterator
from mmap import mmap
from typing import Final

from crc32c import crc32c

from recovery.log import state as state_file
from recovery.log.store import LogStore

NAME: Final = "tail"
PAGE: Final = 4096
SLOTS_MAX: Final = 64
"""Streams whose messages may be gathered at a time; those of others are written one by one."""
_MAGIC: Final = int.from_bytes(b"p2ptail1", "big")
_U64: Final = struct.Struct("=Q")
_FIXED: Final = struct.Struct("=3Q")
_NUMBERS: Final = struct.Struct("=7Q")
_MAGIC_AT, _BOOT_AT, _SLOT_BYTES_AT, _CHECKSUM_AT, _SEGMENT_AT, _SIZE_AT, _SLOTS_AT = range(7)
_END, _COLUMNS, _SESSION, _FIRST, _BASE_NS, _ORIGIN, _TOPIC_BYTES, _CHECKSUM = range(8)
_STREAM_AT: Final = 8 * _SESSION
"""Of a slot's last page: where it begins to say whose messages these are, with a checksum."""
_TOPIC_AT: Final = 64
_TOPIC_BYTES_MAX: Final = 1024


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

    """

    def __init__(self, store: LogStore, slot_bytes: int = 0) -> None:
        self._store = store
        self._size = 0 if not slot_bytes else PAGE + 2 * _whole_pages(slot_bytes)
        self._free: list[TailSlot] = []
        self._slots: list[TailSlot] = []
        make_tail(store, self._size)
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

    def resync(self, used: Collection[TailSlot]) -> None:
        """Free all but the slots that are in `used`, after an exception at any line."""
        self._free.clear()
        for slot in self._slots:
            if slot not in used:
                self.give_back(slot)

    def remove(self) -> None:
        """Delete the file: the log is closed, and everything is in a segment."""
        self._store.remove(NAME)


def make_tail(store: LogStore, size: int = 0) -> None:
    """Begin a tail file in the place of another one; `size` of a slot in bytes."""
    fixed = _FIXED.pack(_MAGIC, _boot_number(store), size)
    numbers = _NUMBERS.pack(*_FIXED.unpack(fixed), crc32c(fixed), 0, 0, 0)
    store.replace(NAME, numbers.ljust(PAGE, b"\0"), durable=False)


def read_end(store: LogStore) -> tuple[int, int] | None:
    """Return the segment that was written last and how far, or None where nothing says so.

    Raises:
        ValueError: it is damaged.

    """
    numbers = _numbers(store, store.read(NAME))
    if numbers is None or not numbers[_SIZE_AT]:
        return None
    return numbers[_SEGMENT_AT], numbers[_SIZE_AT]


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


def holds_messages(store: LogStore) -> bool:
    """Whether a process that died has left a message there, damaged or not."""
    try:
        return any(True for _ in _taken_slots(store, store.read(NAME)))
    except ValueError:
        return True


def find_damage(
    store: LogStore, check: Callable[[TailContent], object] | None = None
) -> str | None:
    """Return what is wrong with the messages there, or None; a process may be writing them.

    `check` is called with what there is of each stream, and raises `ValueError` where these are no
    messages. Default: they are not looked at. A file that is missing is damage where a process that
    was killed may have left messages in it.
    """
    data = store.read(NAME)
    try:
        if data is None:
            _require_none(store.read(state_file.NAME))
        for content in _contents_of(_taken_slots(store, data)):
            if check is not None:
                _check(content, check)
    except ValueError as error:
        return str(error) if store.read(NAME) == data else None
    return None


def _require_none(data: bytes | None) -> None:
    """Raise `ValueError` where the log's state says that there are messages in the file."""
    try:
        state = None if data is None else state_file.decode_state(data)
    except ValueError:
        return  # it is not known, and the state is reported
    if state is not None and not state.clean and state.in_tail:
        raise ValueError("it is missing, and may have had messages that were accepted")


def _check(content: TailContent, check: Callable[[TailContent], object]) -> None:
    try:
        check(content)
    except ValueError as error:
        raise ValueError(f"the messages of {content.topic!r} are damaged: {error}") from error


def _taken_slots(store: LogStore, data: bytes | None) -> Iterator[tuple[int, bytes]]:
    numbers = _numbers(store, data)
    if data is None or numbers is None or not numbers[_SLOT_BYTES_AT]:
        return
    size = numbers[_SLOT_BYTES_AT]
    for number, at in enumerate(range(PAGE, len(data) - size + 1, size)):
        if _U64.unpack_from(data, at + size - PAGE)[0]:
            yield number, data[at : at + size]


def _numbers(store: LogStore, data: bytes | None) -> tuple[int, ...] | None:
    """Return page 0, or None where there is none that this start of the system has written."""
    if data is None:
        return None
    if len(data) < PAGE:
        raise ValueError(f"it has {len(data)} bytes, which are too few")
    numbers = _NUMBERS.unpack_from(data)
    if numbers[_MAGIC_AT] != _MAGIC:
        raise ValueError("it is no tail of a log")
    if numbers[_CHECKSUM_AT] != crc32c(data[: _FIXED.size]):
        raise ValueError("its first page is damaged")
    if numbers[_BOOT_AT] != _boot_number(store):
        return None
    size = numbers[_SLOT_BYTES_AT]
    if size % PAGE or 0 < size <= PAGE or len(data) < PAGE + size * numbers[_SLOTS_AT]:
        what = f"it says that it has {numbers[_SLOTS_AT]} slots of {size} bytes"
        raise ValueError(f"{what}, and has {len(data)} bytes in all")
    return numbers


def _boot_number(store: LogStore) -> int:
    return crc32c(store.boot_id().encode())


def _whole_pages(byte_count: int) -> int:
    return -(-byte_count // PAGE) * PAGE
