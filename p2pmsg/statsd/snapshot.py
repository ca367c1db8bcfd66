"""A flush: all metrics of one interval, as rows that are made some at a time."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from ddsketch import DDSketch

from p2pmsg.statsd.columns import Flags
from p2pmsg.statsd.config import AggregateConfig
from p2pmsg.statsd.metric import Event, Kind, ServiceCheck, split_key
from p2pmsg.statsd.series import KIND_OF_MARK, Series
from p2pmsg.statsd.statistics import Fields, Statistics, sketched_fields
from p2pmsg.statsd.values import Binned, Values, bin_values, bins_object, sketch_object

CHUNK_ROWS = 32
"""Rows made at a time: with all outputs a millisecond, so that reading goes on in between."""


class Timed(NamedTuple):
    """A metric that was sent with its own timestamp."""

    kind: Kind
    key: str
    timestamp_s: int


@dataclass(frozen=True, slots=True)
class Row:
    """One metric of one flush.

    Attributes:
        kind: its type; meters are counters.
        key: name and tags together.
        fields: of a counter `count` and `rate` (a second), and `total` if it is exact; of a gauge
            `value`, of a set `count`; of the others what `AggregateConfig.percentiles` and
            `histogram` ask for.
        timestamp_s: seconds since the epoch; the flush's, or the one that was sent.
        sketch: of a distribution, see `p2pmsg.statsd.read_sketch`; else None.

    """

    kind: Kind
    key: str
    fields: Fields
    timestamp_s: float
    sketch: dict[str, Any] | None = None

    @property
    def name(self) -> str:
        """The name without tags."""
        return split_key(self.key)[0]

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags, sorted, each `key:value` or `key`."""
        return split_key(self.key)[1]


class Snapshot:
    """The metrics of one interval.

    Attributes:
        timestamp_s: when it was taken, seconds since the epoch.
        interval_s: how long it is.
        events: events and service checks, in order.

    """

    def __init__(
        self,
        config: AggregateConfig,
        series: Series,
        values: Values,
        sets: dict[int, set[str]],
        *,
        timestamp_s: float,
        exact_totals: Mapping[str, float],
        timed: dict[Timed, float],
        events: list[Event | ServiceCheck],
    ) -> None:
        count = series.row_count
        self.timestamp_s = timestamp_s
        self.config = config
        self.interval_s = config.interval_s
        self.events = events
        self._timed = timed
        self._exact = dict(exact_totals)
        self._keys = series.marked_keys()
        self._kinds = series.kinds[:count].copy()
        self._totals = series.totals[:count].copy()
        self._values = values
        self._sets = sets
        self._statistics: Statistics | None = None
        self._binned: Binned | None = None

    @property
    def value_count(self) -> int:
        """How many values of timers have to be sorted, or are being put into bins."""
        return len(self._values) if not self._values.is_binning else self.config.values_max

    def __len__(self) -> int:
        """How many metrics there are, without those that have their own timestamp."""
        return int(np.count_nonzero(self._kinds))

    def prepare(self) -> None:
        """Sort the values of timers. numpy does it without Python's lock, so a thread may."""
        with np.errstate(over="ignore", invalid="ignore"):
            rows, values, weights = self._values.columns()
            binned = self._values.binned
            if binned is not None:
                if len(rows):
                    binned = binned.merged(bin_values(rows, values, weights))
                rows, values = rows[:0], values[:0]
            self._binned = binned
            self._statistics = Statistics(rows, values, self.config.percentiles)

    def rows(self) -> Iterator[list[Row]]:
        """Yield rows, some at a time: counters, statistics, gauges, sets, those with timestamps."""
        if self._statistics is None:
            self.prepare()
        assert self._statistics is not None
        yield from self._simple_rows("c")
        yield from self._statistic_rows(self._statistics)
        yield from self._simple_rows("g")
        yield from self._simple_rows("s")
        for timed in _chunks(list(self._timed.items())):
            yield [
                Row(key.kind, key.key, self._fields(key.kind, value), key.timestamp_s)
                for key, value in timed
            ]

    def _key(self, row: int) -> str:
        marked = self._keys[row]
        assert marked is not None
        return marked[1:]

    def _fields(self, kind: Kind, value: float) -> Fields:
        if kind is Kind.GAUGE:
            return {"value": value}
        return {"rate": value / self.interval_s, "count": value}

    def _simple_rows(self, mark: str) -> Iterator[list[Row]]:
        kind = KIND_OF_MARK[ord(mark)]
        for part in _chunks(np.flatnonzero(self._kinds == ord(mark))):
            totals = self._totals[part].tolist()
            rows = []
            for row, total in zip(part.tolist(), totals, strict=True):
                key = self._key(row)
                if mark == "s":
                    fields: Fields = {"count": float(len(self._sets.get(row, ())))}
                else:
                    fields = self._fields(kind, total)
                    if key in self._exact and mark == "c":
                        fields["total"] = self._exact[key]
                rows.append(Row(kind, key, fields, self.timestamp_s))
            yield rows

    def _statistic_rows(self, statistics: Statistics) -> Iterator[list[Row]]:
        done = np.zeros(len(self._kinds), np.bool_)
        done[statistics.rows] = True
        for indexes in _chunks(range(len(statistics.rows))):
            fields = statistics.fields(indexes.start, indexes.stop)
            yield [
                self._statistic_row(statistics.rows[index], found, index)
                for index, found in zip(indexes, fields, strict=True)
            ]
        if self._binned is not None:
            yield from self._sketched_rows(self._binned, done)
        is_statistic = np.isin(self._kinds, list(map(ord, "thd")))
        for idle in _chunks(np.flatnonzero(is_statistic & ~done).tolist()):
            yield [self._statistic_row(row, {}, -1) for row in idle]

    def _sketched_rows(self, binned: Binned, done: Flags) -> Iterator[list[Row]]:
        found, firsts = np.unique(binned.rows, return_index=True)
        edges = np.append(firsts, len(binned.codes)).tolist()
        bins, percentiles = binned.bins, self.config.percentiles
        for index, row in enumerate(found.tolist()):
            part = slice(edges[index], edges[index + 1])
            done[row] = True
            weights = binned.weights[part]
            fields = sketched_fields(binned, row, bins[part].tolist(), weights, percentiles)
            made = self._statistic_row(row, fields, -1)
            if made.kind is Kind.DISTRIBUTION:
                _, total, _, least, most = binned.exact[:, row].tolist()
                sketch = bins_object(bins[part], weights, total, least, most)
                made = replace(made, sketch=sketch)
            yield [made]

    def _statistic_row(self, row: int, fields: Fields, index: int) -> Row:
        key = self._key(row)
        count = float(self._totals[row])
        fields["count"], fields["count_ps"] = count, count / self.interval_s
        if index >= 0 and self.config.histogram:
            assert self._statistics is not None
            bounds = next((b for part, b in self.config.histogram if part in key), ())
            fields |= self._statistics.histogram(index, bounds)
        kind = KIND_OF_MARK[int(self._kinds[row])]
        sketch = None
        if kind is Kind.DISTRIBUTION and index >= 0:
            assert self._statistics is not None
            values = self._statistics.values(index)
            sketch = sketch_object(values, count / len(values))
        return Row(kind, key, fields, self.timestamp_s, sketch)

    def sketch(self, kind: Kind, key: str) -> DDSketch | None:
        """Return the values of one metric as a sketch, to merge with other collectors'."""
        mark = next(number for number, found in KIND_OF_MARK.items() if found is kind)
        found = np.flatnonzero(self._kinds == mark).tolist()
        row = next((row for row in found if self._key(row) == key), None)
        if row is None:
            return None
        rows, values, weights = self._values.columns()
        chosen = rows == row
        binned = bin_values(
            rows[chosen], values[chosen], None if weights is None else weights[chosen]
        )
        if self._values.binned is not None:
            binned = binned.merged(self._values.binned)
        return binned.sketch(row) if len(binned.codes) else None


def _chunks(items: Any) -> Iterator[Any]:
    for start in range(0, len(items), CHUNK_ROWS):
        yield items[start : start + CHUNK_ROWS]
