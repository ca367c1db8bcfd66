"""A flush: all metrics of one interval, as rows that are made some at a time.

The statistics of timers are those of statsd (sum, mean, percentiles …). The sketch is DDSketch with
a relative error of 1 % (Masson, Rim, Lee, "DDSketch: a fast and fully-mergeable quantile sketch",
VLDB 2019). Bins are those of the package ddsketch, so that sketches of several collectors can be
merged.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from ddsketch import DDSketch
from ddsketch.mapping import LogarithmicMapping

from p2pmsg.errors import ConfigError
from p2pmsg.statsd.columns import Floats, Places
from p2pmsg.statsd.grammar import STRICT, Dialect
from p2pmsg.statsd.metric import Event, Kind, ServiceCheck, split_key
from p2pmsg.statsd.series import KIND_OF_MARK
from p2pmsg.toolkit import check_fields

RELATIVE_ERROR = 0.01
_MAPPING = LogarithmicMapping(RELATIVE_ERROR)
_GAMMA_LOG = math.log(_MAPPING.gamma)
_OFFSET = 1 << 19
"""Makes every key positive, so that a bin's sign is that of its values: keys are within ±36,000."""
_LEAST = _MAPPING.min_possible


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateConfig:
    """How metrics are added up. Raises `ConfigError` for a value out of its limits."""

    dialect: Dialect = STRICT
    """How lines are read."""

    percentiles: tuple[float, ...] = (90.0,)
    """Percentiles of timers, 0 to 100; below 0 for the top ones: -10 is the mean, sum and lower
    bound of the uppermost tenth. 0 gives fields for timers with one value only, as with statsd.
    90 as with statsd."""

    delete_idle: bool = False
    """Whether a metric that was idle for an interval is forgotten instead of sent as 0, or, for a
    gauge, as it was. Off as with statsd."""

    names_max: int = 200_000
    """How many names, with their tags, are kept; further ones are dropped, counted, and ten of them
    named. Twice what one collector usually sees, and some 100 MB."""

    def __post_init__(self) -> None:
        check_fields(self, percentiles=(-100, 100), names_max=1)


def quiet() -> np.errstate:
    """Let sums of huge values be infinite without a warning: a sender chooses them."""
    return np.errstate(over="ignore", invalid="ignore")


class Values:
    """Values by row; pure.

    Args:
        values_max: how many are kept.

    """

    def __init__(self, values_max: int) -> None:
        self._values_max = values_max
        self._parts: list[tuple[Places, Floats, Floats | None]] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, rows: Places, values: Floats, weights: Floats | None) -> int:
        """Add values, each with its row; return how many there was no space for.

        `weights` are 1 / rate, None where all are 1.
        """
        space = self._values_max - self._count
        dropped = max(0, len(rows) - space)
        if dropped:
            rows, values = rows[:space], values[:space]
            weights = None if weights is None else weights[:space]
        if len(rows):
            self._parts.append((rows, values, weights))
            self._count += len(rows)
        return dropped

    def columns(self) -> tuple[Places, Floats, Floats | None]:
        """Return rows, values and weights."""
        if not self._parts:
            return np.zeros(0, np.int32), np.zeros(0), None
        rows, values, weights = zip(*self._parts, strict=True)
        joined = None
        if any(part is not None for part in weights):
            joined = np.concatenate(
                [np.ones(len(row)) if part is None else part for row, _, part in self._parts]
            )
        return np.concatenate(rows), np.concatenate(values), joined

    def drop_row(self, row: int) -> None:
        """Forget the values of one row."""
        rows, values, weights = self.columns()
        kept = rows != row
        self._parts = [(rows[kept], values[kept], None if weights is None else weights[kept])]
        self._count = len(self._parts[0][0])


def find_bins(values: Floats) -> Places:
    """Return the bin of each value: 0 for zero, else the mapping's key and `_OFFSET`, signed.

    Bins are ordered as values are.
    """
    sizes = np.abs(values)
    tiny = sizes < _LEAST
    keys = np.ceil(np.log(np.where(tiny, 1.0, sizes)) / _GAMMA_LOG).astype(np.int64) + _OFFSET
    return np.where(tiny, 0, np.where(values < 0, -keys, keys))


def sketch_object(values: Floats, weights: Floats | None) -> dict[str, Any]:
    """Return the sketch of sorted values as an object for JSON; `weights` as in `Values.add`.

    Bin 0 holds values next to zero.
    """
    if weights is None:
        weights = np.ones(len(values))
    bins, places = np.unique(find_bins(values), return_inverse=True)
    with quiet():
        total = float((values * weights).sum())
    sums = np.bincount(places, weights, minlength=len(bins)).astype(np.float64)
    return {
        "relative_error": RELATIVE_ERROR,
        "bins": [[*pair] for pair in zip(bins.tolist(), sums.tolist(), strict=True)],
        "sum": total,
        "min": float(values[0]),
        "max": float(values[-1]),
    }


def read_sketch(found: dict[str, Any]) -> DDSketch:
    """Return the `sketch` of a distribution in the stream as a `DDSketch`, to merge with others.

    Args:
        found: the object as it came, from msgpack or JSON.

    Raises:
        ConfigError: it is no such object, or of another relative error.

    """
    try:
        error, bins = (
            found["relative_error"],
            [(int(number), float(w)) for number, w in found["bins"]],
        )
        total, least, most = float(found["sum"]), float(found["min"]), float(found["max"])
    except (TypeError, KeyError, ValueError) as reason:
        raise ConfigError("sketch", "an object with bins, sum, min and max", found) from reason
    if error != RELATIVE_ERROR:
        raise ConfigError("sketch", f"of the relative error {RELATIVE_ERROR}", error)
    sketch = DDSketch(RELATIVE_ERROR)
    for number, weight in bins:
        if number == 0:
            sketch._zero_count += weight
        else:
            store = sketch._store if number > 0 else sketch._negative_store
            store.add(abs(number) - _OFFSET, weight)
    sketch._count = sum(weight for _, weight in bins)
    sketch._sum, sketch._min, sketch._max = total, least, most
    return sketch


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
    # 90 as `90`, 99.9 as `99_9`, -10 as `top10`.
    name = f"{percentile or 0:.15g}".replace(".", "_", 1).replace("-", "top", 1)
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


@dataclass(slots=True, kw_only=True, eq=False)
class Snapshot:
    """The metrics of one interval.

    Attributes:
        timestamp_s: when it was taken, seconds since the epoch.
        interval_s: how long it is, in seconds.
        config: the collector's settings.
        events: events and service checks, in order.
        exact_counts: by key, the part of this interval's counts that came from exact clients.
        keys, kinds, totals, values, sets, exact_totals, timed: the metrics, by row or kind; `rows`
            gives all of them.

    """

    timestamp_s: float
    interval_s: float
    config: AggregateConfig
    events: list[Event | ServiceCheck]
    exact_counts: Mapping[str, float]
    keys: list[str | None]
    kinds: npt.NDArray[np.uint8]
    totals: Floats
    values: Values
    sets: dict[int, set[str]]
    exact_totals: Mapping[str, float]
    timed: dict[Timed, float]
    _statistics: Statistics | None = None

    def __len__(self) -> int:
        """How many metrics there are, without those that have their own timestamp."""
        return int(np.count_nonzero(self.kinds))

    def prepare(self) -> None:
        """Sort the values of timers. numpy does it without Python's lock, so a thread may."""
        with quiet():
            rows, values, weights = self.values.columns()
            self._statistics = Statistics(rows, values, self.config.percentiles, weights)

    def rows(self) -> Iterator[list[Row]]:
        """Yield rows, some at a time: counters, statistics, gauges, sets, those with timestamps."""
        if self._statistics is None:
            self.prepare()
        yield from self._simple_rows("c")
        if self._statistics is not None:
            yield from self._statistic_rows(self._statistics)
        yield from self._simple_rows("g")
        yield from self._simple_rows("s")
        for timed in _chunks(list(self.timed.items())):
            yield [
                Row(key.kind, key.key, self._fields(key.kind, value), key.timestamp_s)
                for key, value in timed
            ]

    def _key(self, row: int) -> str:
        marked = self.keys[row]
        assert marked is not None
        return marked[1:]

    def _fields(self, kind: Kind, value: float) -> Fields:
        if kind is Kind.GAUGE:
            return {"value": value}
        return {"rate": value / self.interval_s, "count": value}

    def _simple_rows(self, mark: str) -> Iterator[list[Row]]:
        kind = KIND_OF_MARK[ord(mark)]
        for part in _chunks(np.flatnonzero(self.kinds == ord(mark))):
            totals = self.totals[part].tolist()
            rows = []
            for row, total in zip(part.tolist(), totals, strict=True):
                key = self._key(row)
                if mark == "s":
                    fields: Fields = {"count": float(len(self.sets.get(row, ())))}
                else:
                    fields = self._fields(kind, total)
                    if key in self.exact_totals and mark == "c":
                        fields["total"] = self.exact_totals[key]
                rows.append(Row(kind, key, fields, self.timestamp_s))
            yield rows

    def _statistic_rows(self, statistics: Statistics) -> Iterator[list[Row]]:
        done = np.zeros(len(self.kinds), np.bool_)
        done[statistics.rows] = True
        for indexes in _chunks(range(len(statistics.rows))):
            fields = statistics.fields(indexes.start, indexes.stop)
            yield [
                self._statistic_row(statistics.rows[index], found, index)
                for index, found in zip(indexes, fields, strict=True)
            ]
        is_statistic = np.isin(self.kinds, list(map(ord, "thd")))
        for idle in _chunks(np.flatnonzero(is_statistic & ~done).tolist()):
            yield [self._statistic_row(row, {}, -1) for row in idle]

    def _statistic_row(self, row: int, fields: Fields, index: int) -> Row:
        key, kind = self._key(row), KIND_OF_MARK[int(self.kinds[row])]
        count = float(self.totals[row])
        fields["count"], fields["count_ps"] = count, count / self.interval_s
        statistics = self._statistics
        if index < 0 or statistics is None:
            return Row(kind, key, fields, self.timestamp_s)
        sketch = statistics.sketch(index) if kind is Kind.DISTRIBUTION else None
        return Row(kind, key, fields, self.timestamp_s, sketch, statistics.weighted_sum(index))


def _chunks(items: Any) -> Iterator[Any]:
    for start in range(0, len(items), CHUNK_ROWS):
        yield items[start : start + CHUNK_ROWS]
