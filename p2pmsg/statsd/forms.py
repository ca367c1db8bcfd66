"""Forms of lines: all that a line says but its value, found by its code in a few numpy look-ups.

`api.hits:7|c|@0.1|#zone:b` and `api.hits:9|c|@0.1|#zone:b` are of one form, which the parser reads
once. The table is a cache: when it is full it is emptied, and forms are read anew.
"""

import numpy as np

from p2pmsg.statsd.columns import Floats, Places, Words

SLOW, COUNTER, GAUGE, STATISTIC, CUT = 0, 1, 2, 3, 4
"""How a line of the form is added: by the parser, to a sum, over a value, to the values; or not at
all, since there were too many names."""
_PROBES = 16
_SLOTS_MIN = 1024
_ROOM = 2
"""Slots a form: half full, a form is found by its second probe on average; a form that would need
more than 16 makes the table grow. 21 bytes a slot."""


class Forms:
    """Code → how to add (`ways`), where (`rows`), and 1 / rate (`weights`), by slot."""

    def __init__(self, forms_max: int) -> None:
        self._forms_max = forms_max
        self._make(_SLOTS_MIN)

    def __len__(self) -> int:
        return self._count

    @property
    def is_full(self) -> bool:
        """Whether the next form would be one too many."""
        return self._count >= self._forms_max

    def _make(self, slots: int) -> None:
        self._codes = np.zeros(slots, np.uint64)
        self.ways = np.zeros(slots, np.uint8)
        self.rows = np.zeros(slots, np.int32)
        self.weights = np.ones(slots, np.float64)
        self._count = 0

    def clear(self) -> None:
        """Forget every form."""
        self._make(_SLOTS_MIN)

    def find(self, codes: Words) -> Places:
        """Return the slot of each code, -1 for one that is not there."""
        mask = np.uint64(len(self._codes) - 1)
        slots = (codes & mask).astype(np.int64)
        missed = np.flatnonzero(self._codes[slots] != codes)
        for _ in range(_PROBES - 1):
            if not len(missed):
                break
            slots[missed] = (slots[missed] + 1) & int(mask)
            missed = missed[self._codes[slots[missed]] != codes[missed]]
        slots[missed] = -1
        return slots

    def add(self, code: int, way: int, row: int, weight: float) -> None:
        """Keep a form that is not there yet."""
        if (self._count + 1) * _ROOM > len(self._codes):
            self._grow()
        slot = self._free_slot(code)
        while slot < 0:
            self._grow()
            slot = self._free_slot(code)
        self._codes[slot] = code
        self.ways[slot], self.rows[slot], self.weights[slot] = way, row, weight
        self._count += 1

    def _free_slot(self, code: int) -> int:
        mask = len(self._codes) - 1
        for probe in range(_PROBES):
            slot = (code + probe) & mask
            if not self._codes[slot]:
                return slot
        return -1

    def _grow(self) -> None:
        old = np.flatnonzero(self._codes)
        codes, ways, rows, weights = self._codes, self.ways, self.rows, self.weights
        self._make(len(codes) * 2)
        # Those that find their first slot free go there at once; the few others one by one.
        slots = (codes[old] & np.uint64(len(self._codes) - 1)).astype(np.int64)
        _, first = np.unique(slots, return_index=True)
        placed, slots = old[first], slots[first]
        self._codes[slots], self.ways[slots] = codes[placed], ways[placed]
        self.rows[slots], self.weights[slots] = rows[placed], weights[placed]
        self._count = len(placed)
        for place in np.setdiff1d(old, placed).tolist():
            self.add(int(codes[place]), int(ways[place]), int(rows[place]), float(weights[place]))


def add_up(totals: Floats, rows: Places, weights: Floats, count: int) -> None:
    """Add `weights` to `totals[rows]`; rows may come several times."""
    if count <= 4 * len(rows):
        totals[:count] += np.bincount(rows, weights, minlength=count)[:count]
    else:
        np.add.at(totals, rows, weights)
