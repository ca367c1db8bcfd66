"""A table of the last flush on the terminal."""

import time
from collections.abc import Iterable
from typing import Any

from p2pmsg.statsd.metric import Kind, number_text
from p2pmsg.statsd.snapshot import Row, Snapshot
from p2pmsg.toolkit import checked

_FIELDS = ("count", "rate", "value", "mean", "median", "upper")


class ConsoleOutput:
    """Shows the busiest metrics: on a terminal one live table, elsewhere a table a flush.

    Args:
        file: where to write. Default: standard output.
        rows_max: how many metrics are shown. Default 40.

    Attributes:
        is_unread: whether the reader of the output has gone, as with `| head`.

    """

    name = "console"

    @checked(rows_max=1)
    def __init__(self, file: Any = None, *, rows_max: int = 40) -> None:
        from rich.console import Console
        from rich.live import Live

        class PatientConsole(Console):
            def on_broken_pipe(self) -> None:
                """Raise; rich would end the program."""
                raise BrokenPipeError

        self.is_unread = False
        self._console = PatientConsole(file=file, highlight=False)
        self._rows_max = rows_max
        self._rows: list[Row] = []
        self._left_out = 0
        self._flushes = 0
        self._live: Any = None
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()

    def begin(self, snapshot: Snapshot) -> None:
        """Begin a table for `snapshot`."""
        self._rows, self._left_out = [], 0

    def write(self, row: Row) -> None:
        """Keep `row` where it is one of the busiest."""
        if _weight(row) > 0 or row.kind is Kind.GAUGE:
            self._rows.append(row)
        if len(self._rows) > 4 * self._rows_max:
            self._shrink()

    def _shrink(self) -> None:
        self._rows.sort(key=_weight, reverse=True)
        self._left_out += max(0, len(self._rows) - self._rows_max)
        del self._rows[self._rows_max :]

    def end(self, snapshot: Snapshot) -> None:
        """Show the table of `snapshot`."""
        self._shrink()
        table = _make_table(sorted(self._rows, key=lambda row: row.key))
        at = time.strftime("%H:%M:%S", time.localtime(snapshot.timestamp_s))
        table.title = f"{len(snapshot)} metrics at {at}, every {snapshot.interval_s:g} s"
        if self._left_out:
            table.caption = f"{self._left_out} more"
        self._flushes += 1
        try:
            if self._live is not None:
                self._live.update(table, refresh=True)
            else:
                self._console.print(table)
        except BrokenPipeError:
            self.is_unread = True

    def status(self) -> Iterable[tuple[str, float]]:
        """Return counters."""
        return (("flushes", self._flushes),)

    def close(self, timeout: float) -> None:
        """Leave the last table; it takes no time of `timeout`, in seconds."""
        if self._live is not None and not self.is_unread:
            self._live.stop()


def _weight(row: Row) -> float:
    return abs(row.fields.get("count", 0.0))


def _make_table(rows: list[Row]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table()
    table.add_column("metric", overflow="fold")
    table.add_column("type")
    for field in _FIELDS:
        table.add_column(field, justify="right")
    for row in rows:
        name = "".join(c if c.isprintable() else "�" for c in row.key)
        cells = [
            number_text(round(row.fields[field], 3)) if field in row.fields else ""
            for field in _FIELDS
        ]
        table.add_row(Text(name), row.kind.name.lower(), *cells)
    return table
