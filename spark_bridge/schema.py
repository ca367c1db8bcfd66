"""The source's columns, and how messages become Arrow record batches of exactly these types."""

import math
from array import array
from base64 import b64encode
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import chain, groupby, pairwise
from operator import attrgetter
from typing import Any, Final, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

import p2pmsg

_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_HEADERS: Final = pa.map_(pa.string(), pa.string())
COLUMNS: Final = {
    "key": ("string", pa.string()),
    "value": ("binary", pa.binary()),
    "topic": ("string", pa.string()),
    "publisher": ("string", pa.string()),
    "session": ("bigint", pa.int64()),
    "offset": ("bigint", pa.int64()),
    "timestamp": ("timestamp", _TIMESTAMP),
    "headers": ("map<string,string>", _HEADERS),
}
"""By name: Spark's type, as `simpleString()` writes it, and Arrow's."""
CAN_BE_NULL: Final = frozenset({"key", "value", "headers"})
"""What a message need not have. Where a column is null that the schema declares never null, Spark
fails with an error that names neither column nor message."""
ROWS_MAX: Final = 32_768
"""Spark takes batches of 10,000 to 100,000 rows best."""
BYTES_MAX: Final = 16 * 2**20
"""A batch of large values ends earlier, so that a task's memory is bounded."""
_BLOCK_ROWS_MIN: Final = 64
_OFFSET_MAX: Final = 2**31 - 1
"""Arrow's offsets of binary values have 32 bits."""
_TIMESTAMP_US_MAX: Final = 2**63 // 1000 - 1
_pack: Final = msgspec.msgpack.Encoder().encode
_to_json: Final = msgspec.json.Encoder().encode


def spark_schema(names: Sequence[str]) -> str:
    """Return these columns as Spark's DDL."""
    return ", ".join(f"{name} {COLUMNS[name][0]}" for name in names)


class Gathered:
    """Messages of one or several streams, by the batch, that become one record batch.

    Attributes:
        batches: at least one.
        count: how many messages.

    """

    def __init__(self, batches: list[p2pmsg.MessageBatch]) -> None:
        self.batches = batches
        self.count = sum(map(len, batches))

    @property
    def values(self) -> list[Any]:
        """The values of all batches."""
        if len(self.batches) == 1:
            return self.batches[0].values
        return list(chain.from_iterable(batch.values for batch in self.batches))

    def column(self, name: str) -> list[Any] | None:
        """Return `keys` or `headers` of all batches, or None where none has any."""
        columns = [getattr(batch, name) for batch in self.batches]
        if all(column is None for column in columns):
            return None
        return [
            each
            for column, batch in zip(columns, self.batches, strict=True)
            for each in ([None] * len(batch) if column is None else column)
        ]

    def message(self, at: int) -> p2pmsg.Message:
        """Return the message at an index; for errors."""
        for batch in self.batches:
            if at < len(batch):
                return batch[at]
            at -= len(batch)
        raise IndexError(at)


class Layout(Protocol):
    """What columns there are and how a run of messages becomes them; it is pickled to tasks."""

    schema: pa.Schema

    @property
    def value_type(self) -> Any:
        """What a fetch is to decode values as; None: as they are."""
        ...

    def to_arrow(self, gathered: Gathered) -> pa.RecordBatch:
        """Return the messages as a record batch of `schema`."""
        ...


class RawLayout:
    """Columns of the messages as they are, some of `COLUMNS`."""

    value_type = None

    def __init__(self, names: Sequence[str], required: Collection[str] = ()) -> None:
        self.names = tuple(names)
        self.schema = pa.schema(
            [pa.field(name, COLUMNS[name][1], nullable=name not in required) for name in names]
        )

    def to_arrow(self, gathered: Gathered) -> pa.RecordBatch:
        """Return the messages as a record batch of `schema`."""
        return pa.RecordBatch.from_arrays(
            [column_of(name, gathered) for name in self.names], schema=self.schema
        )


def record_batches(
    layout: Layout, batches: Iterable[p2pmsg.MessageBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield messages as record batches of a size that Spark takes best."""
    gathered: list[p2pmsg.MessageBatch] = []
    rows = size = 0
    for batch in batches:
        gathered.append(batch)
        rows += len(batch)
        size += _size(batch)
        if rows >= ROWS_MAX or size >= BYTES_MAX:
            yield layout.to_arrow(Gathered(gathered))
            gathered, rows, size = [], 0, 0
    if gathered:
        yield layout.to_arrow(Gathered(gathered))


def column_of(name: str, gathered: Gathered) -> pa.Array:
    """Return one of `COLUMNS` of some messages."""
    return _MAKERS[name](gathered)


def signed(session: int) -> int:
    """Return a session as Spark's `long`, which has a sign: the same 64 bits."""
    return session - 2**64 if session >= 2**63 else session


def as_bytes(value: Any) -> bytes | str | None:
    """Return what the column `value` has: bytes and str as they are, anything else packed."""
    return value if value is None or isinstance(value, bytes | str) else _pack(value)


def text_of(value: bytes) -> str:
    """Return bytes as text; those that are not UTF-8 as base64."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return b64encode(value).decode()


def _size(batch: p2pmsg.MessageBatch) -> int:
    """Return about how large a batch is, by its first value: values of a stream are alike."""
    if isinstance(batch, p2pmsg.message.FixedBatch):
        return len(batch.view)
    value = batch.values[0]
    size = len(value) if isinstance(value, bytes | str) else 64
    return size * len(batch)


def _values(gathered: Gathered) -> pa.Array:
    block = _block(gathered)
    if block is not None:
        return block
    # None is null, bytes and str are taken as they are; anything else raises a type error here.
    try:
        return pa.array(gathered.values, pa.binary())
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError):
        return pa.array([as_bytes(value) for value in gathered.values], pa.binary())


def _block(gathered: Gathered) -> pa.Array | None:
    """Return values of one length without making an object of each: a fifth of the time."""
    first = gathered.batches[0]
    if not isinstance(first, p2pmsg.message.FixedBatch) or gathered.count < _BLOCK_ROWS_MIN:
        return None
    stride, head, blocks = first.stride, first.head, []
    for batch in gathered.batches:
        if not isinstance(batch, p2pmsg.message.FixedBatch) or (batch.stride, batch.head) != (
            stride,
            head,
        ):
            return None
        blocks.append(batch.view)
    count = gathered.count
    block = pa.py_buffer(blocks[0] if len(blocks) == 1 else b"".join(blocks))
    rows = pa.Array.from_buffers(pa.binary(stride), count, [None, block])
    values = pc.binary_slice(rows, head, stride)
    places = _places(count)
    if values.offset or (stride - head) * places > _OFFSET_MAX:
        return values.cast(pa.binary())
    # The same values between offsets that are at hand: the cast would copy them all.
    buffers = [None, _even_offsets(stride - head, places), values.buffers()[1]]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


@lru_cache(maxsize=8)
def _even_offsets(size: int, count: int) -> pa.Buffer:
    """Return where values of one size begin that lie side by side."""
    return pa.py_buffer(array("i", range(0, size * count + 1, size)))


def _keys(gathered: Gathered) -> pa.Array:
    keys = gathered.column("keys")
    return pa.nulls(gathered.count, pa.string()) if keys is None else pa.array(keys, pa.string())


def _int64(column: "array[int]") -> pa.Array:
    # Through the array module: a third of what pa.array takes, and without NumPy.
    return pa.Array.from_buffers(pa.int64(), len(column), [None, pa.py_buffer(column)])


def _timestamps(gathered: Gathered) -> pa.Array:
    column = array("q")
    for batch in gathered.batches:
        if batch.timestamps_ns is None:
            column += array("q", [batch.base_timestamp_ns // 1000]) * len(batch)
            continue
        try:
            column += array("q", [time // 1000 for time in batch.timestamps_ns])
        except OverflowError:  # a peer of another make sends times of more than 64 bits
            most = _TIMESTAMP_US_MAX
            times = [min(most, max(-most, time // 1000)) for time in batch.timestamps_ns]
            column += array("q", times)
    return _int64(column).cast(_TIMESTAMP)


def _headers(gathered: Gathered) -> pa.Array:
    headers = gathered.column("headers")
    if headers is None:
        return pa.nulls(gathered.count, _HEADERS)
    rows = [
        None if row is None else [(name, _header_text(value)) for name, value in row.items()]
        for row in headers
    ]
    return pa.array(rows, _HEADERS)


def _header_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return text_of(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    try:
        return _to_json(value).decode()
    except (TypeError, ValueError):  # no JSON has such a value
        return b64encode(_pack(value)).decode()


def _offsets(gathered: Gathered) -> pa.Array:
    batches = gathered.batches
    if all(one.sequence + len(one) == after.sequence for one, after in pairwise(batches)):
        return pa.arange(batches[0].sequence, batches[0].sequence + gathered.count)
    return _joined([pa.arange(one.sequence, one.sequence + len(one)) for one in batches])


def _common(name: str, kind: pa.DataType, gathered: Gathered) -> pa.Array:
    """Return a field that all messages of a batch have in common."""
    parts = []
    for value, batches in groupby(gathered.batches, attrgetter(name)):
        count = sum(map(len, batches))
        whole = _repeated(signed(value) if kind is _SESSION else value, kind, _places(count))
        parts.append(whole.slice(0, count))
    return _joined(parts)


@lru_cache(maxsize=16)
def _repeated(value: Any, kind: pa.DataType, count: int) -> pa.Array:
    """Return a column of one value, which mostly is that of one batch after another."""
    return pa.repeat(pa.scalar(value, kind), count)


def _places(count: int) -> int:
    """Return a length that many counts have in common, and at least this one."""
    return int(1 << (count - 1).bit_length())


def _joined(parts: list[pa.Array]) -> pa.Array:
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


_SESSION: Final = pa.int64()
_MAKERS: Final[dict[str, Callable[[Gathered], pa.Array]]] = {
    "key": _keys,
    "value": _values,
    "topic": partial(_common, "topic", pa.string()),
    "publisher": partial(_common, "publisher", pa.string()),
    "session": partial(_common, "session", _SESSION),
    "offset": _offsets,
    "timestamp": _timestamps,
    "headers": _headers,
}
