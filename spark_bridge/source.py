"""The data source `p2pmsg`: what Spark calls for streams, batches and sinks.

Of a stream, one process a query calls `initialOffset`, `latestOffset`, `partitions` and `stop`; it
holds the connections for heads. Other copies of the reader are pickled to the executors, where
`read` sees its partition and nothing else.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import uuid4

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

import p2pmsg
from spark_bridge import checks, offsets
from spark_bridge.errors import BridgeError
from spark_bridge.heads import FIRST_WAIT_SECONDS, PeersWatch, at_time
from spark_bridge.logs import log_ranges, report_loss
from spark_bridge.offsets import Range
from spark_bridge.options import (
    SourceOptions,
    check_use,
    is_sink,
    parse_options,
    parse_sink_options,
)
from spark_bridge.schema import Layout, spark_schema
from spark_bridge.selection import end_of, start_of
from spark_bridge.session_directory import SessionDirectory
from spark_bridge.sink import P2pmsgBatchWriter, P2pmsgStreamWriter
from spark_bridge.tasks import RangesPartition, cut_by, read_ranges
from spark_bridge.typed import layout_of, raw_names

if TYPE_CHECKING:
    import pyarrow as pa

_log: Final = logging.getLogger("spark_bridge")


class FixedEnds(NamedTuple):
    """What a batch reads, whatever is published later."""

    ranges: tuple[Range, ...] = ()
    """With the places where to fetch them."""

    warnings: tuple[str, ...] = ()
    """Logged before it is read."""

    refusal: Exception | None = None
    """Reading raises it: Spark makes a source before it says whether it reads a batch of it."""


def fix_ends(options: SourceOptions) -> FixedEnds:
    """Ask the peers where their streams stand; a stream that is read does not use the answer."""
    try:
        if not options.path:
            return _fix_ends_of_peers(options)
        ranges, found = log_ranges(options)
        return FixedEnds(tuple(ranges), tuple(checks.check_batch(options, found)))
    except (BridgeError, p2pmsg.P2PError) as error:
        return FixedEnds(refusal=error)


def _fix_ends_of_peers(options: SourceOptions) -> FixedEnds:
    warnings: list[str] = []
    watch = PeersWatch(options)
    try:
        try:
            directory = watch.directory()
        except p2pmsg.errors.AccessDeniedError as error:
            if options.failOnDataLoss:
                raise
            warnings.append(str(error))
            directory = watch.directory()
        reasons = watch.reasons()
    finally:
        watch.close()
    denied = [topic for view in directory.views.values() for topic in view.denied]
    if silent := directory.away():
        who = checks.explained(silent, reasons)
        text = f"no heads from {who} within {FIRST_WAIT_SECONDS:g} s"
        if options.failOnDataLoss:
            raise BridgeError(
                f"{text}. The batch fails because failOnDataLoss is true; set it to false to read "
                "without these peers"
            )
        warnings.append(f"{text}; read without them")
    found = tuple(directory.homes())
    warnings += checks.check_batch(options, found, denied, has_silent=bool(silent))
    by_time = partial(at_time, options)
    start = offsets.first(directory, options, start_of(options, "earliest", by_time))
    end = offsets.first(directory, options, end_of(options, by_time))
    located = []
    for wanted in offsets.ranges(start, end):
        location = directory.find(wanted.endpoint, wanted.session, wanted.topic, wanted.start)
        assert location is not None
        located.append(offsets.located(wanted, location))
    return FixedEnds(tuple(located), tuple(warnings))


class P2pmsgBatchReader(DataSourceReader):  # type: ignore[misc]
    """Reads the ranges that were fixed."""

    def __init__(self, options: SourceOptions, layout: Layout, ends: FixedEnds) -> None:
        self._options = options
        self._layout = layout
        self._ends = ends

    def partitions(self) -> Sequence[InputPartition]:
        """Return what the tasks read."""
        ends = self._ends
        if ends.refusal is not None:
            raise ends.refusal
        for warning in ends.warnings:
            _log.warning("%s", warning)
        packed = offsets.pack(list(ends.ranges), cut_by(self._options))
        return [RangesPartition(each) for each in packed]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Fetch the partition's ranges from peers or logs."""
        if not isinstance(partition, RangesPartition):  # Spark's own, where there are none
            return iter(())
        return read_ranges(partition.ranges, self._options, self._layout)


class P2pmsgStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Offsets and partitions; see `offsets` for what they mean."""

    def __init__(self, options: SourceOptions, layout: Layout) -> None:
        self._options = options
        self._layout = layout
        self._watch: PeersWatch | None = None
        self._pin = uuid4().hex[:16]
        self._first: dict[str, Any] | None = None
        self._is_checked = False
        self._watched: set[int] = set()
        self._frozen: SessionDirectory | None = None
        self._nothing_new: tuple[SessionDirectory, dict[str, Any]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self._options, "layout": self._layout}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["options"], state["layout"])  # type: ignore[misc]

    def initialOffset(self) -> dict[str, Any]:
        """Return where the query starts: always the same answer, though the streams move on."""
        if self._first is None:
            directory = self._directory()
            begins = start_of(self._options, "latest", partial(at_time, self._options))
            start = offsets.first(directory, self._options, begins)
            self._watched.update(directory.sessions)
            self._first = offsets.to_json(start, self._pin)
        return self._first

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return `maxOffsetsPerTrigger`."""
        rows_max = self._options.maxOffsetsPerTrigger
        return ReadAllAvailable() if rows_max is None else ReadMaxRows(rows_max)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return how far the next batch reads; never less far than `start`.

        The end of a query's first batch has its start with it, for Spark's log: Spark asks for the
        start again after a restart, when it would be another one.
        """
        directory = self._frozen or self._directory()
        known = self._nothing_new
        if known is not None and known[0] is directory and known[1] == start:
            return start
        before, is_first = offsets.from_json(start), start.get("pin") == self._pin
        self._check(before, directory, is_new=is_first)
        after = offsets.advance(before, directory, self._options, self._watched)
        self._watched.update(directory.sessions)
        if isinstance(limit, ReadMaxRows):
            # What is gone does not count, or a query that was overtaken would never catch up.
            after = offsets.limit(offsets.kept(before, directory), after, limit.max_rows)
        cut = cut_by(self._options)
        if is_first:
            return offsets.to_json(after, start=before, cut=cut)
        if after == before:
            self._nothing_new = directory, start
            return start
        return offsets.to_json(after, cut=cut)

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the peers' heads, for the query's progress reports."""
        directory = self._directory()
        heads = offsets.first(directory, self._options, offsets.latest)
        report = offsets.to_json(heads)
        report["away"] = directory.away()
        report["denied"] = directory.denied()
        return report

    def prepareForTriggerAvailableNow(self) -> None:
        """Read up to what is there now, and then end."""
        self._frozen = self._directory()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return what the tasks read.

        The batch is cut as it was planned, and only then what is gone is left out: its partitions
        have the same numbers and messages whenever it is taken up again.
        """
        begin = offsets.start_of_batch(start, end)
        assert begin is not None
        self._check(begin, self._directory(), is_new=False)
        wanted = offsets.ranges(begin, offsets.from_json(end))
        if not wanted:
            return []
        packed = offsets.pack(wanted, offsets.cut_of(end))
        left = self._locate(wanted)
        tasks = offsets.without_gone(packed, left) if left else []
        return [RangesPartition(each) for each in tasks]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Fetch the partition's ranges from the peers."""
        assert isinstance(partition, RangesPartition)
        return read_ranges(partition.ranges, self._options, self._layout)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: peers keep messages by their own bounds."""

    def stop(self) -> None:
        """Close the connections. Usually Spark ends this process by a signal, which closes them."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def _directory(self) -> SessionDirectory:
        """Return what is known of the peers; the same object as before, if nothing has changed."""
        if self._watch is None:
            self._watch = PeersWatch(self._options)
        return self._watch.directory()

    def _check(
        self, positions: offsets.Positions, directory: SessionDirectory, *, is_new: bool
    ) -> None:
        if not self._is_checked:
            reasons = {} if self._watch is None else self._watch.reasons()
            self._is_checked = checks.check_stream(
                self._options, positions, directory, reasons, is_new=is_new
            )

    def _locate(self, wanted: list[Range]) -> dict[tuple[str, int, str], Range]:
        """Return what is left of each range, with where to ask, by the stream that was planned.

        What is known to be gone is reported lost here.
        """
        directory, located = self._directory(), {}
        for each in wanted:
            location = directory.find(each.endpoint, each.session, each.topic, each.start)
            if location is None:
                former = directory.last_heads(each.endpoint, each.session)
                name = "" if former is None else former.publisher
                report_loss(replace(each, publisher=name), "publisher_gone", self._options)
                continue
            stream, each = each.stream, offsets.located(each, location)
            kept = each.kept(location.heads.streams.get(each.topic) if location.is_sure else None)
            if kept.start > each.start:
                report_loss(each.until(kept.start), "evicted", self._options)
            if kept.count:
                located[stream] = kept
        return located


class P2pmsgSource(DataSource):  # type: ignore[misc]
    """`spark.readStream.format("p2pmsg")`, `spark.read…`, `writeStream…` and `write…`.

    Spark makes it once a frame and pickles it from then on, so what is looked up here does not
    change: the ends of a batch are the same for each action.
    """

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._ends: FixedEnds | None = None
        if not is_sink(options):
            self._ends = fix_ends(parse_options(options))

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "p2pmsg"

    def schema(self) -> str:
        """Return the columns."""
        options = parse_options(self.options)
        return spark_schema(raw_names(options))

    def streamReader(self, schema: Any) -> "P2pmsgStreamReader":
        """Return the reader of a stream."""
        check_use(self.options, streaming=True)
        options = parse_options(self.options)
        return P2pmsgStreamReader(options, layout_of(schema, options))

    def reader(self, schema: Any) -> P2pmsgBatchReader:
        """Return the reader of a batch."""
        check_use(self.options, streaming=False)
        options = parse_options(self.options)
        ends = self._ends or fix_ends(options)
        return P2pmsgBatchReader(options, layout_of(schema, options), ends)

    def streamWriter(self, schema: Any, overwrite: bool) -> P2pmsgStreamWriter:
        """Return the sink of a stream, in append mode, or in complete mode (`overwrite`).

        Complete mode publishes the whole result in each batch. Update mode does not come here:
        Spark refuses it for all Python sinks.
        """
        return P2pmsgStreamWriter(parse_sink_options(self.options), schema)

    def writer(self, schema: Any, overwrite: bool) -> P2pmsgBatchWriter:
        """Return the sink of a batch."""
        return P2pmsgBatchWriter(
            parse_sink_options(self.options), schema, uuid4().hex, overwrite=overwrite
        )
