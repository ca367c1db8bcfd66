"""The sinks: rows become messages, published by the tasks.

::

    task     open ─▶ wait for subscribers ─▶ begin ─▶ rows, by topic ─▶ commit ─▶ all have it ─▶ end
                                              └─ on the commit topic: query, batch, partition ─┘

Each attempt of a task is a publisher of its own, hence a session of its own. An attempt that fails
leaves a session without a commit, and one that is repeated has the same query, batch and partition:
by that the receiver's side (`committed`) delivers each batch once.
"""

import time
from collections.abc import Iterator
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import types
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

import p2pmsg
from spark_bridge.columns import check_value_type, values_of
from spark_bridge.errors import BridgeError, OptionError
from spark_bridge.keys import security_of
from spark_bridge.options import COMMIT_TOPIC, SinkOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

_COLUMN_TYPES: Final = {
    "key": (types.StringType, "string"),
    "topic": (types.StringType, "string"),
    "timestamp": (types.TimestampType, "timestamp"),
    "headers": (types.MapType, "a map"),
}
_COLUMNS: Final = ("value", *_COLUMN_TYPES)
_BIND_PAUSE_SECONDS: Final = 0.02
_REPLAY_BYTES: Final = 256 * 2**20
"""How much of what a task published it keeps for repairs."""


class P2pmsgBatchWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """`frame.write.format("p2pmsg")`."""

    def __init__(
        self, options: SinkOptions, schema: types.StructType, write: str, overwrite: bool
    ) -> None:
        super().__init__()
        if overwrite:
            raise BridgeError(
                "mode('overwrite') cannot be: messages that were published stay so; use "
                "mode('append')"
            )
        check_columns(schema, options)
        self._options = options
        self._write = options.writeId or write

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Publish one partition."""
        options = self._options
        return publish_partition(iterator, options, self._write, options.writeBatch)


class P2pmsgStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """`frame.writeStream.format("p2pmsg")`."""

    def __init__(self, options: SinkOptions, schema: types.StructType) -> None:
        super().__init__()
        if options.writeId is not None:
            raise OptionError("writeId", "is for batches; a stream's batches have their names")
        check_columns(schema, options)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Publish one partition of a batch."""
        task: Any = TaskContext.get()
        query = task.getLocalProperty("sql.streaming.queryId")
        batch = task.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            raise BridgeError("Spark did not say which query and batch this is")
        return publish_partition(iterator, self._options, query, int(batch))


def check_columns(schema: types.StructType, options: SinkOptions) -> None:
    """Refuse columns and types that no message has, by name."""
    names = schema.fieldNames()
    for name in names:
        if name not in _COLUMNS:
            raise OptionError(
                "schema", f"has a column {name!r}; messages have {', '.join(_COLUMNS)}"
            )
    if "value" not in names:
        raise OptionError("schema", "has no column 'value'")
    if "topic" not in names and options.topic is None:
        raise OptionError("topic", "is required, or a column 'topic'")
    for name, (kind, word) in _COLUMN_TYPES.items():
        if name in names and not isinstance(schema[name].dataType, kind):
            raise OptionError("schema", f"must have {name!r} as {word}")
    check_value_type(schema["value"].dataType, "value")
    if "headers" in names:
        _check_headers(schema["headers"].dataType)


def _check_headers(kind: types.MapType) -> None:
    if not isinstance(kind.keyType, types.StringType | types.NullType):
        reason = f"must have 'headers' with keys of type string, not {kind.simpleString()}"
        raise OptionError("schema", reason)
    check_value_type(kind, "headers")


def publish_partition(
    batches: Iterator[pa.RecordBatch], options: SinkOptions, query: str, batch: int
) -> WriterCommitMessage:
    """Publish a partition's rows and wait until the subscribers have them.

    Raises:
        BridgeError: no endpoint is free, too few subscribers came, or one did not get everything.

    """
    task: Any = TaskContext.get()
    partition = task.partitionId()
    record = {
        "query": query,
        "batch": batch,
        "partition": partition,
        "attempt": task.taskAttemptId(),
    }
    name = f"spark/{query[:8]}/{batch}/{partition}"
    publisher: p2pmsg.Publisher | None = None
    rows = 0
    timeout = options.timeoutMs / 1000
    try:
        for each in batches:
            if not each.num_rows:
                continue
            if publisher is None:
                publisher = _open(name, options)
                publisher.publish(COMMIT_TOPIC, {"state": "begin", **record})
            rows += each.num_rows
            _publish(publisher, each, options)
        if publisher is not None:
            commit = {"state": "commit", **record, "rows": rows}
            publisher.publish(COMMIT_TOPIC, commit)
            publisher.close(timeout)
            undelivered = publisher.stats().undelivered
            if undelivered:
                raise BridgeError(
                    f"{undelivered} subscribers of {publisher.endpoint} had not got all of batch "
                    f"{batch}, partition {partition} within timeoutMs = {options.timeoutMs}"
                )
    finally:
        if publisher is not None:
            publisher.close(0)
    return WriterCommitMessage()


def _open(name: str, options: SinkOptions) -> p2pmsg.Publisher:
    """Return a publisher at the first free endpoint, with its subscribers there."""
    deadline = time.monotonic() + options.timeoutMs / 1000
    while True:
        for endpoint in options.endpoint:
            try:
                publisher = p2pmsg.Publisher(
                    endpoint,
                    name=name,
                    replay_bytes=_REPLAY_BYTES,
                    on_full="block",
                    stall_timeout=options.timeoutMs / 1000,
                    security=security_of(options.keys),
                )
            except p2pmsg.BindError as error:
                refused = error
                continue
            try:
                publisher.wait_for_subscribers(options.minSubscribers, options.timeoutMs / 1000)
            except TimeoutError as error:
                publisher.close(0)
                raise BridgeError(
                    f"minSubscribers = {options.minSubscribers}, and at {endpoint} {error}"
                ) from error
            return publisher
        if time.monotonic() > deadline:
            raise BridgeError(
                f"none of the {len(options.endpoint)} endpoints became free within timeoutMs = "
                f"{options.timeoutMs}: {refused}"
            ) from refused
        time.sleep(_BIND_PAUSE_SECONDS)


def _publish(
    publisher: p2pmsg.Publisher,
    batch: pa.RecordBatch,
    options: SinkOptions,
) -> None:
    columns = {name: batch.column(name) for name in batch.schema.names}
    for topic, rows in _by_topic(columns.get("topic"), batch.num_rows, options.topic):
        part = columns if rows is None else {name: c.take(rows) for name, c in columns.items()}
        _publish_topic(publisher, topic, part)


def _by_topic(
    topics: pa.Array | None, count: int, default: str | None
) -> "Iterator[tuple[str, pa.Array | None]]":
    """Yield each topic and the indices of its rows, in order; None for all rows."""
    if topics is None:
        assert default is not None
        yield default, None
        return
    indices: dict[str, list[int]] = {}
    for at, topic in enumerate(topics.to_pylist()):
        name = default if topic is None else topic
        if name is None:
            raise BridgeError("a row has no topic, and the option 'topic' is not set")
        indices.setdefault(name, []).append(at)
    for name, rows in indices.items():
        yield name, None if len(rows) == count else pa.array(rows, pa.int64())


def _publish_topic(publisher: p2pmsg.Publisher, topic: str, columns: dict[str, pa.Array]) -> None:
    values = values_of(columns["value"])
    keys = columns["key"].to_pylist() if "key" in columns else None
    times = _times_ns(columns["timestamp"]) if "timestamp" in columns else None
    headers = _headers(columns["headers"]) if "headers" in columns else None
    if headers is None:
        publisher.publish_many(topic, values, keys, times)
        return
    for row in zip(values, keys or repeat(None), times or repeat(None), headers, strict=False):
        publisher.publish(topic, *row)


def _times_ns(column: pa.Array) -> "Sequence[int]":
    now = time.time_ns()
    return [
        now if each is None else each * 1000
        for each in column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_pylist()
    ]


def _headers(column: pa.Array) -> list[dict[str, Any] | None] | None:
    if column.null_count == len(column):
        return None
    return values_of(column)
