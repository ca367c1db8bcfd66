"""Names in Graphite's tree, as statsd makes them: the legacy namespace and the new one.

A series with tags is `name;key=value;…`. Carbon refuses one whose key or value is empty, and so
each flush of it; statsd sends such ones. Here a tag without a value is `key=true`, as telegraf has
it, a value of which no character is allowed is `_`; a tag without a key is left out and counted.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

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
    """Whether counters are sent as they are, besides their rate."""
    timer_metrics: tuple[str, ...] = ()
    """Which fields of timers are sent, as statsd's `calculatedTimerMetrics`: `count`, `median`,
    `histogram` …, and `upper_percent` for `upper_90` and `upper_top10` alike. Default: all."""

    def paths(
        self, row: Row, refused: Counter[str] | None = None
    ) -> Iterator[tuple[str, float]]:
        """Give path and value of each field of a row.

        Args:
            row: a row.
            refused: where `tags` that cannot be sent are counted.

        """
        refused = Counter() if refused is None else refused
        name, tags = _clean(row, refused)
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


def _clean(row: Row, refused: Counter[str]) -> tuple[str, str]:
    """Return a name and `;key=value…`, of characters that Graphite takes.

    Tags that the name holds already (Graphite's own style) stay in their order.
    """
    name, *own = row.name.split(";")
    tags = own + [tag.replace(":", "=", 1).replace(";", "_") for tag in row.tags]
    return clean_name(name), "".join(_tag(tag, refused) for tag in tags) if tags else ""


def _tag(tag: str, refused: Counter[str]) -> str:
    key, _, value = tag.partition("=")
    key = clean_name(key)
    if not key:
        refused["tags"] += 1
        return ""
    return f";{key}={clean_name(value) or '_'}" if value else f";{key}=true"
