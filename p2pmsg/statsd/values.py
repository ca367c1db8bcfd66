"""The values of timers, histograms and distributions between two flushes, and their sketches.

The sketch is DDSketch with a relative error of 1 % (Masson, Rim, Lee, "DDSketch: a fast and
fully-mergeable quantile sketch", VLDB 2019). Bins are those of the package ddsketch, so that
sketches of several collectors can be merged.
"""

import math
from typing import Any

import numpy as np
from ddsketch import DDSketch
from ddsketch.mapping import LogarithmicMapping

from p2pmsg.errors import ConfigError
from p2pmsg.statsd.codes import Places
from p2pmsg.statsd.columns import Floats

RELATIVE_ERROR = 0.01
_MAPPING = LogarithmicMapping(RELATIVE_ERROR)
_GAMMA_LOG = math.log(_MAPPING.gamma)
_OFFSET = 1 << 19
"""Makes every key positive, so that a bin's sign is that of its values: keys are within ±36,000."""
_LEAST = _MAPPING.min_possible


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
        "bins": [
            [number, weight] for number, weight in zip(bins.tolist(), sums.tolist(), strict=True)
        ],
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
