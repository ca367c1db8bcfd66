"""statsd's management port (8126): commands and answers as statsd's. Pure.

As in statsd, what arrives at once is one command, whether or not a line feed ends it; two in one
segment are an error. Objects look like those of Node, since scripts in the field read them.
"""

import re
import socketserver
import time
from collections.abc import Callable, Iterable, Sequence

from p2pmsg.statsd.aggregate import Aggregator
from p2pmsg.statsd.metric import STATISTICS, Kind, number_text
from p2pmsg.toolkit import Section

_HELP = (
    "Commands: stats, counters, timers, gauges, delcounters, deltimers, delgauges, health, config, "
    "quit\n\n"
)
_END = "END\n\n"
_DELETES: dict[str, tuple[Kind, ...]] = {
    "delcounters": (Kind.COUNTER,),
    "deltimers": STATISTICS,
    "delgauges": (Kind.GAUGE,),
}
_IDENTIFIER = re.compile(r"[a-zA-Z_][a-zA-Z_0-9]*")
_LINE_LENGTH = 72
_COMMAND_BYTES_MAX = 64 * 1024
_ANSWER_BYTES_MAX = 16 * 2**20
_ITEMS_MAX = 100
QUIT = None
"""Returned by `answer` to close the connection."""


def handler(management: "Management", section: Section) -> type[socketserver.BaseRequestHandler]:
    """Return what serves a connection: what arrives is answered in the collector's section."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            while data := self.request.recv(_COMMAND_BYTES_MAX):
                answer = section.run(management.answer, data, time.time())
                if answer is QUIT:
                    return
                self.request.sendall(answer.encode()[:_ANSWER_BYTES_MAX])

    return Handler


class Management:
    """Answers commands.

    Args:
        aggregator: holds the metrics that are shown and deleted.
        started_s: when the collector was started, seconds since the epoch.
        statuses: returns (part, name, number) of what is shown; a number whose name begins with
            `last_` is a time, and is shown as the seconds since then.
        config: settings to show, as (name, value).

    """

    def __init__(
        self,
        aggregator: Aggregator,
        started_s: float,
        statuses: Callable[[], Iterable[tuple[str, str, float]]],
        config: Iterable[tuple[str, object]] = (),
    ) -> None:
        self._aggregator = aggregator
        self._started_s = started_s
        self._statuses = statuses
        self._config = list(config)
        self._health = "up"

    def answer(self, data: bytes, now_s: float) -> str | None:
        """Return the answer to what arrived, or `QUIT`."""
        self._aggregator.drain()
        command, *arguments = data.decode("ascii", "replace").strip().split(" ")
        if command == "quit":
            return QUIT
        if command in _DELETES:
            return self._delete(_DELETES[command], arguments)
        handlers: dict[str, Callable[[], str]] = {
            "help": lambda: _HELP,
            "config": lambda: "\n" + "".join(f"{name}: {value}\n" for name, value in self._config),
            "health": lambda: self._show_health(arguments),
            "stats": lambda: self._show_stats(now_s),
            "counters": lambda: self._show(Kind.COUNTER),
            "gauges": lambda: self._show(Kind.GAUGE),
            "timers": self._show_timers,
        }
        handler = handlers.get(command)
        return "ERROR\n" if handler is None else handler()

    def _show_health(self, arguments: list[str]) -> str:
        if arguments and arguments[0].lower() in ("up", "down"):
            self._health = arguments[0].lower()
        return f"health: {self._health}\n"

    def _show_stats(self, now_s: float) -> str:
        now = round(now_s)
        lines = [f"uptime: {now - round(self._started_s)}"]
        for output, name, value in self._statuses():
            shown = now - round(value) if name.startswith("last_") else value
            lines.append(f"{output}.{name}: {number_text(shown)}")
        return "\n".join(lines) + "\n" + _END

    def _show(self, kind: Kind) -> str:
        series = self._aggregator.series
        entries = [(series.key(row), float(series.totals[row])) for row in series.rows_of(kind)]
        return f"{object_text(entries)}\n{_END}"

    def _show_timers(self) -> str:
        aggregator = self._aggregator
        rows = aggregator.series.rows_of(*STATISTICS)
        rows_of_values, values, _ = aggregator.values.columns()
        by_row: dict[int, list[float]] = {}
        for row, value in zip(rows_of_values.tolist(), values.tolist(), strict=True):
            by_row.setdefault(row, []).append(value)
        entries = [(aggregator.series.key(row), by_row.get(row, [])) for row in rows]
        return f"{object_text(entries)}\n{_END}"

    def _delete(self, kinds: tuple[Kind, ...], patterns: list[str]) -> str:
        series = self._aggregator.series
        lines = []
        for pattern in patterns:
            keys = [series.key(row) for row in series.rows_of(*kinds)]
            found = [key for key in keys if key == pattern]
            if pattern.endswith(".*"):
                found += [key for key in keys if key.startswith(pattern[:-1])]
            found = [key for key in dict.fromkeys(found) if self._aggregator.delete(kinds, key)]
            lines += [f"deleted: {key}\n" for key in found]
            if not found:
                lines.append(f"metric {pattern} not found\n")
        return "".join(lines) + _END


def object_text(entries: Sequence[tuple[str, float | Sequence[float]]]) -> str:
    """Return an object of numbers, or of arrays of numbers: on one line if it fits there."""
    parts = [
        f"{key if _IDENTIFIER.fullmatch(key) else repr(key)}: {_value_text(value)}"
        for key, value in entries
    ]
    if not parts:
        return "{}"
    line = f"{{ {', '.join(parts)} }}"
    return line if len(line) <= _LINE_LENGTH else "{\n  " + ",\n  ".join(parts) + "\n}"


def _value_text(value: float | Sequence[float]) -> str:
    if isinstance(value, int | float):
        return number_text(value)
    items = [number_text(number) for number in value[:_ITEMS_MAX]]
    if len(value) > _ITEMS_MAX:
        items.append(f"... {len(value) - _ITEMS_MAX} more items")
    return f"[ {', '.join(items)} ]" if items else "[]"
