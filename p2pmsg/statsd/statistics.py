"""Statistics of timers as in statsd (sum, mean, percentiles …), for all rows at once."""

import math
from collections.abc import Sequence

import numpy as np

from p2pmsg.statsd.columns import Floats, Places
from p2pmsg.statsd.values import Binned, bin_value

Fields = dict[str, float]


def percentile_name(percentile: float) -> str:
    """Return 90 as `90`, 99.9 as `99_9`, -10 as `top10`."""
    return f"{percentile or 0:.15g}".replace(".", "_", 1).replace("-", "top", 1)


class Statistics:
    """Statistics of exact values.

    Args:
        rows: row of each value.
        values: the values.
        percentiles: see `AggregateConfig.percentiles`.

    """

    def __init__(self, rows: Places, values: Floats, percentiles: Sequence[float]) -> None:
        self.rows: list[int] = []
        if not len(rows):
            return
        # Two sorts of plain 64-bit numbers, which processors do eight at a time, and no sort by two
        # columns: first by value, then by row and rank.
        by_value = np.argsort(values)
        codes = rows[by_value].astype(np.int64) << 32
        codes |= np.arange(len(rows), dtype=np.int64)
        codes.sort()
        ordered = values[by_value[codes & 0xFFFFFFFF]]
        numbers = codes >> 32
        starts = np.flatnonzero(np.concatenate(([True], numbers[1:] != numbers[:-1])))
        ends = np.append(starts[1:], len(numbers))
        counts = ends - starts
        self.rows = numbers[starts].tolist()
        self._ordered = ordered
        self._starts, self._ends = starts.tolist(), ends.tolist()
        padded = np.append(ordered, 0.0)
        squares = padded * padded
        columns: dict[str, Floats] = {}
        for percentile in percentiles:
            _percentile(columns, percentile, starts, counts, padded, squares)
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

    def values(self, index: int) -> Floats:
        """Return the sorted values of `rows[index]`."""
        found: Floats = self._ordered[self._starts[index] : self._ends[index]]
        return found

    def histogram(self, index: int, bounds: tuple[float, ...]) -> Fields:
        """Count the values of `rows[index]` below each bound and not below the bound before."""
        values = self.values(index)
        below = [
            len(values) if math.isinf(bound) else int(np.searchsorted(values, bound))
            for bound in bounds
        ]
        names = [f"histogram.bin_{_bound_name(bound)}" for bound in bounds]
        return dict(zip(names, np.diff(below, prepend=0).tolist(), strict=True))


def _bound_name(bound: float) -> str:
    return "inf" if math.isinf(bound) else f"{bound:.15g}".replace(".", "_", 1)


def _percentile(
    columns: dict[str, Floats],
    percentile: float,
    starts: Places,
    counts: Places,
    values: Floats,
    squares: Floats,
) -> None:
    """Add the columns of one percentile; NaN where it would have no value."""
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
    for field, column in (
        ("count", within.astype(np.float64)), ("mean", sums / taken), (side, bound),
        ("sum", sums), ("sum_squares", sum_squares),
    ):  # fmt: skip
        columns[f"{field}_{name}"] = np.where(none, np.nan, column)


def sketched_fields(
    binned: Binned, row: int, bins: list[int], weights: Floats, percentiles: Sequence[float]
) -> Fields:
    """Return the fields of a row whose values are in bins; median and percentiles are 1 % off."""
    count, total, squares, least, most = binned.exact[:, row].tolist()
    mean = total / count
    ranks = np.cumsum(weights)

    def at(share: float) -> float:
        place = int(np.searchsorted(ranks, share * ranks[-1]))
        middle = bin_value(bins[min(place, len(bins) - 1)])
        return float(min(max(middle, least), most))

    fields = {
        "std": math.sqrt(max(squares / count - mean * mean, 0.0)),
        "upper": most,
        "lower": least,
        "sum": total,
        "sum_squares": squares,
        "mean": mean,
        "median": at(0.5),
    }
    for percentile in percentiles:
        name = percentile_name(percentile)
        within = math.floor(abs(percentile) / 100 * count + 0.5)
        if not within:
            continue
        share = percentile / 100 if percentile > 0 else 1 + percentile / 100
        fields[f"{'upper' if percentile > 0 else 'lower'}_{name}"] = at(share)
        fields[f"count_{name}"] = within
    return fields
