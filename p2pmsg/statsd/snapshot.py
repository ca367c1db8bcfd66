"""A flush: all metrics of one interval, as rows that are made some at a time.

The statistics of timers are those of statsd (sum, mean, percentiles …).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from p2pmsg.statsd.codes import Places
from p2pmsg.statsd.columns import Floats
from p2pmsg.statsd.config import AggregateConfig
from p2pmsg.statsd.metric import Event, Kind, ServiceCheck, split_key
from p2pmsg.statsd.series import KIND_OF_MARK, Series
from p2pmsg.statsd.values import Values, quiet, sketch_object

CHUNK_ROWS = 32
"""Rows made at a time: with all outputs a millisecond, so that reading goes on in between."""


Fields = dict[str, float]


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
        fields: of a counter `count` and `rate` (a second), and `total` if exact clients count it:
            what they alone have counted; of a gauge `value`, of a set `count`; of the others what
            `AggregateConfig.percentiles` asks for.
        timestamp_s: seconds since the epoch; the flush's, or the one that was sent.
        sketch: of a distribution, see `p2pmsg.statsd.read_sketch`; else None.
        weighted_sum: of a timer, histogram or distribution with sample rates, the sum of its
            values, each divided by its rate as `count` is; None: it is `sum`.

    """

    kind: Kind
    key: str
    fields: Fields
    timestamp_s: float
    sketch: dict[str, Any] | None = None
    weighted_sum: float | None = None

    @property
    def name(self) -> str:
        """The name without tags."""
        return split_key(self.key)[0]

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags, sorted, each `key:value` or `key`."""
        return split_key(self.key)[1]


def percentile_name(percentile: float) -> str:
    """Return 90 as `90`, 99.9 as `99_9`, -10 as `top10`."""
    return f"{percentile or 0:.15g}".replace(".", "_", 1).replace("-", "top", 1)


class Statistics:
    """Statistics of exact values.

    Args:
        rows: row of each value.
        values: the values.
        percentiles: see `AggregateConfig.percentiles`.
        weights: 1 / rate of each value, None where all are 1. As in statsd, they are not in the
            fields.

    """

    def __init__(
        self,
        rows: Places,
        values: Floats,
        percentiles: Sequence[float],
        weights: Floats | None = None,
    ) -> None:
        self.rows: list[int] = []
        if not len(rows):
            return
        # Two sorts of plain 64-bit numbers, which processors do eight at a time, and no sort by two
        # columns: first by value, then by row and rank.
        by_value = np.argsort(values)
        codes = rows[by_value].astype(np.int64) << 32
        codes |= np.arange(len(rows), dtype=np.int64)
        codes.sort()
        places = by_value[codes & 0xFFFFFFFF]
        ordered = values[places]
        numbers = codes >> 32
        starts = np.flatnonzero(np.concatenate(([True], numbers[1:] != numbers[:-1])))
        ends = np.append(starts[1:], len(numbers))
        counts = ends - starts
        self.rows = numbers[starts].tolist()
        self._ordered = ordered
        self._weights = None if weights is None else weights[places]
        self._weighted_sums: list[float] | None = None
        if self._weights is not None:
            self._weighted_sums = np.add.reduceat(ordered * self._weights, starts).tolist()
        self._starts, self._ends = starts.tolist(), ends.tolist()
        padded = np.append(ordered, 0.0)
        squares = padded * padded
        columns: dict[str, Floats] = {}
        for percentile in percentiles:
            columns |= _percentile_columns(percentile, starts, counts, padded, squares)
        sums = np.add.reduceat(ordered, starts)
        means = sums / counts
        offsets = ordered - np.repeat(means, counts)
        middles = starts + counts // 2
        columns["std"] = np.sqrt(np.add.reduceat(offsets * offsets, starts) / counts)
        columns["upper"] = ordered[ends - 1]
        columns["lower"] = ordered[starts]
        columns["sum"] = sums
        columns["sum_squares"] = np.add.reduceat(squares[:-1], starts)
        columns["mean"] = means
        columns["median"] = np.where(
            counts % 2 == 1,
            ordered[middles],
            (ordered[np.maximum(middles - 1, starts)] + ordered[middles]) / 2,
        )
        self._names = list(columns)
        self._table = np.column_stack(list(columns.values()))

    def fields(self, start: int, stop: int) -> list[Fields]:
        """Return the fields of `rows[start:stop]`."""
        names = self._names
        return [
            {name: value for name, value in zip(names, line, strict=True) if value == value}
            for line in self._table[start:stop].tolist()
        ]

    def sketch(self, index: int) -> dict[str, Any]:
        """Return the sketch of the values of `rows[index]`."""
        part = slice(self._starts[index], self._ends[index])
        weights = None if self._weights is None else self._weights[part]
        return sketch_object(self._ordered[part], weights)

    def weighted_sum(self, index: int) -> float | None:
        """Return the sum of the values with their weights; None where there are none."""
        return None if self._weighted_sums is None else self._weighted_sums[index]


def _percentile_columns(
    percentile: float, starts: Places, counts: Places, values: Floats, squares: Floats
) -> dict[str, Floats]:
    """Return the columns of one percentile; NaN where it would have no value."""
    name = percentile_name(percentile)
    within = np.floor(abs(percentile) / 100 * counts + 0.5).astype(np.int64)
    within = np.where(counts == 1, 1, np.minimum(within, counts))
    none = within == 0
    taken = np.maximum(within, 1)
    first = starts if percentile > 0 else starts + counts - taken
    edges = np.column_stack((first, first + taken)).ravel()
    sums = np.add.reduceat(values, edges)[::2]
    sum_squares = np.add.reduceat(squares, edges)[::2]
    bound = values[first + taken - 1] if percentile > 0 else values[first]
    side = "upper" if percentile > 0 else "lower"
    columns = {
        "count": within.astype(np.float64), "mean": sums / taken, side: bound, "sum": sums,
        "sum_squares": sum_squares,
    }  # fmt: skip
    return {f"{field}_{name}": np.where(none, np.nan, column) for field, column in columns.items()}


class Snapshot:
    """The metrics of one interval.

    Attributes:
        timestamp_s: when it was taken, seconds since the epoch.
        interval_s: how long it is, in seconds.
        events: events and service checks, in order.
        config: the collector's settings.
        exact_counts: by key, the part of this interval's counts that came from exact clients.
        series, values, sets, exact_totals, timed: the metrics, by kind; `rows` gives all of them.

    """

    def __init__(
        self,
        config: AggregateConfig,
        series: Series,
        values: Values,
        sets: dict[int, set[str]],
        *,
        timestamp_s: float,
        interval_s: float,
        exact_totals: Mapping[str, float],
        exact_counts: Mapping[str, float],
        timed: dict[Timed, float],
        events: list[Event | ServiceCheck],
    ) -> None:
        count = series.row_count
        self.timestamp_s = timestamp_s
        self.config = config
        self.interval_s = interval_s
        self.events = events
        self.exact_counts = exact_counts
        self._timed = timed
        self._exact = dict(exact_totals)
        self._keys = series.marked_keys()
        self._kinds = series.kinds[:count].copy()
        self._totals = series.totals[:count].copy()
        self._values = values
        self._sets = sets
        self._statistics: Statistics | None = None

    @property
    def value_count(self) -> int:
        """How many values of timers have to be sorted."""
        return len(self._values)

    def __len__(self) -> int:
        """How many metrics there are, without those that have their own timestamp."""
        return int(np.count_nonzero(self._kinds))

    def prepare(self) -> None:
        """Sort the values of timers. numpy does it without Python's lock, so a thread may."""
        with quiet():
            rows, values, weights = self._values.columns()
            self._statistics = Statistics(rows, values, self.config.percentiles, weights)

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
        is_statistic = np.isin(self._kinds, list(map(ord, "thd")))
        for idle in _chunks(np.flatnonzero(is_statistic & ~done).tolist()):
            yield [self._statistic_row(row, {}, -1) for row in idle]

    def _statistic_row(self, row: int, fields: Fields, index: int) -> Row:
        key = self._key(row)
        count = float(self._totals[row])
        fields["count"], fields["count_ps"] = count, count / self.interval_s
        kind = KIND_OF_MARK[int(self._kinds[row])]
        if index < 0:
            return Row(kind, key, fields, self.timestamp_s)
        statistics = self._statistics
        assert statistics is not None
        sketch = statistics.sketch(index) if kind is Kind.DISTRIBUTION else None
        return Row(kind, key, fields, self.timestamp_s, sketch, statistics.weighted_sum(index))


def _chunks(items: Any) -> Iterator[Any]:
    for start in range(0, len(items), CHUNK_ROWS):
        yield items[start : start + CHUNK_ROWS]
