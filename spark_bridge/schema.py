"""The source's columns, and how messages become Arrow record batches of exactly these types."""

import math
from array import array
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
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
    "session": ("long", pa.int64()),
    "offset": ("long", pa.int64()),
    "timestamp": ("timestamp", _TIMESTAMP),
    "headers": ("map<string,string>", _HEADERS),
}
"""By name: Spark's type and Arrow's."""
ROWS_MAX: Final = 32_768
"""Spark takes batches of 10,000 to 100,000 rows best."""
BYTES_MAX: Final = 16 * 2**20
"""A batch of large values ends earlier, so that a task's memory is bounded."""
_TIMESTAMP_US_MAX: Final = 2**63 // 1000 - 1
_pack: Final = msgspec.msgpack.Encoder().encode
_to_json: Final = msgspec.json.Encoder().encode


def spark_schema(names: Sequence[str]) -> str:
    """Return these columns as Spark's DDL."""
    return ", ".join(f"{name} {COLUMNS[name][0]}" for name in names)


def arrow_schema(names: Sequence[str]) -> pa.Schema:
    """Return these columns as Arrow's schema."""
    return pa.schema([(name, COLUMNS[name][1]) for name in names])


class Run:
    """Consecutive messages of one stream."""

    def __init__(self, first: p2pmsg.MessageBatch) -> None:
        self.batches = [first]
        self.first = first
        self.count = len(first)

    def extend(self, batch: p2pmsg.MessageBatch) -> bool:
        """Add the messages of `batch`; False where they do not follow."""
        first = self.first
        if (
            batch.sequence != first.sequence + self.count
            or batch.topic != first.topic
            or batch.session != first.session
        ):
            return False
        self.batches.append(batch)
        self.count += len(batch)
        return True

    def column(self, name: str, missing: Any) -> list[Any] | None:
        """Return `keys` or `headers` of all batches, or None where none has any."""
        columns = [getattr(batch, name) for batch in self.batches]
        if all(column is None for column in columns):
            return None
        return [
            each
            for column, batch in zip(columns, self.batches, strict=True)
            for each in ([missing] * len(batch) if column is None else column)
        ]

    @property
    def values(self) -> list[Any]:
        """The values of all batches."""
        if len(self.batches) == 1:
            return self.first.values
        return list(chain.from_iterable(batch.values for batch in self.batches))


class Layout(Protocol):
    """What columns there are and how a run of messages becomes them; it is pickled to tasks."""

    schema: pa.Schema

    @property
    def value_type(self) -> Any:
        """What a fetch is to decode values as; None: as they are."""
        ...

    def to_arrow(self, run: Run) -> pa.RecordBatch:
        """Return the messages as a record batch of `schema`."""
        ...


class RawLayout:
    """Columns of the messages as they are, some of `COLUMNS`."""

    value_type = None

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.schema = arrow_schema(names)

    def to_arrow(self, run: Run) -> pa.RecordBatch:
        """Return the messages as a record batch of `schema`."""
        return pa.RecordBatch.from_arrays(
            [column_of(name, run) for name in self.names], schema=self.schema
        )


class BatchBuilder:
    """Gathers message batches until they are a record batch's worth.

    Attributes:
        rows: how many are gathered.

    """

    def __init__(self, layout: Layout) -> None:
        self.rows = 0
        self._bytes = 0
        self._layout = layout
        self._runs: list[Run] = []

    @property
    def is_full(self) -> bool:
        """Whether it is time to take a batch out."""
        return self.rows >= ROWS_MAX or self._bytes >= BYTES_MAX

    def add(self, batch: p2pmsg.MessageBatch) -> None:
        """Add messages."""
        self.rows += len(batch)
        self._bytes += _size(batch)
        if not self._runs or not self._runs[-1].extend(batch):
            self._runs.append(Run(batch))

    def take(self) -> Iterator[pa.RecordBatch]:
        """Take out what is gathered, as one record batch, or none where nothing is."""
        runs, self._runs = self._runs, []
        self.rows = self._bytes = 0
        parts = [self._layout.to_arrow(run) for run in runs]
        if len(parts) == 1:
            yield parts[0]
        elif parts:
            yield from pa.Table.from_batches(parts).combine_chunks().to_batches()


def column_of(name: str, run: Run) -> pa.Array:
    """Return one of `COLUMNS` of a run of messages."""
    return _MAKERS[name](run)


def signed(session: int) -> int:
    """Return a session as Spark's `long`, which has a sign: the same 64 bits."""
    return session - 2**64 if session >= 2**63 else session


def as_bytes(value: Any) -> bytes | str | None:
    """Return what the column `value` has: bytes and str as they are, anything else packed."""
    return value if value is None or isinstance(value, bytes | str) else _pack(value)


def _size(batch: p2pmsg.MessageBatch) -> int:
    """Return about how large a batch is, by its first value: values of a stream are alike."""
    if isinstance(batch, p2pmsg.FixedBatch):
        return len(batch.block)
    value = batch.values[0]
    size = len(value) if isinstance(value, bytes | str) else 64
    return size * len(batch)


def _values(run: Run) -> pa.Array:
    block = _block(run)
    if block is not None:
        return block
    # None is null, bytes and str are taken as they are; anything else raises a type error here.
    try:
        return pa.array(run.values, pa.binary())
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError):
        return pa.array([as_bytes(value) for value in run.values], pa.binary())


def _block(run: Run) -> pa.Array | None:
    """Return values of one length without making an object of each: a fifth of the time."""
    first = run.first
    if not isinstance(first, p2pmsg.FixedBatch):
        return None
    stride, head, blocks = first.stride, first.head, []
    for batch in run.batches:
        if not isinstance(batch, p2pmsg.FixedBatch) or (batch.stride, batch.head) != (stride, head):
            return None
        blocks.append(batch.block)
    block = pa.py_buffer(b"".join(blocks))
    rows = pa.Array.from_buffers(pa.binary(stride), run.count, [None, block])
    return pc.binary_slice(rows, head, stride).cast(pa.binary())


def _keys(run: Run) -> pa.Array:
    keys = run.column("keys", None)
    return pa.nulls(run.count, pa.string()) if keys is None else pa.array(keys, pa.string())


def _int64(column: "array[int]") -> pa.Array:
    # Through the array module: a third of what pa.array takes, and without NumPy.
    return pa.Array.from_buffers(pa.int64(), len(column), [None, pa.py_buffer(column)])


def _timestamps(run: Run) -> pa.Array:
    column = array("q")
    for batch in run.batches:
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


def _headers(run: Run) -> pa.Array:
    headers = run.column("headers", None)
    if headers is None:
        return pa.nulls(run.count, _HEADERS)
    rows = [
        None if row is None else [(name, _header_text(value)) for name, value in row.items()]
        for row in headers
    ]
    return pa.array(rows, _HEADERS)


def _header_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    try:
        return _to_json(value).decode()
    except (TypeError, ValueError):  # no JSON has such a value
        return b64encode(_pack(value)).decode()


def _numbers(start: int, stop: int) -> pa.Array:
    if hasattr(pa, "arange"):  # since PyArrow 21; a twentieth of the time
        return pa.arange(start, stop)
    return _int64(array("q", range(start, stop)))


def _repeated(value: Any, kind: pa.DataType, run: Run) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), run.count)


_MAKERS: Final[dict[str, Callable[[Run], pa.Array]]] = {
    "key": _keys,
    "value": _values,
    "topic": lambda run: _repeated(run.first.topic, pa.string(), run),
    "publisher": lambda run: _repeated(run.first.publisher, pa.string(), run),
    "session": lambda run: _repeated(signed(run.first.session), pa.int64(), run),
    "offset": lambda run: _numbers(run.first.sequence, run.first.sequence + run.count),
    "timestamp": _timestamps,
    "headers": _headers,
}
