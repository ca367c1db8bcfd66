"""One-second bars (open, high, low, close, volume) computed directly from a feed.

The demo compares them with those of its Spark query. Two computations agree when they agree on
every field: prices exactly, since each is one of the input's own doubles; volume after rounding to
`VOLUME_PLACES` places, since Spark adds the same doubles in another order, which changes the last
bits of the sum. Sizes have about five places, hence no sum is near a tie of the eighth place. A
`Bar` has the rounded volume.
"""

import csv
import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from os import PathLike

from .feed import FeedEvent

WINDOW_NS = 1_000_000_000
VOLUME_PLACES = 8


@dataclass(frozen=True, order=True, slots=True)
class Bar:
    """The trades of one symbol in one second of event time; bars sort by symbol and window."""

    symbol: str
    window_start_ns: int
    open: float
    high: float
    low: float
    close: float
    volume: float
    trades: int


def compute_bars(events: Iterable[FeedEvent]) -> list[Bar]:
    """Compute the bars of all trades among `events`, sorted by symbol and window.

    Open and close go by (timestamp, order in the input), wherever in the input a trade is.
    """
    windows: dict[tuple[str, int], list[tuple[int, int, float, float]]] = {}
    for index, event in enumerate(events):
        if event.kind == "trade":
            at_ns = event.timestamp_ns
            window = windows.setdefault((event.symbol, at_ns - at_ns % WINDOW_NS), [])
            window.append((at_ns, index, event.price, event.size))
    bars = []
    for (symbol, start_ns), rows in sorted(windows.items()):
        _, _, prices, sizes = zip(*sorted(rows), strict=True)
        volume = round_volume(math.fsum(sizes))
        bars.append(Bar(symbol, start_ns, prices[0], max(prices), min(prices), prices[-1], volume,
                        len(rows)))  # fmt: skip
    return bars


def round_volume(volume: float) -> float:
    """Round a sum of sizes so that it no longer depends on the order of summation."""
    return round(volume, VOLUME_PLACES)


def write_csv(bars: Iterable[Bar], path: str | PathLike[str]) -> None:
    """Write bars, sorted by symbol and window: prices by `repr`, volume with eight places."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([one.name for one in fields(Bar)])
        for bar in sorted(bars):
            prices = (repr(price) for price in (bar.open, bar.high, bar.low, bar.close))
            volume = f"{bar.volume:.{VOLUME_PLACES}f}"
            writer.writerow((bar.symbol, bar.window_start_ns, *prices, volume, bar.trades))
