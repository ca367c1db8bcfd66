"""A picture of bars: candles of each symbol above its volume. Needs Matplotlib (extra `plot`)."""

import importlib.util
from collections.abc import Sequence
from datetime import UTC, datetime
from os import PathLike
from typing import Any, Final

_SYMBOLS_MAX: Final = 6
_BARS_MAX: Final = 240
"""With more candles they cannot be distinguished: the last ones are drawn."""
_UP, _DOWN = "#2a9d6f", "#d1495b"

Bar = Sequence[Any]
"""symbol, start in ns, open, high, low, close, volume, trades"""


def write_picture(bars: Sequence[Bar], path: "str | PathLike[str]") -> None:
    """Draw bars into a file, of the kind that its name ends in (`.png`, `.svg`).

    Args:
        bars: (symbol, start in ns, open, high, low, close, volume, trades), as Spark computed them.
        path: where to. At most 6 symbols are drawn, and the last 240 bars of each.

    Raises:
        ImportError: Matplotlib is missing.

    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ImportError("Matplotlib is missing: pip install 'p2pmsg[plot]'")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    symbols = sorted({bar[0] for bar in bars})[:_SYMBOLS_MAX]
    figure = Figure(figsize=(11, 3.2 * len(symbols)), layout="constrained")
    FigureCanvasAgg(figure)
    rows = figure.subplots(2 * len(symbols), 1, height_ratios=[3, 1] * len(symbols))
    for at, symbol in enumerate(symbols):
        found = sorted((bar for bar in bars if bar[0] == symbol), key=lambda bar: bar[1])
        _draw(rows[2 * at], rows[2 * at + 1], symbol, found[-_BARS_MAX:])
    figure.savefig(path, dpi=110)


def _draw(prices: Any, volumes: Any, symbol: str, bars: Sequence[Bar]) -> None:
    places = [(bar[1] - bars[0][1]) / 1e9 for bar in bars]
    colours = [_UP if bar[5] >= bar[2] else _DOWN for bar in bars]
    prices.vlines(places, [bar[4] for bar in bars], [bar[3] for bar in bars], colours, linewidth=1)
    bottoms = [min(bar[2], bar[5]) for bar in bars]
    prices.bar(places, [abs(bar[5] - bar[2]) for bar in bars], 0.8, bottoms, color=colours)
    volumes.bar(places, [bar[6] for bar in bars], 0.8, color=colours)
    begun = datetime.fromtimestamp(bars[0][1] // 10**9, UTC)
    prices.set_title(f"{symbol}: {len(bars)} bars of {sum(bar[7] for bar in bars):,} trades")
    prices.set_ylabel("price")
    volumes.set_ylabel("volume")
    volumes.set_xlabel(f"seconds after {begun:%Y-%m-%d %H:%M:%S} UTC")
