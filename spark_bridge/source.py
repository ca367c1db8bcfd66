"""The streaming source `p2pmsg`. Only this module and `tasks` are loaded by Spark's workers.

One process a query calls `initialOffset`, `latestOffset`, `partitions` and `stop`; it holds the
connections for heads. Other copies of the reader are pickled to the executors, where `read` sees
its partition and nothing else.
"""

import logging
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from spark_bridge import offsets
from spark_bridge.errors import DataLossError
from spark_bridge.heads import HeadsWatch
from spark_bridge.offsets import PeerView, Range
from spark_bridge.options import SourceOptions, parse_options
from spark_bridge.schema import SPARK_SCHEMA
from spark_bridge.tasks import read_ranges

if TYPE_CHECKING:
    import pyarrow as pa

_TASK_ROWS_MIN: Final = 50_000
"""Fewer rows than this are not worth a second task: one reads them in some 40 ms."""
_log: Final = logging.getLogger("spark_bridge")


class P2pmsgSource(DataSource):  # type: ignore[misc]
    """`spark.readStream.format("p2pmsg")`."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "p2pmsg"

    def schema(self) -> str:
        """Return the columns; bad options are refused here, before anything runs."""
        parse_options(self.options)
        return SPARK_SCHEMA

    def streamReader(self, schema: Any) -> "P2pmsgStreamReader":
        """Return the reader."""
        return P2pmsgStreamReader(parse_options(self.options))


class RangesPartition(InputPartition):  # type: ignore[misc]
    """What one task reads."""

    def __init__(self, ranges: tuple[Range, ...]) -> None:
        super().__init__(ranges)
        self.ranges = ranges


class P2pmsgStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Offsets and partitions; see `offsets` for what they mean."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._watch: HeadsWatch | None = None
        self._pin = uuid4().hex[:16]
        self._first: dict[str, Any] | None = None
        self._first_returned = False
        self._frozen: dict[str, PeerView] | None = None
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["options"])  # type: ignore[misc]

    def initialOffset(self) -> dict[str, Any]:
        """Return where the query starts: always the same answer, though the streams move on."""
        if self._first is None:
            options = self._options
            earliest = options.startingOffsets == "earliest"
            views = self._views()
            start = offsets.first(views, options.subscribe, earliest=earliest)
            self._first = offsets.to_json(start, self._pin)
        return self._first

    def latestOffset(self, start: dict[str, Any], limit: object) -> dict[str, Any]:
        """Return how far the next batch reads; never behind `start`.

        The first batch of a query is empty: it writes the start to Spark's log, because Spark asks
        for it again after a restart, when it would be another one.
        """
        if start.get("pin") == self._pin and not self._first_returned:
            self._first_returned = True
            return start
        before = offsets.from_json(start)
        after = offsets.advance(before, self._frozen or self._views(), self._options.subscribe)
        return start if after == before else offsets.to_json(after)

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the peers' heads, for the query's progress reports."""
        topics = self._options.subscribe
        return offsets.to_json(offsets.first(self._views(), topics, earliest=False))

    def prepareForTriggerAvailableNow(self) -> None:
        """Read up to what is there now, and then end."""
        self._frozen = self._views()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return what the tasks read."""
        wanted = offsets.ranges(offsets.from_json(start), offsets.from_json(end))
        if not wanted:
            return []
        located = self._locate(wanted)
        packed = offsets.pack(located, self._options.maxPartitions, _TASK_ROWS_MIN)
        return [RangesPartition(tuple(ranges)) for ranges in packed]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Fetch the partition's ranges from the peers."""
        assert isinstance(partition, RangesPartition)
        return read_ranges(partition.ranges, self._options)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: peers keep messages by their own bounds."""

    def stop(self) -> None:
        """Close the connections. Spark ends this process by a signal as a rule, which does, too."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def _views(self) -> dict[str, PeerView]:
        with self._lock:
            if self._watch is None:
                refresh_seconds = self._options.headRefreshMs / 1000
                self._watch = HeadsWatch(self._options.peers, refresh_seconds)
            return self._watch.views()

    def _locate(self, wanted: list[Range]) -> list[Range]:
        """Return `wanted` with where to ask; what an ended session owed is lost here already."""
        views = self._views()
        located = []
        for each in wanted:
            view = views.get(each.endpoint, PeerView())
            heads = view.of_session(each.session)
            if heads is not None:
                each = offsets.located(each, heads, ended=view.ended(each.session))
            if not view.ended(each.session):
                located.append(each)
                continue
            lost = f"lost {each}: publisher_gone"
            if self._options.failOnDataLoss:
                raise DataLossError(lost)
            _log.warning("%s; skipped", lost)
        return located
