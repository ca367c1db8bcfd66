"""What the tasks do: each gets ranges, and yields record batches."""

import atexit
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

import p2pmsg
from spark_bridge.errors import BridgeError
from spark_bridge.keys import Keys, security_of
from spark_bridge.logs import read_logs, report_loss
from spark_bridge.offsets import Cut, Range
from spark_bridge.options import SourceOptions
from spark_bridge.schema import Layout, record_batches

_TASKS_MAX: Final = 4
"""At most so many tasks a batch, unless `minPartitions` is larger: the source cannot see how many
cores there are, and two tasks read 1.6 times what one reads."""
_TASK_ROWS_MIN: Final = 50_000
"""Fewer rows than this are not worth a second task: one reads them in some 40 ms."""
_CONNECTIONS_MAX: Final = 512
"""For a further connection, the one that was not used for the longest time is closed."""
_AHEAD_MAX: Final = 16_384
"""How many messages are requested before they are read, so that small ranges wait for their peers
at the same time; of each range at most `_AHEAD_EACH`, the first request of a fetch."""
_AHEAD_EACH: Final = 1024
_FETCHES_MAX: Final = 256
_PASSING: Final = (p2pmsg.errors.LossReason.TIMEOUT, p2pmsg.errors.LossReason.BUDGET)
"""Reasons that may be gone when the range is read again."""

_Place = tuple[str, int, Keys | None]
Fetch = Iterator[p2pmsg.MessageBatch | p2pmsg.LossReport]


class RangesPartition(InputPartition):  # type: ignore[misc]
    """The ranges that one task reads."""

    def __init__(self, ranges: Sequence[Range]) -> None:
        super().__init__(tuple(ranges))
        self.ranges = tuple(ranges)


def cut_by(options: SourceOptions) -> Cut:
    """Return how the ranges of a new batch are spread over tasks."""
    tasks_min = options.minPartitions
    return Cut(max(_TASKS_MAX, tasks_min), _TASK_ROWS_MIN, tasks_min)


class Connections:
    """Range readers by endpoint and session. Spark's workers run one task at a time.

    A worker process keeps them from task to task: connecting takes longer than a fetch.
    """

    def __init__(self, connections_max: int = _CONNECTIONS_MAX) -> None:
        self._max = connections_max
        self._readers: OrderedDict[_Place, p2pmsg.reader.RangeReader] = OrderedDict()

    def take(
        self, wanted: Range, timeout: float, keys: Keys | None = None
    ) -> p2pmsg.reader.RangeReader:
        """Return a reader for the place where `wanted` is, with these keys."""
        key = (wanted.endpoint, wanted.session, keys)
        reader = self._readers.get(key)
        if reader is None:
            while len(self._readers) >= self._max:
                self._readers.popitem(last=False)[1].close()
            reader = self._readers[key] = _connect(wanted, timeout, keys)
        self._readers.move_to_end(key)
        return reader

    def close(self) -> None:
        """Close all."""
        while self._readers:
            self._readers.popitem()[1].close()


def _connect(wanted: Range, timeout: float, keys: Keys | None) -> p2pmsg.reader.RangeReader:
    known: dict[str, Any] = {}
    if wanted.recovery_endpoint:  # else the driver could not reach the peer; it may be back
        known["recovery_endpoint"] = wanted.recovery_endpoint
        known |= {"session": wanted.session, "publisher": wanted.publisher}
    return p2pmsg.reader.RangeReader(
        wanted.endpoint, timeout=timeout, security=security_of(keys), **known
    )


connections: Final = Connections()
atexit.register(connections.close)


def read_ranges(
    ranges: Sequence[Range], options: SourceOptions, layout: Layout
) -> Iterator[pa.RecordBatch]:
    """Return the messages of `ranges`, each once.

    Raises:
        DataLossError: a range is gone, and `failOnDataLoss` is true.
        BridgeError: nobody answered within `fetchTimeoutMs`.
        ValueError: a value does not fit the schema.

    """
    read = read_logs if options.path else _read_peers
    return record_batches(layout, read(ranges, options, layout.value_type))


def _read_peers(
    ranges: Sequence[Range], options: SourceOptions, value_type: Any
) -> Iterator[p2pmsg.MessageBatch]:
    """Yield ranges one after the other; the next ones are requested in the meantime."""
    waiting, fetches, ahead = deque(ranges), deque[tuple[Range, Fetch]](), 0
    while waiting or fetches:
        # Never more than there may be connections, or the oldest would be closed while it is used.
        while waiting and ahead < _AHEAD_MAX and len(fetches) < _FETCHES_MAX:
            wanted = waiting.popleft()
            ahead += min(wanted.count, _AHEAD_EACH)
            fetches.append((wanted, _begin(wanted, options, value_type)))
        wanted, fetch = fetches.popleft()
        ahead -= min(wanted.count, _AHEAD_EACH)
        yield from _read(wanted, fetch, options)


def _begin(wanted: Range, options: SourceOptions, value_type: Any) -> Fetch:
    reader = connections.take(wanted, options.fetchTimeoutMs / 1000, options.keys)
    return reader.fetch(
        wanted.topic,
        wanted.start,
        wanted.stop,
        session=wanted.session,
        value_type=value_type,
        fixed=value_type is None,
    )


def _read(wanted: Range, fetch: Fetch, options: SourceOptions) -> Iterator[p2pmsg.MessageBatch]:
    """Yield a range's messages; the reader asks again, over new connections, until it is late.

    Answers that a task did not take, since it failed or was cancelled, are dropped by the
    connection's next fetch.
    """
    for item in fetch:
        if isinstance(item, p2pmsg.MessageBatch):
            yield item
        elif item.reason in _PASSING:
            raise BridgeError(
                f"no answer for {replace(wanted, start=item.start)} within "
                f"{options.fetchTimeoutMs / 1000:g} s (fetchTimeoutMs); start again when the peer "
                "is back: the range is read then"
            )
        else:
            name = wanted.publisher or item.publisher
            lost = replace(wanted, start=item.start, stop=item.stop, publisher=name)
            report_loss(lost, item.reason.value, options)
