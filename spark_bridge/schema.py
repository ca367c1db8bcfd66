"""The source's columns, and how messages become Arrow record batches of exactly these types."""

import math
from array import array
from base64 import b64encode
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import pyarrow as pa

import p2pmsg

SPARK_SCHEMA: Final = (
    "key string, value binary, topic string, publisher string, session long, offset long, "
    "timestamp timestamp, headers map<string,string>"
)
ARROW_SCHEMA: Final = pa.schema(
    [
        ("key", pa.string()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("publisher", pa.string()),
        ("session", pa.int64()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("headers", pa.map_(pa.string(), pa.string())),
    ]
)
ROWS_MAX: Final = 32_768
"""Spark takes batches of 10,000 to 100,000 rows best."""
BYTES_MAX: Final = 16 * 2**20
"""A batch of large values ends earlier, so that a task's memory is bounded."""
_TIMESTAMP_US_MAX: Final = 2**63 // 1000 - 1
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_HEADERS: Final = pa.map_(pa.string(), pa.string())
_pack: Final = msgspec.msgpack.Encoder().encode
_to_json: Final = msgspec.json.Encoder().encode


class BatchBuilder:
    """Gathers message batches until they are a record batch's worth.

    Attributes:
        rows: how many are gathered.

    """

    def __init__(self) -> None:
        self.rows = 0
        self._bytes = 0
        self._parts: list[pa.RecordBatch] = []

    @property
    def is_full(self) -> bool:
        """Whether it is time to take a batch out."""
        return self.rows >= ROWS_MAX or self._bytes >= BYTES_MAX

    def add(self, batch: p2pmsg.MessageBatch) -> None:
        """Add messages."""
        part = to_arrow(batch)
        self._parts.append(part)
        self.rows += part.num_rows
        self._bytes += part.nbytes

    def take(self) -> Iterator[pa.RecordBatch]:
        """Take out what is gathered, as one record batch, or none where nothing is."""
        parts, self._parts = self._parts, []
        self.rows = self._bytes = 0
        if parts:
            table = pa.Table.from_batches(parts, ARROW_SCHEMA)
            yield from table.combine_chunks().to_batches()


def to_arrow(batch: p2pmsg.MessageBatch) -> pa.RecordBatch:
    """Return a batch of messages as a record batch with `ARROW_SCHEMA`."""
    count = len(batch)
    return pa.RecordBatch.from_arrays(
        [
            _keys(batch.keys, count),
            _values(batch.values),
            pa.repeat(pa.scalar(batch.topic, pa.string()), count),
            pa.repeat(pa.scalar(batch.publisher, pa.string()), count),
            pa.repeat(pa.scalar(signed(batch.session), pa.int64()), count),
            _int64(range(batch.sequence, batch.sequence + count)),
            _timestamps(batch.timestamps_ns, batch.base_timestamp_ns, count),
            _headers(batch.headers, count),
        ],
        schema=ARROW_SCHEMA,
    )


def signed(session: int) -> int:
    """Return a session as Spark's `long`, which has a sign: the same 64 bits."""
    return session - 2**64 if session >= 2**63 else session


def _values(values: list[Any]) -> pa.Array:
    # None is null, bytes and str are taken as they are; anything else raises a type error here.
    try:
        return pa.array(values, pa.binary())
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError):
        return pa.array(
            [
                value if value is None or isinstance(value, bytes | str) else _pack(value)
                for value in values
            ],
            pa.binary(),
        )


def _keys(keys: list[str | None] | None, count: int) -> pa.Array:
    return pa.nulls(count, pa.string()) if keys is None else pa.array(keys, pa.string())


def _int64(numbers: Any) -> pa.Array:
    # Through the array module: a third of what pa.array takes, and without NumPy.
    column = array("q", numbers)
    return pa.Array.from_buffers(pa.int64(), len(column), [None, pa.py_buffer(column)])


def _timestamps(timestamps_ns: list[int] | None, base_ns: int, count: int) -> pa.Array:
    if timestamps_ns is None:
        return pa.repeat(pa.scalar(base_ns // 1000, _TIMESTAMP), count)
    most = _TIMESTAMP_US_MAX
    try:
        column = _int64([time // 1000 for time in timestamps_ns])
    except OverflowError:  # a peer of another make sends times of more than 64 bits
        column = _int64([min(most, max(-most, time // 1000)) for time in timestamps_ns])
    return column.cast(_TIMESTAMP)


def _headers(headers: list[dict[str, Any] | None] | None, count: int) -> pa.Array:
    if headers is None:
        return pa.nulls(count, _HEADERS)
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
