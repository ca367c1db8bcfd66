"""What lines add to: rows of arrays by name, and the table from a line's template to its row.

There is a row for each (kind, name, tags), up to a bound.

`api.hits:7|c|@0.1|#zone:b` and `api.hits:9|c|@0.1|#zone:b` differ in the value alone: they have one
template (name, type, rate, tags), which the parser reads once. The table is a cache: when it is
full it is emptied, and templates are parsed again. Codes are 64 bits wide and their factors are
random: two of a million templates would share one by accident once in 10⁷ runs.
"""

import numpy as np

from p2pmsg.statsd.columns import Floats, Places, Words
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


PARSER, COUNTER, GAUGE, STATISTIC, CUT = 0, 1, 2, 3, 4
"""Handlers, that is, how a line is added: by the parser, to a sum, over a gauge's value, to a
timer's values; or not at all, since there are too many names."""
HANDLER_BITS = 3
_SLOTS_MIN = 1024
_SPARSE, _SPARSE_LARGE = 8, 2
"""Slots a template, in tables of up to 128 Ki slots and in larger ones. In a sparse table nearly
every template is found by its first probe, and a further probe costs as much as ten lines; but a
slot takes 12 bytes, or 20 once a rate was seen. A search ends at the first free slot.
"""
_LARGE_SLOTS = 128 * 1024


class LineTemplates:
    """Maps a code to a handler and a row (`targets`: row, shifted, and handler) and to a weight.

    Attributes:
        targets: by slot.
        weights: by slot, 1 / rate; None while every weight is 1.

    """

    def __init__(self, templates_max: int) -> None:
        self._templates_max = templates_max
        self.clear()

    def __len__(self) -> int:
        return self._count

    @property
    def is_full(self) -> bool:
        """Whether the next template would be one too many."""
        return self._count >= self._templates_max

    def _make(self, slots: int, *, weighted: bool = False) -> None:
        self._codes = np.zeros(slots, np.uint64)
        self.targets = np.zeros(slots, np.int32)
        self.weights: Floats | None = np.ones(slots) if weighted else None
        self._count = 0

    def clear(self) -> None:
        """Forget every template."""
        self._make(_SLOTS_MIN)

    def find(self, codes: Words) -> Places:
        """Return the slot of each code, -1 for an unknown one."""
        mask = np.uint64(len(self._codes) - 1)
        slots = (codes & mask).astype(np.int64)
        missed = np.flatnonzero(self._codes[slots] != codes)
        while len(missed):
            free = self._codes[slots[missed]] == 0
            slots[missed[free]] = -1
            missed = missed[~free]
            slots[missed] = (slots[missed] + 1) & int(mask)
            missed = missed[self._codes[slots[missed]] != codes[missed]]
        return slots

    def add(self, code: int, handler: int, row: int, weight: float) -> None:
        """Add a template whose code is unknown."""
        slots = len(self._codes)
        if (self._count + 1) * (_SPARSE if slots < _LARGE_SLOTS else _SPARSE_LARGE) > slots:
            self._grow()
        slot = code & len(self._codes) - 1
        while self._codes[slot]:
            slot = (slot + 1) & len(self._codes) - 1
        self._codes[slot] = code
        self.targets[slot] = row << HANDLER_BITS | handler
        if self.weights is None and weight != 1.0:
            self.weights = np.ones(len(self._codes))
        if self.weights is not None:
            self.weights[slot] = weight
        self._count += 1

    def _grow(self) -> None:
        old = np.flatnonzero(self._codes)
        codes, targets, weights = self._codes, self.targets, self.weights
        self._make(len(codes) * 2, weighted=weights is not None)
        old_weights = [1.0] * len(old) if weights is None else weights[old].tolist()
        found = zip(codes[old].tolist(), targets[old].tolist(), old_weights, strict=True)
        for code, target, weight in found:
            self.add(code, target & (1 << HANDLER_BITS) - 1, target >> HANDLER_BITS, weight)


def add_up(totals: Floats, rows: Places, weights: Floats | None, count: int) -> None:
    """Add `weights`, or 1, to `totals[rows]`; rows may come several times."""
    if count <= 4 * len(rows):
        totals[:count] += np.bincount(rows, weights, minlength=count)[:count]
    else:
        np.add.at(totals, rows, 1.0 if weights is None else weights)
