"""What a task does: ranges in, record batches out."""

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Final

import pyarrow as pa

import p2pmsg
from spark_bridge.connections import connections
from spark_bridge.errors import DataLossError, PeerUnavailableError
from spark_bridge.logs import is_logged, read_logs
from spark_bridge.offsets import Range
from spark_bridge.options import SourceOptions
from spark_bridge.schema import BatchBuilder, Layout

_AHEAD_MAX: Final = 16_384
"""So many messages are asked for ahead of those that are being read, so that small ranges wait for
their peers together; of each range at most `_AHEAD_EACH`, the first request of a fetch."""
_AHEAD_EACH: Final = 1024
_FETCHES_MAX: Final = 256
_PASSING: Final = (p2pmsg.LossReason.TIMEOUT, p2pmsg.LossReason.BUDGET)
"""Reasons that say nothing about tomorrow."""
_AFTER_SILENCE: Final = {
    "query": "the query reads the range again when it is started again",
    "batch": "read the batch again when the peer is back",
}
_log: Final = logging.getLogger("spark_bridge")

Fetch = Iterator[p2pmsg.MessageBatch | p2pmsg.LossReport]


def read_ranges(
    ranges: Sequence[Range], options: SourceOptions, layout: Layout, *, by: str = "query"
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of `ranges`, each once.

    Args:
        ranges: of peers and of logs.
        options: of the source.
        layout: of the record batches.
        by: `query` (default) or `batch`: who reads, for what is said of failures.

    Raises:
        DataLossError: a range is gone, and `failOnDataLoss` is true.
        PeerUnavailableError: nobody answered, not even after `fetchRetries` new connections.
        ValueMismatchError: a value does not fit the schema.

    """
    builder = BatchBuilder(layout)
    logged = [each for each in ranges if is_logged(each)]
    others = [each for each in ranges if not is_logged(each)]
    batches = chain(
        read_logs(logged, options, layout.value_type),
        _Task(others, options, layout.value_type, by),
    )
    for batch in batches:
        builder.add(batch)
        if builder.is_full:
            yield from builder.take()
    yield from builder.take()


class _Task:
    """Reads ranges one behind the other, while the next ones are asked for already."""

    def __init__(
        self, ranges: Sequence[Range], options: SourceOptions, value_type: Any, by: str
    ) -> None:
        self._options = options
        self._by = by
        self._value_type = value_type
        self._waiting = deque(ranges)
        self._under_way: deque[tuple[Range, Fetch | None]] = deque()
        self._ahead = 0

    def __iter__(self) -> Iterator[p2pmsg.MessageBatch]:
        try:
            while self._waiting or self._under_way:
                while self._waiting and self._has_room():
                    wanted = self._waiting.popleft()
                    self._ahead += min(wanted.count, _AHEAD_EACH)
                    self._under_way.append((wanted, self._begin(wanted)))
                wanted, fetch = self._under_way.popleft()
                self._ahead -= min(wanted.count, _AHEAD_EACH)
                yield from self._read(wanted, fetch)
        finally:
            # What was asked for and is not read (the task failed, or was cancelled) comes all the
            # same, and is not to meet the next task's fetches.
            for wanted, _ in self._under_way:
                connections.drop(wanted)

    def _has_room(self) -> bool:
        # Never more than there may be connections, or the oldest would be closed under way.
        return self._ahead < _AHEAD_MAX and len(self._under_way) < _FETCHES_MAX

    def _begin(self, wanted: Range) -> Fetch:
        reader = connections.take(wanted, self._options.fetchTimeoutMs / 1000)
        return reader.fetch(
            wanted.topic,
            wanted.start,
            wanted.stop,
            session=wanted.session,
            value_type=self._value_type,
            fixed=self._value_type is None,
        )

    def _read(self, wanted: Range, fetch: Fetch | None) -> Iterator[p2pmsg.MessageBatch]:
        """Yield a range's messages; where a fetch runs out of time, begin its rest anew."""
        options, attempt = self._options, 1
        try:
            while True:
                for item in self._begin(wanted) if fetch is None else fetch:
                    if isinstance(item, p2pmsg.MessageBatch):
                        wanted = replace(wanted, start=item.sequence + len(item))
                        yield item
                    elif item.reason in _PASSING:
                        wanted = replace(wanted, start=item.start)
                        break
                    else:
                        _lose(wanted, item, options, self._by)
                        wanted = replace(wanted, start=item.stop)
                else:
                    return
                if attempt > options.fetchRetries:
                    seconds = attempt * options.fetchTimeoutMs / 1000
                    raise PeerUnavailableError(
                        f"no answer for {wanted} within {seconds:g} s and {attempt} attempts; "
                        f"{_AFTER_SILENCE[self._by]}"
                    )
                attempt += 1
                _log.warning("no answer for %s; attempt %d", wanted, attempt)
                self._drop(wanted)
                fetch = None
        except BaseException:
            self._drop(wanted)
            raise

    def _drop(self, wanted: Range) -> None:
        """Close a connection; the other fetches that it had are begun anew in their turn."""
        connections.drop(wanted)
        place = (wanted.endpoint, wanted.session)
        self._under_way = deque(
            (each, None if (each.endpoint, each.session) == place else fetch)
            for each, fetch in self._under_way
        )


def _lose(wanted: Range, report: p2pmsg.LossReport, options: SourceOptions, by: str) -> None:
    lost = f"{report}, at {wanted.endpoint}"
    if options.failOnDataLoss:
        raise DataLossError(lost, by)
    _log.warning("%s; skipped", lost)
