"""What the demo shows: progress while it runs, the ledger and the bars at the end."""

import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, TextIO

from .bars import WINDOW_NS, Bar
from .plan import Plan
from .run import LOSS, Progress, State

_LINE_EVERY_S = 1.0
_BARS_SHOWN = 5
"""All that is printed at the end fits on a terminal of 80 columns and 24 lines."""
_TALLY_FIELDS = (
    "delivered", "repaired", "lost", "outstanding", "duplicates", "kernel_drops", "balanced",
)  # fmt: skip


class Lines(Progress):
    """One line a second."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._printed_s = 0.0

    def begin(self, plan: Plan) -> None:
        """Print what will be played."""
        print(describe(plan), file=self._file, flush=True)

    def update(self, state: State) -> None:
        """Print a line if the last one is a second old."""
        if state.seconds - self._printed_s >= _LINE_EVERY_S:
            self._printed_s = state.seconds
            parts = [f"{state.seconds:5.1f} s", *progress_lines(state), state.faults]
            print(" | ".join(parts), file=self._file, flush=True)


class Screen(Progress):
    """The same, drawn over by rich."""

    def __init__(self, file: TextIO) -> None:
        from rich.console import Console

        self._console = Console(file=file, highlight=False, markup=False)
        self._status = self._console.status("")

    def begin(self, plan: Plan) -> None:
        """Print what will be played."""
        self._console.print(describe(plan))
        self._status.start()

    def update(self, state: State) -> None:
        """Show the new state."""
        lines = [f"{state.seconds:.1f} s, {state.faults}", *progress_lines(state)]
        self._status.update("\n".join(lines))

    def end(self) -> None:
        """Remove it."""
        self._status.stop()


def choose_progress(as_json: bool) -> Progress:
    """Return how progress is shown: with `--json` on standard error, and on a terminal only."""
    file = sys.stderr if as_json else sys.stdout
    is_terminal = file is not None and file.isatty()
    if file is None or (as_json and not is_terminal):
        return Progress()
    if is_terminal:
        try:
            return Screen(file)
        except ImportError:
            pass  # rich comes with the extra `cli`
    return Lines(file)


def describe(plan: Plan) -> str:
    """Return what will be played, in words."""
    what = " and ".join(f"{count:,} {topic}" for topic, count in sorted(plan.counts.items()))
    source = plan.source
    origin = f"of {source.path}" if source.path is not None else "of a random walk"
    fault = f"the kernel drops {LOSS:.0%} of each subscriber's datagrams"
    return f"playing {what} {origin} within {plan.seconds:.3g} s; {fault}"


def progress_lines(state: State) -> list[str]:
    """Return the state: of each its counts."""
    lines = [f"published {state.published:,} of {state.total:,}"]
    for name, tally in state.subscribers.items():
        counts = {"delivered": tally.delivered, "repaired": tally.repaired, "lost": tally.lost}
        lines.append(" ".join([name, *(f"{count:,} {what}" for what, count in counts.items())]))
    lines.append(f"Spark ({state.spark.partition(':')[0]})")
    if state.spark_rows is not None:
        lines[-1] += f" {state.spark_rows:,} read"
    if state.spark_lag is not None:
        lines[-1] += f" {state.spark_lag:,} not read yet"
    return lines


def render_report(state: State, output: str | None = None) -> str:
    """Return the ledger, a few bars, and whether all went well; `output` has all bars."""
    equation = ("published", "= delivered", "+ outstanding", "+ lost")
    titles = ("", *equation, "repaired", "twice", "ledger")
    rows = []
    for name, t in state.subscribers.items():
        holds = t.balanced and state.published == t.delivered + t.outstanding + t.lost
        ledger = "balances" if holds else "DOES NOT BALANCE"
        counts = (state.published, t.delivered, t.outstanding, t.lost, t.repaired, t.duplicates)
        rows.append((name, *counts, ledger))
    if state.spark_rows is None:
        spark = f"Spark {state.spark}; the bars are made of what fast received"
    else:
        spark = f"Spark read {state.spark_rows:,} messages in {state.spark_seconds:.1f} s"
    equal = "equal to" if state.bars_equal else "NOT EQUAL to"
    killed = ""
    if state.restarts:
        killed = f", kills and restarts of the publisher: {state.restarts}"
    lines = [
        f"ledger after {state.seconds:.1f} s and {state.faults}{killed}:",
        _table(titles, rows, 1),
        spark,
        "",
        f"one-second bars, {len(state.bars):,} (UTC):",
        render_bars(state.bars, output),
        f"the bars are {equal} those computed straight from the input",
    ]
    return "\n".join(lines)


def _table(titles: Sequence[str], rows: Iterable[Sequence[Any]], names: int) -> str:
    """Lay a table out: the first `names` columns to the left, the others, numbers, to the right."""
    cells = [titles, *([f"{c:,}" if isinstance(c, int) else c for c in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(f"{c:{'<' if at < names else '>'}{widths[at]}}" for at, c in enumerate(row))
        for row in cells
    )


def render_bars(bars: Sequence[Bar], output: str | None = None) -> str:
    """Lay the first bars out as a table, and say how many others there are, and where."""
    titles = ("symbol", "window", "open", "high", "low", "close", "volume", "trades")
    rows = [
        (bar.symbol, f"{datetime.fromtimestamp(bar.window_start_ns // WINDOW_NS, UTC):%H:%M:%S}",
         *(f"{price:.2f}" for price in (bar.open, bar.high, bar.low, bar.close)),
         f"{bar.volume:.3f}", bar.trades)
        for bar in bars[:_BARS_SHOWN]
    ]  # fmt: skip
    where = f"all are in {output}" if output else "--output FILE writes all"
    more = f"… {max(0, len(bars) - _BARS_SHOWN):,} more: {where}"
    return f"{_table(titles, rows, 2)}\n{more}"


def summarize(state: State) -> dict[str, Any]:
    """Return what `--json` prints."""
    tallies = [
        {"name": name} | {field: getattr(tally, field) for field in _TALLY_FIELDS}
        for name, tally in state.subscribers.items()
    ]
    return {
        "published": state.published,
        "subscribers": tallies,
        "spark": state.spark,
        "spark_rows": state.spark_rows,
        "bars": len(state.bars),
        "bars_equal": state.bars_equal,
        "seconds": round(state.seconds, 3),
        "restarts": state.restarts,
        "errors": state.errors,
    }
