"""One-second bars (open, high, low, close, volume) computed straight from a feed.

They are what the demo's Spark query is measured by. Two computations agree when they agree on
every field: prices exactly, since each is one of the input's own doubles; volume after rounding to
`VOLUME_PLACES` places, since Spark adds the same doubles in another order and a sum of doubles
depends on it in its last bits. Sizes have five places or so, hence no sum lies near a tie of the
eighth place. A `Bar` carries the rounded volume.
"""

import csv
import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from os import PathLike
from typing import TextIO

import msgspec

from p2pmsg.demo.feed import FeedEvent, Trade

WINDOW_NS = 1_000_000_000
VOLUME_PLACES = 8
HEADER = ("symbol", "window_start_ns", "open", "high", "low", "close", "volume", "trades")

_decode_trade = msgspec.json.Decoder(Trade).decode


class Bar(msgspec.Struct, frozen=True, order=True):
    """The trades of one symbol in one second of event time; bars sort by symbol and window."""

    symbol: str
    window_start_ns: int
    open: float
    high: float
    low: float
    close: float
    volume: float
    trades: int


class BarsError(ValueError):
    """A file of bars cannot be read; says in which line and what is wrong there."""

    def __init__(self, line_number: int, reason: str) -> None:
        super().__init__(f"line {line_number}: {reason}")
        self.line_number = line_number
        self.reason = reason


class _Window:
    """A bar in the making."""

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

    Open and close go by (timestamp, order in the input), wherever in the input a trade stands.
    """
    windows: dict[tuple[str, int], _Window] = {}
    for event in events:
        if event.kind != "trade":
            continue
        trade = _decode_trade(event.line)
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


def write_csv(bars: Iterable[Bar], path_or_file: str | PathLike[str] | TextIO) -> None:
    """Write bars, sorted by symbol and window: prices by `repr`, volume with eight places."""
    if isinstance(path_or_file, (str, PathLike)):
        with open(path_or_file, "w", encoding="utf-8", newline="") as file:
            write_csv(bars, file)
        return
    writer = csv.writer(path_or_file, lineterminator="\n")
    writer.writerow(HEADER)
    for bar in sorted(bars):
        prices = (repr(price) for price in (bar.open, bar.high, bar.low, bar.close))
        volume = f"{bar.volume:.{VOLUME_PLACES}f}"
        writer.writerow((bar.symbol, bar.window_start_ns, *prices, volume, bar.trades))


def read_csv(path_or_file: str | PathLike[str] | TextIO) -> list[Bar]:
    """Read bars as `write_csv` writes them; raise `BarsError` on anything else."""
    if isinstance(path_or_file, (str, PathLike)):
        with open(path_or_file, encoding="utf-8", newline="") as file:
            return read_csv(file)
    reader = csv.reader(path_or_file)
    header = next(reader, None)
    if header != list(HEADER):
        raise BarsError(1, f"the header must be {','.join(HEADER)!r}, got {header!r}")
    return [_parse_row(row, reader.line_num) for row in reader]


def _parse_row(row: Sequence[str], line_number: int) -> Bar:
    try:
        return msgspec.convert(
            dict(zip(HEADER, row, strict=True)), Bar, strict=False, str_keys=True
        )
    except msgspec.ValidationError as error:
        finding, _, field_path = str(error).partition(" - at `$.")
        field = field_path.rstrip("`")
        value = dict(zip(HEADER, row, strict=True)).get(field)
        raise BarsError(line_number, f"field {field!r}: {finding}; got {value!r}") from error
    except ValueError:
        reason = f"a row has {len(HEADER)} fields, got {len(row)}"
        raise BarsError(line_number, reason) from None


def render_table(bars: Sequence[Bar], rows_max: int = 20) -> str:
    """Lay bars out as a plain text table: the first and the last rows, and how many lie between."""
    if rows_max < 2:
        raise ValueError(f"rows_max must be at least 2, got {rows_max}")
    titles = ("symbol", "window", "open", "high", "low", "close", "volume", "trades")
    if len(bars) <= rows_max:
        first, last = bars, bars[:0]
    else:
        first, last = bars[: rows_max - rows_max // 2], bars[-(rows_max // 2) :]
    rows = [titles, *map(_format_row, first), *map(_format_row, last)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(titles))]
    lines = [_align(row, widths) for row in rows]
    left_out_count = len(bars) - len(first) - len(last)
    if left_out_count:
        lines.insert(1 + len(first), f"… {left_out_count:,} more")
    return "\n".join(lines)


def _format_row(bar: Bar) -> tuple[str, ...]:
    window_start = datetime.fromtimestamp(bar.window_start_ns // WINDOW_NS, UTC)
    prices = (f"{price:,.2f}" for price in (bar.open, bar.high, bar.low, bar.close))
    return (
        bar.symbol,
        f"{window_start:%Y-%m-%d %H:%M:%S}",
        *prices,
        f"{bar.volume:,.5f}",
        f"{bar.trades:,}",
    )


def _align(row: Sequence[str], widths: Sequence[int]) -> str:
    text_columns = 2
    cells = [
        cell.ljust(width) if column < text_columns else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()
