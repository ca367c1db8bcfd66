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

from .feed import FeedEvent, Trade, decode_event

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


class _Window:
    """A bar that is being computed."""

    __slots__ = ("close", "high", "low", "newest_ns", "oldest_ns", "open", "sizes")

    def __init__(self, timestamp_ns: int, price: float) -> None:
        self.oldest_ns = self.newest_ns = timestamp_ns
        self.open = self.high = self.low = self.close = price
        self.sizes: list[float] = []

    def add(self, timestamp_ns: int, price: float, size: float) -> None:
        # Of equal timestamps the first in the input opens and the last one closes.
        if timestamp_ns < self.oldest_ns:
            self.oldest_ns = timestamp_ns
            self.open = price
        if timestamp_ns >= self.newest_ns:
            self.newest_ns = timestamp_ns
            self.close = price
        if price > self.high:
            self.high = price
        if price < self.low:
            self.low = price
        self.sizes.append(size)


def compute_bars(events: Iterable[FeedEvent]) -> list[Bar]:
    """Compute the bars of all trades among `events`, sorted by symbol and window.

    Open and close go by (timestamp, order in the input), wherever in the input a trade is.
    """
    windows: dict[tuple[str, int], _Window] = {}
    for event in events:
        if event.kind != "trade":
            continue
        trade = decode_event(event.line)
        assert isinstance(trade, Trade)
        timestamp_ns = event.timestamp_ns
        key = (event.symbol, timestamp_ns - timestamp_ns % WINDOW_NS)
        window = windows.get(key)
        if window is None:
            window = windows[key] = _Window(timestamp_ns, trade.price)
        window.add(timestamp_ns, trade.price, trade.size)
    return [
        Bar(
            symbol,
            window_start_ns,
            open=window.open,
            high=window.high,
            low=window.low,
            close=window.close,
            volume=round_volume(math.fsum(window.sizes)),
            trades=len(window.sizes),
        )
        for (symbol, window_start_ns), window in sorted(windows.items(), key=lambda item: item[0])
    ]


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
