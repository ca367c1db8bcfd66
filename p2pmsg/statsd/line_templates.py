"""Hash table from line template (name, type, rate, tags) to accumulator slot.

`api.hits:7|c|@0.1|#zone:b` and `api.hits:9|c|@0.1|#zone:b` differ in the value alone: they have one
template, which the parser reads once. The table is a cache: when it is full it is emptied, and
templates are parsed again. Codes are 64 bits wide and their factors are random: two of a million
templates would share one by accident once in 10⁷ runs.
"""

import numpy as np

from p2pmsg.statsd.codes import Places, Words
from p2pmsg.statsd.columns import Floats

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
