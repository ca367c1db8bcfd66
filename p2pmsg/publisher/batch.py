"""Open batches: messages of one stream each, on their way into one frame."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from p2pmsg import codec
from p2pmsg.errors import MessageError, MessageTooLargeError, P2PError
from p2pmsg.wire import ARRAY4, NO_COLUMNS, REST, encoder, values_header
from recovery import PartedFrame

if TYPE_CHECKING:
    from recovery.log import TailSlot

_NIL: Final = b"\xc0"
_LARGE_BYTES: Final = 4 * 1024
_FIRST_LOOK_BYTES: Final = 8
_LOOKS: Final = 8
"""The next look at a batch is never closer than when it has an eighth more: each costs 8 µs."""
PACE_MAX: Final = 2**31
"""As a pace: the clock is not looked at before the batch is full."""
_VALUES_HEADER_BYTES: Final = 6
_LEAD_BIN32: Final = b"\x94\x91\xc6"
_LEADS: Final = tuple(bytes((ARRAY4, 0x91, 0xC4, length)) for length in range(256))
_TIMESTAMP_MAX: Final = 2**62
_TIMESTAMP_MIN: Final = -(2**62)
"""Up to the year 2116; the difference of two such times fits in 64 bits."""
_BUFFERS_MAX: Final = 8
_SLOT_END, _SLOT_COLUMNS = 0, 1
_NO_SCRATCH: Final = bytearray()
_encode_into: Final = encoder.encode_into
_TEXT: Final = frozenset((str,))
_PLAIN: Final = frozenset((type(None), bool, int, float, str, bytes))
_COLUMNS_BYTES: Final = 64
"""What a message's columns take at most, without a key and headers."""
_KEY_BYTES: Final = 4
"""What is allowed for a character of a key."""
PACKING_ERRORS: Final = (TypeError, ValueError, OverflowError, RecursionError, BufferError)


def packing_error(field: str, value: Any, error: Exception) -> MessageError:
    """Return what to raise where msgpack cannot express `value`; it names the path to the part."""
    path = codec.path_of_refused(value, field)
    kind = f"of type {type(value).__name__} " if path == field else ""
    return MessageError(path, f"{kind}cannot be packed as msgpack: {error}")


def pack_exactly(value: Any) -> bytes:
    """Return a value packed, each part as the type it has; `MessageError` names one that cannot."""
    try:
        return codec.exact_encoder.encode(value)
    except MessageError:
        raise
    except PACKING_ERRORS as error:
        raise packing_error("value", value, error) from error


def is_of_packing(error: BaseException) -> bool:
    """Whether packing a value failed: the type of a part is not known, or an int is too large."""
    if isinstance(error, MessageError):
        return error.field.startswith("value") and isinstance(error.__cause__, PACKING_ERRORS)
    return isinstance(error, PACKING_ERRORS) and not isinstance(error, P2PError)


def check_timestamp(timestamp_ns: Any) -> int:
    """Return `timestamp_ns`, or raise `MessageError`."""
    if type(timestamp_ns) is not int or not _TIMESTAMP_MIN < timestamp_ns < _TIMESTAMP_MAX:
        reason = f"must be an int of ns since the epoch within 62 bits, not {timestamp_ns!r}"
        raise MessageError("timestamp_ns", reason)
    return timestamp_ns


def check_key(key: Any) -> str | None:
    """Return `key`, or raise `MessageError`."""
    if key is None:
        return None
    if type(key) is not str:
        raise MessageError("key", f"must be a str or None, not {key!r}")
    if not key.isascii():
        try:
            key.encode()
        except UnicodeEncodeError as error:
            raise MessageError("key", f"must be UTF-8: {error.reason}") from None
    return key


def pack_headers(headers: Any) -> codec.Raw | None:
    """Return the headers packed, so that a later change of the dict changes nothing."""
    if headers is None:
        return None
    if not isinstance(headers, dict) or not _TEXT.issuperset(map(type, headers)):
        raise MessageError("headers", f"must be a dict with str keys or None, not {headers!r}")
    if not _PLAIN.issuperset(map(type, headers.values())):
        headers = codec.prepare(headers, None, "headers")
    try:
        return codec.Raw(encoder.encode(headers))
    except PACKING_ERRORS as error:
        raise packing_error("headers", headers, error) from error


def check_message(
    value: Any,
    *,
    key: str | None = None,
    timestamp_ns: int | None = None,
    headers: dict[str, Any] | None = None,
) -> int:
    """Return how many bytes a message takes at most; `MessageError` where `publish` would raise it.

    Args:
        value: any msgpack value.
        key: its key; None: none.
        timestamp_ns: when it happened; None: when it is published.
        headers: its headers; None: none.

    """
    size = _COLUMNS_BYTES + len(_packed(value))
    if timestamp_ns is not None:
        check_timestamp(timestamp_ns)
    if (text := check_key(key)) is not None:
        size += _KEY_BYTES * len(text)
    if (packed := pack_headers(headers)) is not None:
        size += memoryview(packed).nbytes
    return size


def _packed(value: Any) -> bytes:
    packed = codec.packed_if_plain(value)
    if packed is not None:
        return packed
    try:
        return codec.encode(codec.prepare(value, None))
    except MessageError:
        raise
    except PACKING_ERRORS as error:
        raise packing_error("value", value, error) from error


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
        "_begin", "_body_at", "_columns", "_former_columns", "_headers", "_keys", "_last_columns",
        "_scratch", "_slot_columns", "_timestamps", "base_timestamp_ns", "beyond", "buffer",
        "encode_into", "end", "first", "limit", "next", "opened_ns", "own_ns", "slot",
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
        self._scratch = _NO_SCRATCH if slot is None else bytearray()
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
        self._former_columns: tuple[int, int] = (
            -1,
            0,
        )  # of which message, and what the slot had before it
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
        if slot is None:
            self.end, self.next = size, sequence + 1
            return sequence
        slot.memory[begin:size] = packed
        if not extra:
            slot.header[_SLOT_END] = size
            self.end, self.next = size, sequence + 1
            return sequence
        columns = slot.header[_SLOT_COLUMNS]
        self._former_columns = sequence, self._slot_columns
        slot.header[_SLOT_END] = size
        self.end, self.next, self._slot_columns = size, sequence + 1, columns
        return sequence

    def _has_space(self, size: int, extra: int, bytes_max: int) -> bool:
        """Whether the slot has space up to `size`; `MessageTooLargeError` for a large message."""
        if size - self.end + extra > bytes_max:
            self.repair()
            check_size("message", size - self.end + extra, bytes_max)
        return extra >= 0 and (self.slot is None or size <= self.slot.bytes_max)

    def take_back(self, end: int) -> None:
        """Take out the message that was added last, from `end` on."""
        last, columns = self._former_columns
        if last != self.next - 1:  # it has none
            columns = self._slot_columns
        self.end, self.next, self._slot_columns = end, self.next - 1, columns
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
                keys = self._keys = _padded(keys, count, None)
            keys.append(key)
            extra = 5 + 4 * len(key)
        if timestamp_ns is not None:
            check_timestamp(timestamp_ns)
            column = self._timestamps
            if column is None or len(column) != count:
                column = self._timestamps = _padded(column, count, 0)
            column.append(timestamp_ns - self.base_timestamp_ns)
            extra += 9
        if headers is not None:
            headers = pack_headers(headers)
            self._headers = packs = _padded(self._headers, count, None)
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

        The columns come after the values, and the header before them. A slot keeps the messages
        until it is freed.
        """
        self.repair()
        if self.slot is not None:
            with memoryview(self.slot.memory)[self._begin : self.end] as values:
                self.buffer += values
        buffer, count = self.buffer, self.next - self.first
        latest = self.base_timestamp_ns
        if self._timestamps is not None:
            self._timestamps = _padded(self._timestamps, count, 0)
            latest += max(self._timestamps)
        for column in (self._timestamps, self._keys, self._headers):
            if column is None:
                buffer += _NIL
            else:
                padding = 0 if column is self._timestamps else None
                buffer += encoder.encode(_padded(column, count, padding))
        at = self._body_at
        buffer[at : at + 6] = values_header(count)
        length = len(buffer) - at
        REST.pack_into(buffer, at - REST.size, self.first, count, length, self.base_timestamp_ns)
        return buffer, latest


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


def start_frame(buffer: bytearray, prefix: bytes) -> int:
    """Begin a frame of values in `buffer`; return where the first of them goes.

    It keeps the memory that `buffer` has, which `del buffer[at:]` would give back: growing to a
    frame's size again would copy it several times.
    """
    at = len(prefix) + REST.size + _VALUES_HEADER_BYTES
    if len(buffer) < at:
        buffer += bytes(at)
    _encode_into(0, buffer, at - 1)
    buffer[: len(prefix)] = prefix
    return at


def _padded(column: list[Any] | None, count: int, padding: Any) -> list[Any]:
    """Return the column with an entry for each of `count` messages, where it was left out."""
    if column is None:
        return [padding] * count
    column.extend([padding] * (count - len(column)))
    return column


def fill_slice(
    prefix: bytes,
    sequence: int,
    timestamp_ns: int,
    values: list[Any] | codec.Raw,
    keys: list[str | None] | None,
    timestamps_ns: list[int] | None,
    buffer: bytearray,
    count: int,
) -> int:
    """Make `buffer` a frame of `count` values, packed in one go; return its latest timestamp.

    `values` may be packed already. The buffer stays in the processor's cache if it is used again
    and again.
    """
    body_at = len(prefix) + REST.size
    start_frame(buffer, prefix)
    buffer[body_at] = ARRAY4
    base, latest = fill_body(buffer, body_at, values, keys, timestamps_ns, timestamp_ns)
    length = len(buffer) - body_at
    REST.pack_into(buffer, len(prefix), sequence, count, length, base)
    return latest


def fill_body(
    buffer: bytearray,
    body_at: int,
    values: Any,
    keys: list[str | None] | None,
    timestamps_ns: list[int] | None,
    timestamp_ns: int,
) -> tuple[int, int]:
    """Write values and columns to a frame that has begun; return its base and latest timestamps."""
    base = latest = timestamp_ns
    field, column = "values", values
    try:
        _encode_into(values, buffer, body_at + 1)
        if keys is None and timestamps_ns is None:
            buffer += NO_COLUMNS
            return base, latest
        if timestamps_ns is not None:
            base, latest = timestamps_ns[0], max(timestamps_ns)
        field, column = "timestamps_ns", timestamps_ns and [one - base for one in timestamps_ns]
        _encode_into(column, buffer, -1)
        field, column = "keys", keys
        _encode_into(keys, buffer, -1)
        buffer += _NIL
    except PACKING_ERRORS as error:
        raise packing_error(field, column, error) from error
    return base, latest


def pack_slice(
    prefix: bytes,
    sequence: int,
    timestamp_ns: int,
    values: list[Any],
    keys: list[str | None] | None,
    timestamps_ns: list[int] | None,
    buffer: bytearray,
) -> tuple[bytes, int]:
    """Return a frame of `values` packed in `buffer`, and its latest timestamp."""
    count = len(values)
    latest = fill_slice(prefix, sequence, timestamp_ns, values, keys, timestamps_ns, buffer, count)
    return bytes(buffer), latest


def pack_alone(
    prefix: bytes,
    sequence: int,
    timestamp_ns: int,
    value: Any,
    key: str | None,
    headers: dict[str, Any] | None,
    bytes_max: int,
) -> tuple[bytes, bytes | PartedFrame]:
    """Return a frame of one message, made without a batch: the way of a stream that is idle.

    `prefix` is the stream's `stream_prefix`. The second is how to keep it, without a copy.
    """
    if type(value) is bytes and (len(value) >= _LARGE_BYTES or len(value) < 256):
        # Its header is made by hand: a large value is so copied once and not twice, and a small one
        # is spared the encoder, which takes 1 µs with cold caches.
        length = len(value)
        lead = _LEADS[length] if length < 256 else _LEAD_BIN32 + length.to_bytes(4, "big")
        packed = value
    else:
        lead = b"\x94\x91"
        try:
            packed = encoder.encode(value)
        except PACKING_ERRORS as error:
            raise packing_error("value", value, error) from error
    columns = NO_COLUMNS
    if key is not None or headers is not None:
        packed_headers = pack_headers(headers)
        columns = b"".join(
            (
                _NIL,
                _NIL if check_key(key) is None else encoder.encode([key]),
                _NIL if packed_headers is None else encoder.encode([packed_headers]),
            )
        )
    size = len(packed) + len(columns)
    if size > bytes_max:
        check_size("message", size, bytes_max)
    rest = REST.pack(sequence, 1, len(lead) + size, timestamp_ns)
    parts = (prefix, rest, lead, packed, columns)
    frame = b"".join(parts)
    return frame, frame if size < _LARGE_BYTES else PartedFrame(parts, len(frame))


def check_size(field: str, size: int, limit: int) -> None:
    """Raise `MessageTooLargeError` where `size` is above `limit`."""
    if size > limit:
        raise MessageTooLargeError(field, size, limit)
