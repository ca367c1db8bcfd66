"""Rows of arrays for the names that are kept: one for each (kind, name, tags), up to a bound."""

import numpy as np

from p2pmsg.statsd.metric import Kind

_ROWS_MIN = 256
CUT_NAMES_MAX = 10
"""How many of the names that were cut off are kept for the report."""


class Series:
    """Rows of arrays, by kind and key.

    Attributes:
        totals: a counter's sum, a gauge's value, a statistic's weighted count.
        seen: number of the flush interval in which a row last changed.
        kinds: the kind's letter by row, 0 where a row is free.
        cut_count: how many metrics were dropped because there were too many names.
        cut_names: the first of those names.

    """

    def __init__(self, names_max: int) -> None:
        self.names_max = names_max
        self._marked: list[str | None] = []
        self.totals = np.zeros(_ROWS_MIN)
        self.seen = np.zeros(_ROWS_MIN, np.int32)
        self.kinds = np.zeros(_ROWS_MIN, np.uint8)
        self.cut_count = 0
        self.cut_names: dict[str, None] = {}
        self._index: dict[str, int] = {}
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._index)

    @property
    def is_full(self) -> bool:
        """Whether a new name would be cut off."""
        return len(self._index) >= self.names_max

    @property
    def row_count(self) -> int:
        """How many rows are in use or free; arrays are valid up to there."""
        return len(self._marked)

    def key(self, row: int) -> str:
        """Return the key of a row that is in use."""
        marked = self._marked[row]
        assert marked is not None
        return marked[1:]

    def marked_keys(self) -> list[str | None]:
        """Return all keys by row, each after the letter of its kind; None where a row is free."""
        return self._marked.copy()

    def find(self, kind: Kind, key: str) -> int | None:
        """Return the row of a kind and key, or None."""
        return self._index.get(_KIND_MARKS[kind] + key)

    def own_row(self, kind: Kind, key: str) -> int:
        """Return the row of a metric of the collector's own; `names_max` does not count it."""
        row = self.find(kind, key)
        if row is None:
            self.names_max += 1
            row = self.row(kind, key)
        return row

    def row(self, kind: Kind, key: str) -> int:
        """Return the row of a kind and key, made if it is new; -1 if there are too many names."""
        marked = _KIND_MARKS[kind] + key
        row = self._index.get(marked)
        if row is not None:
            return row
        if len(self._index) >= self.names_max:
            if len(self.cut_names) < CUT_NAMES_MAX:
                self.cut_names[key] = None
            return -1
        if self._free:
            row = self._free.pop()
            self._marked[row] = marked
        else:
            row = len(self._marked)
            self._marked.append(marked)
            if row >= len(self.totals):
                self._grow()
        self._index[marked] = row
        self.totals[row] = 0.0
        self.seen[row] = 0
        self.kinds[row] = ord(_KIND_MARKS[kind])
        return row

    def _grow(self) -> None:
        size = 2 * len(self.totals)
        for name in ("totals", "seen", "kinds"):
            old = getattr(self, name)
            new = np.zeros(size, old.dtype)
            new[: len(old)] = old
            setattr(self, name, new)

    def delete(self, row: int) -> None:
        """Free a row."""
        marked = self._marked[row]
        assert marked is not None
        del self._index[marked]
        self._marked[row] = None
        self.kinds[row] = 0
        self.totals[row] = 0.0
        self._free.append(row)

    def rows_of(self, *kinds: Kind) -> list[int]:
        """Return the rows of some kinds, ascending."""
        wanted = [ord(_KIND_MARKS[kind]) for kind in kinds]
        return np.flatnonzero(np.isin(self.kinds[: self.row_count], wanted)).tolist()


_KIND_MARKS = {
    Kind.COUNTER: "c",
    Kind.METER: "c",
    Kind.GAUGE: "g",
    Kind.TIMER: "t",
    Kind.HISTOGRAM: "h",
    Kind.DISTRIBUTION: "d",
    Kind.SET: "s",
}
KIND_OF_MARK = {ord(mark): kind for kind, mark in reversed(_KIND_MARKS.items())}
"""Kind by the number in `Series.kinds`."""
