"""The values of timers, histograms and distributions between two flushes, and their sketches.

The sketch is DDSketch with a relative error of 1 % (Masson, Rim, Lee, "DDSketch: a fast and
fully-mergeable quantile sketch", VLDB 2019), kept as columns: (row, bin) and a weight. Bins are
those of the package ddsketch, so that sketches of several collectors can be merged.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from ddsketch import DDSketch
from ddsketch.mapping import LogarithmicMapping

from p2pmsg.errors import ConfigError
from p2pmsg.statsd.codes import Places, Words
from p2pmsg.statsd.columns import Floats

RELATIVE_ERROR = 0.01
_MAPPING = LogarithmicMapping(RELATIVE_ERROR)
_GAMMA_LOG = math.log(_MAPPING.gamma)
_ZERO_BIN = 1 << 20
_BIN_BITS = 22
"""A bin is within ±36,000 for every float; signs and zero take another bit."""
_LEAST = _MAPPING.min_possible


def quiet() -> np.errstate:
    """Let sums of huge values be infinite without a warning: a sender chooses them."""
    return np.errstate(over="ignore", invalid="ignore")


Defer = Callable[[Callable[[], "Binned"]], Callable[[], "Binned"]]
"""Starts some work and returns a function that waits for its result."""


def at_once(work: "Callable[[], Binned]") -> "Callable[[], Binned]":
    """Do the work now; a `Defer`."""
    result = work()
    return lambda: result


class Values:
    """Values by row; pure.

    Args:
        values_max: beyond it, values are put into bins.
        defer: how to run that. Four million values take a third of a second, and numpy lets other
            threads run meanwhile. Default: at once.

    """

    def __init__(self, values_max: int, defer: Defer = at_once) -> None:
        self._values_max = values_max
        self._defer = defer
        self._work: Callable[[], Binned] | None = None
        self._parts: list[tuple[Places, Floats, Floats | None]] = []
        self._count = 0
        self._binned: Binned | None = None

    @property
    def binned(self) -> "Binned | None":
        """What is in bins; None while all values are kept."""
        if self._work is not None:
            made, self._work = self._work(), None
            self._binned = made if self._binned is None else self._binned.merged(made)
        return self._binned

    def __len__(self) -> int:
        return self._count

    @property
    def is_binning(self) -> bool:
        """Whether values are being put into bins now."""
        return self._work is not None

    def add(self, rows: Places, values: Floats, weights: Floats | None) -> None:
        """Add values, each with its row; `weights` are 1 / rate, None where all are 1."""
        self._parts.append((rows, values, weights))
        self._count += len(rows)
        if self._count > self._values_max:
            _ = self.binned  # waits for the work before, so that there is one at most
            columns = self.columns()
            self._work = self._defer(lambda: bin_values(*columns))
            self._parts, self._count = [], 0

    def columns(self) -> tuple[Places, Floats, Floats | None]:
        """Return rows, values and weights of the values that are not in bins."""
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
        binned = self.binned
        if binned is not None:
            found = binned.rows != row
            exact = binned.exact.copy()
            exact[:, row : row + 1] = _widen(exact[:, :0], 1)
            codes, weights, counts = binned.codes, binned.weights, binned.counts
            self._binned = Binned(codes[found], weights[found], counts[found], exact)


@dataclass(slots=True)
class Binned:
    """Values by (row, bin).

    Attributes:
        codes: row and bin together.
        weights: sum of the values' weights, which are 1 / rate.
        counts: how many values were received.
        exact: by row, the values' count, sum, sum of squares, sum with weights, least, greatest.

    """

    codes: Words
    weights: Floats
    counts: Floats
    exact: Floats

    @property
    def rows(self) -> Places:
        """Row of each bin."""
        return (self.codes >> np.uint64(_BIN_BITS)).astype(np.int64)

    @property
    def bins(self) -> Places:
        """Bin: 0 for zero, else the mapping's key plus or minus an offset."""
        return (self.codes & np.uint64((1 << _BIN_BITS) - 1)).astype(np.int64)

    def merged(self, other: "Binned") -> "Binned":
        """Return both together."""
        codes = np.concatenate([self.codes, other.codes])
        weights = np.concatenate([self.weights, other.weights])
        counts = np.concatenate([self.counts, other.counts])
        size = max(len(self.exact[0]), len(other.exact[0]))
        a, b = _widen(self.exact, size), _widen(other.exact, size)
        with quiet():
            exact = np.vstack([a[:4] + b[:4], np.minimum(a[4], b[4]), np.maximum(a[5], b[5])])
            return Binned(*_sum_by(codes, weights, counts), exact)

    def sketch(self, row: int) -> DDSketch:
        """Return one row as a `DDSketch`, to merge with others."""
        found = self.rows == row
        return make_sketch(self.bins[found], self.weights[found], *self.exact[3:, row].tolist())


def _widen(exact: Floats, size: int) -> Floats:
    wide = np.zeros((6, size))
    wide[4], wide[5] = np.inf, -np.inf
    wide[:, : exact.shape[1]] = exact
    return wide


def _sum_by(codes: Words, weights: Floats, counts: Floats) -> tuple[Words, Floats, Floats]:
    """Return the codes, each once, and the sums of their weights and counts."""
    if not len(codes):
        return codes, weights, counts
    order = np.argsort(codes, kind="stable")
    codes = codes[order]
    firsts = np.flatnonzero(np.concatenate(([True], codes[1:] != codes[:-1])))
    add = np.add.reduceat
    return codes[firsts], add(weights[order], firsts), add(counts[order], firsts)


def find_bins(values: Floats) -> Places:
    """Return the bin of each value; bins are ordered as values are: negative, zero, positive."""
    sizes = np.abs(values)
    tiny = sizes < _LEAST
    keys = np.ceil(np.log(np.where(tiny, 1.0, sizes)) / _GAMMA_LOG).astype(np.int64) + (1 << 19)
    return np.where(tiny, _ZERO_BIN, np.where(values < 0, _ZERO_BIN - keys, _ZERO_BIN + keys))


def bin_value(number: int) -> float:
    """Return the value that represents a bin."""
    if number == _ZERO_BIN:
        return 0.0
    key = abs(number - _ZERO_BIN) - (1 << 19)
    try:
        value = float(_MAPPING.value(key))
    except OverflowError:  # the bin of the largest floats represents one beyond them
        value = math.inf
    return value if number > _ZERO_BIN else -value


def bin_values(rows: Places, values: Floats, weights: Floats | None) -> Binned:
    """Put values into bins."""
    with quiet():
        codes = (rows.astype(np.uint64) << np.uint64(_BIN_BITS)) | find_bins(values).astype(
            np.uint64
        )
        size = int(rows.max()) + 1 if len(rows) else 0
        exact = _widen(np.zeros((6, 0)), size)
        exact[0] = np.bincount(rows, minlength=size)
        exact[1] = np.bincount(rows, values, minlength=size)
        exact[2] = np.bincount(rows, values * values, minlength=size)
        np.minimum.at(exact[4], rows, values)
        np.maximum.at(exact[5], rows, values)
        if weights is None:
            exact[3] = exact[1]
            found, numbers = np.unique(codes, return_counts=True)
            counts = numbers.astype(np.float64)
            return Binned(found, counts, counts, exact)
        exact[3] = np.bincount(rows, values * weights, minlength=size)
        return Binned(*_sum_by(codes, weights, np.ones(len(codes))), exact)


def make_sketch(bins: Places, weights: Floats, total: float, least: float, most: float) -> DDSketch:
    """Return bins as a `DDSketch`; `total` is the sum of the values with their weights."""
    sketch = DDSketch(RELATIVE_ERROR)
    for number, weight in zip(bins.tolist(), weights.tolist(), strict=True):
        if number == _ZERO_BIN:
            sketch._zero_count += weight
            continue
        store = sketch._store if number > _ZERO_BIN else sketch._negative_store
        store.add(abs(number - _ZERO_BIN) - (1 << 19), weight)
    with quiet():
        sketch._count = float(weights.sum())
    sketch._sum, sketch._min, sketch._max = float(total), float(least), float(most)
    return sketch


def sketch_object(values: Floats, weights: Floats | None) -> dict[str, Any]:
    """Return the sketch of sorted values as an object for JSON; `weights` as in `Values.add`."""
    if weights is None:
        weights = np.ones(len(values))
    bins, places = np.unique(find_bins(values), return_inverse=True)
    with quiet():
        total = float((values * weights).sum())
    sums = np.bincount(places, weights, minlength=len(bins)).astype(np.float64)
    return bins_object(bins, sums, total, float(values[0]), float(values[-1]))


def bins_object(
    bins: Places, weights: Floats, total: float, least: float, most: float
) -> dict[str, Any]:
    """Return bins with their weights as an object for JSON; bin 0 holds values next to zero."""
    pairs = zip(bins.tolist(), weights.tolist(), strict=True)
    return {
        "relative_error": RELATIVE_ERROR,
        "bins": [[number - _ZERO_BIN, weight] for number, weight in pairs],
        "sum": total,
        "min": least,
        "max": most,
    }


def read_sketch(found: dict[str, Any]) -> DDSketch:
    """Return the `sketch` of a distribution in the stream as a `DDSketch`, to merge with others.

    Args:
        found: the object as it came, from msgpack or JSON.

    Raises:
        ConfigError: it is no such object, or of another relative error.

    """
    try:
        error, pairs = found["relative_error"], found["bins"]
        bins = np.array([number + _ZERO_BIN for number, _ in pairs], np.int64)
        weights = np.array([weight for _, weight in pairs], np.float64)
        total, least, most = float(found["sum"]), float(found["min"]), float(found["max"])
    except (TypeError, KeyError, ValueError) as reason:
        raise ConfigError("sketch", "an object with bins, sum, min and max", found) from reason
    if error != RELATIVE_ERROR:
        raise ConfigError("sketch", f"of the relative error {RELATIVE_ERROR}", error)
    return make_sketch(bins, weights, total, least, most)
