"""What the tasks do: each gets ranges, and yields record batches."""

import atexit
import logging
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
from spark_bridge.schema import BatchBuilder, Layout

_TASKS_MAX: Final = 4
"""At most so many tasks a batch, unless `minPartitions` is larger: the source cannot see how many
cores there are, and two tasks read 1.6 times what one reads."""
_RETRIES: Final = 3
"""How often a fetch that timed out is tried again, over new connections. 3, as Kafka's source."""
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
"""Reasons that may be gone at the next attempt."""
_log: Final = logging.getLogger("spark_bridge")

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

    def drop(self, wanted: Range, keys: Keys | None = None) -> None:
        """Close the reader for the place where `wanted` is: something is wrong with it."""
        reader = self._readers.pop((wanted.endpoint, wanted.session, keys), None)
        if reader is not None:
            reader.close()

    def close(self) -> None:
        """Close all."""
        while self._readers:
            self._readers.popitem()[1].close()


def _connect(wanted: Range, timeout: float, keys: Keys | None) -> p2pmsg.reader.RangeReader:
    security = security_of(keys)
    if not wanted.recovery_endpoint:  # the driver could not reach the peer; it may be back
        return p2pmsg.reader.RangeReader(wanted.endpoint, timeout=timeout, security=security)
    return p2pmsg.reader.RangeReader(
        wanted.endpoint,
        timeout=timeout,
        recovery_endpoint=wanted.recovery_endpoint,
        session=wanted.session,
        publisher=wanted.publisher,
        security=security,
    )


connections: Final = Connections()
atexit.register(connections.close)


def read_ranges(
    ranges: Sequence[Range], options: SourceOptions, layout: Layout
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of `ranges`, each once.

    Raises:
        DataLossError: a range is gone, and `failOnDataLoss` is true.
        BridgeError: nobody answered, not even over new connections.
        ValueError: a value does not fit the schema.

    """
    builder = BatchBuilder(layout)
    read = read_logs if options.path else _Task
    for batch in read(ranges, options, layout.value_type):
        builder.add(batch)
        if builder.is_full:
            yield from builder.take()
    yield from builder.take()


class _Task:
    """Reads ranges one after the other; the next ones are requested in the meantime."""

    def __init__(self, ranges: Sequence[Range], options: SourceOptions, value_type: Any) -> None:
        self._options = options
        self._value_type = value_type
        self._waiting = deque(ranges)
        self._fetches: deque[tuple[Range, Fetch | None]] = deque()
        self._ahead = 0

    def __iter__(self) -> Iterator[p2pmsg.MessageBatch]:
        try:
            while self._waiting or self._fetches:
                while self._waiting and self._has_space():
                    wanted = self._waiting.popleft()
                    self._ahead += min(wanted.count, _AHEAD_EACH)
                    self._fetches.append((wanted, self._begin(wanted)))
                wanted, fetch = self._fetches.popleft()
                self._ahead -= min(wanted.count, _AHEAD_EACH)
                yield from self._read(wanted, fetch)
        finally:
            # What was requested and is not read (the task failed, or was cancelled) still arrives,
            # and must not mix with the next task's fetches.
            for wanted, _ in self._fetches:
                connections.drop(wanted, self._options.keys)

    def _has_space(self) -> bool:
        # Never more than there may be connections, or the oldest would be closed while it is used.
        return self._ahead < _AHEAD_MAX and len(self._fetches) < _FETCHES_MAX

    def _begin(self, wanted: Range) -> Fetch:
        options = self._options
        reader = connections.take(wanted, options.fetchTimeoutMs / 1000, options.keys)
        return reader.fetch(
            wanted.topic,
            wanted.start,
            wanted.stop,
            session=wanted.session,
            value_type=self._value_type,
            fixed=self._value_type is None,
        )

    def _read(self, wanted: Range, fetch: Fetch | None) -> Iterator[p2pmsg.MessageBatch]:
        """Yield a range's messages; where a fetch runs out of time, request the rest again."""
        options, attempt, following = self._options, 1, wanted.start
        try:
            while True:
                for item in self._begin(wanted) if fetch is None else fetch:
                    if isinstance(item, p2pmsg.MessageBatch):
                        following = item.sequence + len(item)
                        yield item
                    elif item.reason in _PASSING:
                        following = item.start
                        break
                    else:
                        name = wanted.publisher or item.publisher
                        lost = replace(wanted, start=item.start, stop=item.stop, publisher=name)
                        report_loss(lost, item.reason.value, options)
                        following = item.stop
                else:
                    return
                wanted = replace(wanted, start=following)
                if attempt > _RETRIES:
                    seconds = attempt * options.fetchTimeoutMs / 1000
                    raise BridgeError(
                        f"no answer for {wanted} within {seconds:g} s and {attempt} attempts; "
                        "start again when the peer is back: the range is read then"
                    )
                attempt += 1
                _log.warning("no answer for %s; attempt %d", wanted, attempt)
                self._drop(wanted)
                fetch = None
        except BaseException:
            self._drop(wanted)
            raise

    def _drop(self, wanted: Range) -> None:
        """Close a connection; its other fetches begin again when it is their turn."""
        connections.drop(wanted, self._options.keys)
        key = (wanted.endpoint, wanted.session)
        self._fetches = deque(
            (each, None if (each.endpoint, each.session) == key else fetch)
            for each, fetch in self._fetches
        )
