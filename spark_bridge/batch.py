"""Reading a batch: ranges whose ends were fixed when the frame was made."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition

from spark_bridge import checks, offsets
from spark_bridge.checks import Found
from spark_bridge.errors import OptionError, PeerUnavailableError
from spark_bridge.heads import ask_once, end_of, start_of
from spark_bridge.logs import log_ranges
from spark_bridge.offsets import Range
from spark_bridge.options import SourceOptions
from spark_bridge.schema import Layout
from spark_bridge.selection import Selection
from spark_bridge.session_directory import PeerView, SessionDirectory
from spark_bridge.tasks import RangesPartition, partitions_of, read_ranges

if TYPE_CHECKING:
    import pyarrow as pa

_ASK_SECONDS: Final = 2.0
_log: Final = logging.getLogger("spark_bridge")


@dataclass(frozen=True)
class FixedEnds:
    """What a batch reads, whatever is published later.

    Attributes:
        ranges: with the places where to fetch them.
        silent: peers that did not answer.
        refusal: why the batch is refused, if it is. Reading raises it: Spark makes a source before
            it says whether it reads a batch of it.
        warnings: logged before it is read.

    """

    ranges: tuple[Range, ...]
    silent: tuple[str, ...] = ()
    refusal: OptionError | None = None
    warnings: tuple[str, ...] = ()


def fix_ends(options: SourceOptions) -> FixedEnds:
    """Ask the peers where their streams stand; a stream that is read does not use the answer."""
    if options.path:
        try:
            ranges, found = log_ranges(options)
        except OptionError as error:  # a stream has no `path` at all, and says so itself
            return FixedEnds((), (), error)
        return FixedEnds(tuple(ranges), (), *_objections(options, found, is_empty=not ranges))
    heads = ask_once(options.peers, _ASK_SECONDS)
    views = {
        endpoint: PeerView({each.session: each for each in found})
        for endpoint, found in heads.items()
    }
    directory, selection = SessionDirectory(views), Selection.of(options)
    start = offsets.first(directory, selection, start_of(options, "earliest"))
    end = offsets.first(directory, selection, end_of(options))
    located = []
    for wanted in offsets.ranges(start, end):
        location = directory.find(wanted.endpoint, wanted.session, wanted.topic, wanted.start)
        assert location is not None
        located.append(offsets.located(wanted, location))
    silent = tuple(peer for peer in options.peers if peer not in heads)
    refusal, warnings = _objections(options, tuple(directory.homes()), silent, is_empty=not located)
    return FixedEnds(tuple(located), silent, refusal, warnings)


def _objections(
    options: SourceOptions, found: Found, silent: tuple[str, ...] = (), *, is_empty: bool
) -> tuple[OptionError | None, tuple[str, ...]]:
    """Return why a batch is refused for what its options name, and what to warn of.

    A topic that no peer has is refused, as Kafka's source does: no later batch will read it. With
    `failOnDataLoss=false` that is a warning.
    """
    warnings = []
    refusal = checks.unknown_publisher(options, found)
    if refusal is not None and silent:
        warnings.append(f"{refusal}. It may be one of those that did not answer")
        refusal = None
    refusal = (
        refusal
        or checks.beyond_head("startingOffsets", options, found)
        or checks.beyond_head("endingOffsets", options, found)
        or checks.end_before_start(options, found)
    )
    missing = checks.missing_topics(Selection.of(options), found)
    if missing is not None and refusal is None:
        if options.failOnDataLoss and options.subscribePattern is None:
            option = "subscribe" if options.assign is None else "assign"
            reason = f"cannot be read: {missing}. failOnDataLoss=false reads the others"
            refusal = OptionError(option, reason)
        else:
            warnings.append(missing)
    elif is_empty and refusal is None and (nothing := checks.empty_times(options, found)):
        warnings.append(nothing)
    return refusal, tuple(warnings)


class P2pmsgBatchReader(DataSourceReader):  # type: ignore[misc]
    """Reads the ranges that were fixed."""

    def __init__(self, options: SourceOptions, layout: Layout, ends: FixedEnds) -> None:
        self._options = options
        self._layout = layout
        self._ends = ends

    def partitions(self) -> Sequence[InputPartition]:
        """Return what the tasks read."""
        options, ends = self._options, self._ends
        if ends.silent:
            text = f"no heads from {', '.join(ends.silent)} within {_ASK_SECONDS:g} s"
            name = "failOnDataLoss" if options.failOnPeerAway is None else "failOnPeerAway"
            if getattr(options, name):
                raise PeerUnavailableError(
                    f"{text}. The batch fails because {name} is true; set it to false to read "
                    "without these peers"
                )
            _log.warning("%s; read without them", text)
        if ends.refusal is not None:
            raise ends.refusal
        for warning in ends.warnings:
            _log.warning("%s", warning)
        return partitions_of(list(ends.ranges), options)

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Fetch the partition's ranges; Spark makes an empty one where there are none."""
        if not isinstance(partition, RangesPartition):
            return iter(())
        return read_ranges(partition.ranges, self._options, self._layout, by="batch")
