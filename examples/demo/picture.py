"""A picture of bars: candles of each symbol above its volume. Needs Matplotlib (extra `plot`)."""

import importlib.util
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
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
        ValueError: there are no bars.

    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ImportError("Matplotlib is missing: pip install 'p2pmsg[plot]'")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    by_symbol: dict[str, list[Bar]] = {}
    for bar in sorted(bars, key=lambda bar: (bar[0], bar[1])):
        by_symbol.setdefault(bar[0], []).append(bar)
    if not by_symbol:
        raise ValueError("there are no bars to draw")
    drawn = dict(list(by_symbol.items())[:_SYMBOLS_MAX])
    figure = Figure(figsize=(11, 3.2 * len(drawn)), layout="constrained")
    FigureCanvasAgg(figure)
    rows = figure.subplots(2 * len(drawn), 1, height_ratios=[3, 1] * len(drawn), squeeze=False)
    for at, (symbol, found) in enumerate(drawn.items()):
        _draw(rows[2 * at][0], rows[2 * at + 1][0], symbol, found[-_BARS_MAX:])
    figure.savefig(path, dpi=110)


def _draw(prices: Any, volumes: Any, symbol: str, bars: Sequence[Bar]) -> None:
    first_ns = bars[0][1]
    places = [(bar[1] - first_ns) / 1e9 for bar in bars]
    colours = [_UP if bar[5] >= bar[2] else _DOWN for bar in bars]
    steps = [after - before for before, after in pairwise(places)]
    width = 0.8 * min(steps, default=1.0)
    prices.vlines(places, [bar[4] for bar in bars], [bar[3] for bar in bars], colours, linewidth=1)
    bottoms = [min(bar[2], bar[5]) for bar in bars]
    heights = [abs(bar[5] - bar[2]) for bar in bars]
    prices.bar(places, heights, width, bottoms, color=colours)
    volumes.bar(places, [bar[6] for bar in bars], width, color=colours)
    begun = datetime.fromtimestamp(first_ns // 10**9, UTC)
    trades = sum(bar[7] for bar in bars)
    prices.set_title(f"{symbol}: {len(bars)} bars of {trades:,} trades", loc="left")
    prices.tick_params(labelbottom=False)
    prices.set_ylabel("price")
    prices.margins(x=0.01)
    volumes.margins(x=0.01)
    volumes.set_ylabel("volume")
    volumes.set_xlabel(f"seconds after {begun:%Y-%m-%d %H:%M:%S} UTC")
