"""What is sent, and how the receiving side checks that each message came once and in order.

A load is a ring of distinct values, built before anything is timed. Each value carries its number:
bytes in their first eight bytes, a dict in its field `id`. The receiver compares what it got with
the same stretch of its own ring, a chunk at a time, or dicts one by one; ours and every peer pay
for it alike.
"""

import struct
from collections.abc import Callable
from operator import itemgetter
from typing import Any

SMALL_BYTES = 128
LARGE_BYTES = 64 << 10
BATCH_COUNT = 504
"""128-byte values in one hand-written batch: a msgpack list of them fills a frame of 64 KiB."""

_SMALL_COUNT = 16 * BATCH_COUNT
_LARGE_COUNT = 256


class TrialError(Exception):
    """A trial cannot be counted: a process failed, was silent, or a message was not as due."""


class Load:
    """A ring of values; `chunk_count` is how many of them are checked at once.

    Where its values are dicts, `field` is the one that has the number. They are checked as they
    come: gathering dicts and walking the list twice cost 28 ns a message more.
    """

    def __init__(
        self,
        ring: list[Any],
        mark: Callable[[Any], Any] | None,
        chunk_count: int,
        field: str | None = None,
    ) -> None:
        self.ring = ring
        self.chunk_count = chunk_count
        self.field = field
        self._twice = ring + ring  # any stretch of the ring is one slice of this
        self._mark = mark = mark if field is None else itemgetter(field)
        self._marks = [mark(value) for value in self._twice] if mark else self._twice

    def marks(self, position: int, count: int) -> list[Any]:
        """Return what marks the values from `position` on."""
        start = position % len(self.ring)
        return self._marks[start : start + count]

    def check(self, position: int, values: list[Any]) -> None:
        """Raise `TrialError` unless `values` are those from `position` on."""
        start = position % len(self.ring)
        marks = list(map(self._mark, values)) if self._mark else values
        if marks == self.marks(position, len(values)) and values[0] == self._twice[start]:
            return
        for offset, (mark, value) in enumerate(zip(marks, values, strict=True)):
            if mark != self._marks[start + offset] or value != self._twice[start + offset]:
                raise TrialError(f"message {position + offset} is not the one that was due")


def small_load() -> Load:
    """128-byte values, compared byte by byte."""
    tail = bytes(range(64, 64 + SMALL_BYTES - 8))
    ring = [struct.pack("!Q", number) + tail for number in range(_SMALL_COUNT)]
    return Load(ring, None, chunk_count=256)


def dict_load() -> Load:
    """Dicts of five fields, each compared by `id`; the first of each chunk in full."""
    ring = [
        {
            "symbol": ("BTCUSDT", "ETHUSDT", "SOLUSDT")[number % 3],
            "price": 61_686.0 + number / 100,
            "size": (1 + number % 977) / 100_000,
            "sell": number % 2 == 0,
            "id": number,
        }
        for number in range(_SMALL_COUNT)
    ]
    return Load(ring, None, chunk_count=1024, field="id")


def large_load() -> Load:
    """64 KiB values, compared by number and length; the first of each chunk in full."""
    tail = bytes(range(256)) * (LARGE_BYTES // 256)
    ring = [struct.pack("!Q", number) + tail[8:] for number in range(_LARGE_COUNT)]
    return Load(ring, lambda value: (value[:8], len(value)), chunk_count=16)


LOADS: dict[str, Callable[[], Load]] = {"small": small_load, "dict": dict_load, "large": large_load}
