"""Paths in Graphite's tree as statsd makes them: the legacy namespace and the new one.

A metric with tags is `name;key=value;…`. Carbon refuses a path with an empty key or value, although
statsd sends such paths. Here a tag without a value is `key=true`, as in telegraf; a value of which
no character is allowed is `_`; a tag without a key is left out and counted, and so is one called
`name`, which carbon would replace by the path's own name. Carbon would keep only the last of
several values of one key: they are joined by commas.

Two metrics whose names differ only in characters that Graphite does not accept have one path, and
so have a timer and a histogram of one name. Carbon would keep the last one: here the second one of
a flush is left out and counted.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from p2pmsg.errors import ConfigError
from p2pmsg.statsd.metric import Kind
from p2pmsg.statsd.numbers import clean_name
from p2pmsg.statsd.snapshot import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphiteNames:
    """How paths are made; the defaults are statsd's."""

    legacy: bool = True
    """`stats.name` and `stats_counts.name` for counters instead of `stats.counters.name.rate` and
    `.count`. On, as with statsd; new installations want it off."""
    global_prefix: str = "stats"
    """First part of every path in the new namespace; "" for none."""
    prefix_counter: str = "counters"
    """Second part for counters in the new namespace."""
    prefix_timer: str = "timers"
    """The same for timers, histograms and distributions."""
    prefix_gauge: str = "gauges"
    """The same for gauges."""
    prefix_set: str = "sets"
    """The same for sets."""
    global_suffix: str = ""
    """Last part of every path, such as the host's name."""
    flush_counts: bool = True
    """Whether counters are sent as counts, and not as rates only."""
    timer_metrics: tuple[str, ...] = ()
    """Which fields of timers are sent, as statsd's `calculatedTimerMetrics`: `count`, `median`,
    `histogram` …, and `upper_percent` for `upper_90` and `upper_top10` alike. Default: all."""

    def __post_init__(self) -> None:
        for field in self.timer_metrics:
            if field not in _TIMER_FIELDS and not _FRACTION.fullmatch(field):
                raise ConfigError("timer_metrics", f"of {', '.join(_TIMER_FIELDS)}", field)

    def paths(
        self,
        row: Row,
        refused: Counter[str] | None = None,
        taken: set[int] | None = None,
    ) -> Iterator[tuple[str, float]]:
        """Yield path and value of each field of a row.

        Args:
            row: the row.
            refused: counts `tags` that cannot be sent and `names` whose path another metric has.
            taken: hashes of the paths of this flush's earlier rows. Default: not checked.

        """
        refused = Counter() if refused is None else refused
        name, tags = _clean(row, refused)
        if taken is not None:
            place = hash((_SPACES.get(row.kind), name, tags, row.timestamp_s))
            if place in taken:
                refused["names"] += 1
                return
            taken.add(place)
        tail = (f".{self.global_suffix}" if self.global_suffix else "") + tags
        if row.kind is Kind.COUNTER or row.kind is Kind.METER:
            yield from self._counter(name, tail, row.fields)
        elif row.kind is Kind.GAUGE:
            yield f"{self._space(self.prefix_gauge, 'gauges')}{name}{tail}", row.fields["value"]
        elif row.kind is Kind.SET:
            yield f"{self._space(self.prefix_set, 'sets')}{name}.count{tail}", row.fields["count"]
        else:
            space = self._space(self.prefix_timer, "timers")
            for field, value in row.fields.items():
                if not self.timer_metrics or self._is_chosen(field):
                    yield f"{space}{name}.{field}{tail}", value

    def _is_chosen(self, field: str) -> bool:
        if field.startswith("histogram."):
            return "histogram" in self.timer_metrics
        return _PERCENT.sub("_percent", field) in self.timer_metrics

    def _counter(
        self, name: str, tail: str, fields: dict[str, float]
    ) -> Iterator[tuple[str, float]]:
        space = "stats." if self.legacy else self._space(self.prefix_counter, "")
        rate = "" if self.legacy else ".rate"
        yield f"{space}{name}{rate}{tail}", fields["rate"]
        if self.flush_counts:
            path = f"stats_counts.{name}" if self.legacy else f"{space}{name}.count"
            yield f"{path}{tail}", fields["count"]

    def _space(self, prefix: str, legacy: str) -> str:
        if self.legacy:
            return f"stats.{legacy}."
        return "".join(f"{part}." for part in (self.global_prefix, prefix) if part)

    def stats_path(self, prefix_stats: str) -> str:
        """Return the path of the number of metrics."""
        suffix = f".{self.global_suffix}" if self.global_suffix else ""
        space = f"{self.global_prefix}." if self.global_prefix and not self.legacy else ""
        return f"{space}{prefix_stats}.numStats{suffix}"


_PERCENT = re.compile(r"_(top)?[0-9]+$")
_TIMER_FIELDS = (
    "count", "count_ps", "std", "upper", "lower", "sum", "sum_squares", "mean", "median",
    "histogram", "count_percent", "mean_percent", "upper_percent", "lower_percent", "sum_percent",
    "sum_squares_percent",
)  # fmt: skip
_FRACTION = re.compile(r"(?:count|mean|upper|lower|sum|sum_squares)_(?:top)?[0-9]+_percent")
"""What statsd makes of `upper_99_9`: it replaces the last number only."""
_SPACES = {Kind.COUNTER: "c", Kind.METER: "c", Kind.GAUGE: "g", Kind.SET: "s"}
"""Kinds that have a path space of their own; all others share the timers'."""


def _clean(row: Row, refused: Counter[str]) -> tuple[str, str]:
    """Return a name and `;key=value…`, in characters that Graphite accepts.

    Tags within the name (Graphite's own style) keep their order.
    """
    name, *own = row.name.split(";")
    tags = own + [tag.replace(":", "=", 1).replace(";", "_") for tag in row.tags]
    return clean_name(name), _tail(tags, refused) if tags else ""


def _tail(tags: list[str], refused: Counter[str]) -> str:
    found: dict[str, str] = {}
    for tag in tags:
        key, _, value = tag.partition("=")
        key = clean_name(key)
        if not key or key == "name":
            refused["tags"] += 1
            continue
        value = (clean_name(value) or "_") if value else "true"
        found[key] = f"{found[key]},{value}" if key in found else value
    return "".join(f";{key}={value}" for key, value in found.items())
