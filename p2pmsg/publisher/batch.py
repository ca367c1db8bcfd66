"""Open batches: messages of one stream each, on their way into one frame."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from p2pmsg import codec
from p2pmsg.errors import MessageError
from p2pmsg.native import seal_frame
from p2pmsg.publisher.packing import (
    PACKING_ERRORS,
    check_key,
    check_size,
    check_timestamp,
    pack_columns,
    pack_headers,
    padded,
    start_frame,
)
from p2pmsg.wire import REST, encoder

if TYPE_CHECKING:
    from recovery.log import TailSlot

_FIRST_LOOK_BYTES: Final = 8
_LOOKS: Final = 8
"""The next look at a batch is never closer than when it has an eighth more: each costs 8 µs."""
PACE_MAX: Final = 2**31
"""As a pace: the clock is not looked at before the batch is full."""
_BUFFERS_MAX: Final = 8
_SLOT_END, _SLOT_COLUMNS = 0, 1
_encode_into: Final = encoder.encode_into


class Batch:
    """Messages packed one after the other, ready to become a frame.

    A message is in when `end` and `next` say so: they are set one after the other with no call in
    between, so an interrupt (Ctrl-C) leaves at most something that `repair` can cut off.

    With a `slot` of a log's tail file a message outlives the process from the moment it is in: its
    value is there, and `buffer` gets it when the batch is sealed. The slot's `header[0]`, which
    says where values end, is stored last.

    Attributes:
        buffer: the frame so far: topic, zero byte, space for the header, values.
        end: where in `buffer` the last message ends.
        first: the first message's sequence.
        next: the sequence after the last one's.
        limit: when `buffer` has so many bytes the batch is full, or it is to be looked whether it
            has lingered. What the columns will take at most has been taken off.
        beyond: how many more bytes there are until it is full.
        opened_ns: when, by the monotonic clock; the linger counts from here.
        own_ns: the same in the program's own time: see `Gathering`.
        encode_into: packs a value that nobody has looked at, as a codec's encoder does.
        slot: where its values are meanwhile, at the places that they will have in `buffer`; or
            None.

    """

    __slots__ = (
        "_begin", "_body_at", "_columns", "_headers", "_keys", "_last_columns", "_scratch",
        "_slot_columns", "_timestamps", "base_timestamp_ns", "beyond", "buffer", "encode_into",
        "end", "first", "limit", "next", "opened_ns", "own_ns", "slot",
    )  # fmt: skip

    def __init__(
        self,
        prefix: bytes,
        sequence: int,
        timestamp_ns: int,
        now_ns: int,
        frame_bytes: int,
        buffer: bytearray,
        pace: int = PACE_MAX,
        encode_into: Callable[..., None] = _encode_into,
        slot: "TailSlot | None" = None,
    ) -> None:
        """Begin; `pace` is that of the stream's batch before. Default: only the full one is due."""
        self.encode_into, self.slot = encode_into, slot
        self._scratch = bytearray()
        self._body_at = len(prefix) + REST.size
        self.buffer = buffer
        self.end = start_frame(buffer, prefix)
        self.first = self.next = sequence
        self.base_timestamp_ns = timestamp_ns
        self.opened_ns = self.own_ns = now_ns
        self._begin = self.end
        first_check = pace if 2 * pace >= frame_bytes else pace // 2
        self.limit = min(frame_bytes, self.end + max(first_check, _FIRST_LOOK_BYTES))
        self.beyond = frame_bytes - self.limit
        self._columns = self._last_columns = self._slot_columns = 0
        self._timestamps: list[int] | None = None
        self._keys: list[str | None] | None = None
        self._headers: list[codec.Raw | None] | None = None

    @property
    def count(self) -> int:
        """How many messages are in."""
        return self.next - self.first

    @property
    def full_bytes(self) -> int:
        """The batch is full when `buffer` has so many bytes; 0 or less: it is sealed, or to be."""
        return self.limit + self.beyond

    @property
    def pace(self) -> int:
        """How many bytes of values and of columns there are."""
        return self.end - self._begin + self._columns

    def check_again(self, share: float) -> bool:
        """Go on at the limit, up to the next one: so much as there is, times `share`; False: full.

        Args:
            share: up to 1.

        """
        full, size, pace = self.full_bytes, self.end, self.pace
        if size >= full:
            return False
        step = max(int(pace * share), pace // _LOOKS, _FIRST_LOOK_BYTES)
        limit = min(full, size + step)
        self.limit, self.beyond = limit, full - limit
        return True

    def put(
        self, value: Any, key: Any, timestamp_ns: Any, headers: Any, bytes_max: int | None = None
    ) -> int:
        """Add a message and return its sequence; -1 where it was not added.

        An exception at any step leaves what `repair` cuts off.

        Args:
            value: of the message.
            key: of the message, or None.
            timestamp_ns: of the message, or None.
            headers: of the message, or None.
            bytes_max: how large it may be, packed, whatever the `limit`; `value` is prepared.
                -1 means then that the slot has no space for it. Default: it is added
                where it fits below `limit`, and can be packed as it is; else the core is to look.

        Raises:
            MessageError: the message cannot be published; one of `PACKING_ERRORS`, with
                `bytes_max`: its value cannot.

        """
        begin, slot, extra = self.end, self.slot, 0
        encode_into = self.encode_into if bytes_max is None else _encode_into
        try:
            if slot is None:
                encode_into(value, self.buffer, -1)
                size = len(self.buffer)
            else:
                packed = self._scratch
                encode_into(value, packed)  # saying where, 0, would take a tenth of the call
                size = begin + len(packed)
        except PACKING_ERRORS:
            self.repair()
            if bytes_max is None:
                return -1
            raise
        if key is not None or timestamp_ns is not None or headers is not None:
            try:
                extra = self._add_columns(key, timestamp_ns, headers)
            except MessageError:
                self.repair()
                raise
        if bytes_max is None:
            if size >= self.limit or extra < 0:
                self.repair()
                return -1
        elif not self._has_space(size, extra, bytes_max):
            self.repair()
            return -1
        sequence = self.next
        if slot is not None:
            slot.memory[begin:size] = packed
            slot.header[_SLOT_END] = size
        self.end, self.next = size, sequence + 1
        if extra and slot is not None:
            self._slot_columns = slot.header[_SLOT_COLUMNS]
        return sequence

    def _has_space(self, size: int, extra: int, bytes_max: int) -> bool:
        """Whether the slot has space up to `size`; `MessageTooLargeError` for a large message."""
        if size - self.end + extra > bytes_max:
            self.repair()
            check_size("message", size - self.end + extra, bytes_max)
        return extra >= 0 and (self.slot is None or size <= self.slot.bytes_max)

    def take_back(self, end: int) -> None:
        """Take out the message that was added last, from `end` on; the batch takes none any more.

        So what a slot has of its columns is of no message.
        """
        self.beyond = self.limit = 0
        self.end, self.next = end, self.next - 1
        self.repair()

    def _add_columns(self, key: Any, timestamp_ns: Any, headers: Any) -> int:
        """Add what a message has besides its value; return its bytes, -1: the slot is full."""
        count = self.next - self.first
        self._last_columns = extra = 0
        if key is not None:
            if type(key) is not str or not key.isascii():
                check_key(key)
            keys = self._keys
            if keys is None or len(keys) != count:
                keys = self._keys = padded(keys, count, None)
            keys.append(key)
            extra = 5 + 4 * len(key)
        if timestamp_ns is not None:
            check_timestamp(timestamp_ns)
            column = self._timestamps
            if column is None or len(column) != count:
                column = self._timestamps = padded(column, count, 0)
            column.append(timestamp_ns - self.base_timestamp_ns)
            extra += 9
        if headers is not None:
            headers = pack_headers(headers)
            self._headers = packs = padded(self._headers, count, None)
            packs.append(headers)
            extra += memoryview(headers).nbytes
        self._last_columns = extra
        self._columns += extra
        self.limit -= extra
        if self.slot is not None:
            record = encoder.encode((count, key, timestamp_ns, headers))
            return extra if self.slot.add_columns(record) else -1
        return extra

    def repair(self) -> None:
        """Cut off what belongs to no accepted message."""
        count = self.next - self.first
        del self.buffer[self.end if self.slot is None else self._begin :]
        cut = 0
        for column in (self._timestamps, self._keys, self._headers):
            if column is not None and len(column) > count:
                cut = self._last_columns
                del column[count:]
        self._last_columns = 0
        if cut and self.full_bytes:  # of one that is sealed it stays as it is
            self._columns -= cut
            self.limit += cut
        if self.slot is not None:
            header = self.slot.header
            header[_SLOT_END] = min(header[_SLOT_END], self.end)
            header[_SLOT_COLUMNS] = self._slot_columns

    def seal(self) -> tuple[bytearray, int]:
        """Make `buffer` a frame; return it, and its latest timestamp. It may be called again.

        A slot keeps the messages until it is freed.
        """
        self.repair()
        if self.slot is not None:
            with memoryview(self.slot.memory)[self._begin : self.end] as values:
                self.buffer += values
        base_ns, count = self.base_timestamp_ns, self.count
        columns, latest = pack_columns(count, self._timestamps, self._keys, self._headers)
        seal_frame(self.buffer, self._body_at, self.first, base_ns, count, columns)
        return self.buffer, base_ns + latest


class OpenBatches(dict[str, Batch]):
    """The batch of each stream that gathers one.

    Attributes:
        topic: whose was begun last, None once it is sealed: who publishes to one topic is spared
            looking it up, a tenth of the time.
        batch: that one.

    """

    __slots__ = ("batch", "topic")

    def __init__(self) -> None:
        super().__init__()
        self.topic: str | None = None
        self.batch: Batch | None = None

    def __setitem__(self, topic: str, batch: Batch) -> None:
        super().__setitem__(topic, batch)
        self.batch, self.topic = batch, topic

    def __delitem__(self, topic: str) -> None:
        if topic == self.topic:
            self.topic = self.batch = None
        super().__delitem__(topic)

    def clear(self) -> None:
        """Forget all."""
        self.topic = self.batch = None
        super().clear()


class BufferPool:
    """A few warm buffers of a frame's size; more streams than there are make new ones.

    Args:
        bytes_max: a buffer that had to grow further is let go.

    """

    __slots__ = ("_buffers", "_bytes_max")

    def __init__(self, bytes_max: int) -> None:
        self._buffers: list[bytearray] = []
        self._bytes_max = bytes_max

    def take(self) -> bytearray:
        """Return a buffer, which may have anything in it."""
        buffers = self._buffers
        return buffers.pop() if buffers else bytearray()

    def give_back(self, buffer: bytearray) -> None:
        """Keep a buffer that nobody uses any more."""
        if len(self._buffers) < _BUFFERS_MAX and len(buffer) <= self._bytes_max:
            self._buffers.append(buffer)
