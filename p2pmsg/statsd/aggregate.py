"""Adding metrics up between two flushes. Pure: bytes in, snapshots out; no clock, no socket.

Lines are gathered to some 256 KiB and then taken together: `columns` splits them, `forms` finds
what they add to, and only lines of a form that is new or odd are read by the parser. So a batch is
what a loop would be, but for one thing: the order of lines matters for gauges alone, and there it
is kept.
"""

import random
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from p2pmsg.statsd.columns import PAD_BYTES, Columns, Floats, Places, split_columns
from p2pmsg.statsd.config import AggregateConfig
from p2pmsg.statsd.line_templates import (
    COUNTER,
    CUT,
    GAUGE,
    SLOW,
    STATISTIC,
    WAY_BITS,
    Forms,
    add_up,
)
from p2pmsg.statsd.metric import BadLine, Event, Item, Kind, Metric, ServiceCheck, make_key
from p2pmsg.statsd.parser import parse_line
from p2pmsg.statsd.series import Series
from p2pmsg.statsd.snapshot import Snapshot, Timed
from p2pmsg.statsd.values import Defer, Values, at_once

BATCH_BYTES = 256 * 1024
"""Lines taken together: some 8,000 in a millisecond. numpy's hundred calls cost little a line then,
and what they make stays in the processor's cache."""
_PADDING = bytes(PAD_BYTES)
_WAY_MASK = (1 << WAY_BITS) - 1
_PARSED_MAX = 4096
"""Odd lines remembered with what they say; identical ones come again and again."""
_BAD_KEPT = 20
_EVENTS_MAX = 10_000
_TIMED_MAX = 100_000
_COUNTERS = (Kind.COUNTER, Kind.METER)
_STATISTICS = (Kind.TIMER, Kind.HISTOGRAM, Kind.DISTRIBUTION)


@dataclass(slots=True)
class Tally:
    """What came in since the start, and what did not get in."""

    packets: int = 0
    metrics: int = 0
    bad_lines: int = 0
    events_dropped: int = 0
    """Events and service checks beyond 10,000 a flush."""
    timed_dropped: int = 0
    """Metrics with a timestamp beyond 100,000 a flush."""
    set_values_dropped: int = 0
    """Values of sets beyond `set_values_max`."""
    order_repairs: int = 0
    """Batches in which plain and signed values of one gauge met."""


class Aggregator:
    """Adds up what lines say.

    Args:
        config: settings.
        seed: of the codes of forms; random by default, so that names cannot be made to collide.
        defer: who puts many values into bins; see `Values`.

    """

    def __init__(
        self,
        config: AggregateConfig | None = None,
        *,
        seed: int | None = None,
        defer: Defer = at_once,
    ) -> None:
        self._defer = defer
        self.config = config or AggregateConfig()
        self.tally = Tally()
        self.bad_reasons: Counter[str] = Counter()
        self.bad_sample: deque[BadLine] = deque(maxlen=_BAD_KEPT)
        self.series = Series(self.config.names_max)
        self.values = Values(self.config.values_max, self._defer)
        self.sets: dict[int, set[str]] = {}
        self._set_values = 0
        self._timed: dict[Timed, float] = {}
        self._events: list[Event | ServiceCheck] = []
        self._forms = Forms(4 * self.config.names_max)
        self._seed = random.SystemRandom().getrandbits(64) if seed is None else seed
        self._parsed: dict[bytes, list[Item]] = {}
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._interval = 1
        prefix = self.config.prefix_stats
        self._own_rows = [
            self.series.own_row(Kind.COUNTER, f"{prefix}.{name}")
            for name in ("bad_lines_seen", "packets_received", "metrics_received")
        ]
        self._counted = (0, 0, 0)
        self._flushed_s: float | None = None
        self.exact_totals: Mapping[str, float] = {}
        """Totals of counters that came over the reliable channel, by key."""

    def feed(self, lines: bytes, packets: int = 1) -> None:
        """Take lines, separated by line feeds; `packets` is how many datagrams they came in."""
        self.tally.packets += packets
        self._pending.append(lines)
        self._pending_bytes += len(lines) + 1
        if self._pending_bytes >= BATCH_BYTES:
            self.settle()

    def settle(self) -> None:
        """Add up what was gathered so far, so that everything shows it."""
        if self._pending:
            pending, self._pending, self._pending_bytes = self._pending, [], 0
            with np.errstate(over="ignore", invalid="ignore"):  # huge values may add up to inf
                self._take(b"".join((_PADDING, b"\n".join(pending), b"\n", _PADDING)))
        self._count_own()

    def take(self, items: Sequence[Item]) -> None:
        """Add up what was parsed elsewhere."""
        self.settle()
        gauges: list[tuple[int, int, float, bool]] = []
        for item in items:
            self._take_item(item, 0, gauges)
        self._set_gauges(gauges)

    def _count_own(self) -> None:
        """Keep the counters about ourselves, as statsd does, with those of the clients."""
        now = (self.tally.bad_lines, self.tally.packets, self.tally.metrics)
        for row, new, old in zip(self._own_rows, now, self._counted, strict=True):
            self.series.totals[row] += new - old
            self.series.seen[row] = self._interval
        self._counted = now

    # ------------------------------------------------------------------------------ the batch

    def _take(self, data: bytes) -> None:
        columns = split_columns(data, self._seed)
        if columns is None:
            return
        self.tally.metrics += len(columns.ends)
        if self._forms.is_full:
            self._forms.clear()
        slots = self._forms.find(columns.codes)
        unknown = np.flatnonzero((slots < 0) & columns.regular)
        if len(unknown):
            self._learn(data, columns, unknown)
            slots = self._forms.find(columns.codes)
        known = columns.regular & (slots >= 0)
        targets = self._forms.targets[slots]
        weights = self._forms.weights[slots] if self._forms.weighted else None
        rows, ways = targets >> WAY_BITS, targets & _WAY_MASK
        if not known.all():
            ways[~known] = SLOW
        if columns.negative.any():
            ways[columns.negative & (ways != COUNTER)] = SLOW
        odd = np.flatnonzero(ways == SLOW)
        late: list[tuple[int, int, float, bool]] = []
        if len(odd):
            self._take_odd(data, columns, odd, late)
        self._set_plain(np.flatnonzero(ways == GAUGE), rows, columns.values, late)
        self._add_numbers(ways, rows, weights, columns.values)
        if self.series.is_full:
            self.series.cut_count += int(np.count_nonzero(ways == CUT))

    def _add_numbers(
        self, ways: Places, rows: Places, weights: Floats | None, values: Floats
    ) -> None:
        series = self.series
        counters = np.flatnonzero(ways == COUNTER)
        if len(counters):
            where, amounts = rows[counters], values[counters]
            if weights is not None:
                amounts *= weights[counters]
            add_up(series.totals, where, amounts, series.row_count)
            series.seen[where] = self._interval
        statistics = np.flatnonzero(ways == STATISTIC)
        if len(statistics):
            where = rows[statistics]
            weight = None if weights is None else weights[statistics]
            add_up(series.totals, where, weight, series.row_count)
            series.seen[where] = self._interval
            if weight is not None and (weight == 1.0).all():
                weight = None
            self.values.add(where.astype(np.int32), values[statistics], weight)

    def _set_plain(
        self,
        gauges: Places,
        rows: Places,
        values: Floats,
        late: list[tuple[int, int, float, bool]],
    ) -> None:
        """Set gauges; those that odd lines change as well, in the order of the lines."""
        where = rows[gauges]
        if late and len(gauges):
            shared = np.isin(where, [row for _, row, _, _ in late])
            if shared.any():
                self.tally.order_repairs += 1
                chosen = gauges[shared]
                late += [
                    (line, row, value, False)
                    for line, row, value in zip(
                        chosen.tolist(), rows[chosen].tolist(), values[chosen].tolist(), strict=True
                    )
                ]
                late.sort(key=lambda change: change[0])
                gauges, where = gauges[~shared], where[~shared]
        if len(gauges):
            self.series.totals[where] = values[gauges]  # of several, the last one stays
            self.series.seen[where] = self._interval
        self._set_gauges(late)

    def _set_gauges(self, changes: list[tuple[int, int, float, bool]]) -> None:
        totals, seen = self.series.totals, self.series.seen
        for _, row, value, relative in changes:
            totals[row] = totals[row] + value if relative else value
            seen[row] = self._interval

    def _learn(self, data: bytes, columns: Columns, unknown: Places) -> None:
        """Read each new form once, with 1 for a value."""
        codes, first = np.unique(columns.codes[unknown], return_index=True)
        order = np.argsort(first)  # names appear in the order in which they came
        for code, line in zip(
            codes[order].tolist(), unknown[first[order]].tolist(), strict=True
        ):  # fmt: skip
            start, colon = int(columns.starts[line]), int(columns.colons[line])
            bar, end = int(columns.bars[line]), int(columns.ends[line])
            sign = b":-1" if columns.negative[line] else b":1"
            way, row, weight = self._read_form(data[start:colon] + sign + data[bar:end])
            if way == COUNTER or sign == b":1":  # other numbers below zero are odd lines anyway
                self._forms.add(code, way, row, weight)

    def _read_form(self, line: bytes) -> tuple[int, int, float]:
        items = parse_line(line, self.config.dialect)
        if len(items) != 1 or not isinstance(items[0], Metric):
            return SLOW, -1, 1.0
        metric = items[0]
        if metric.timestamp_s is not None or metric.kind is Kind.SET:
            return SLOW, -1, 1.0
        row = self.series.row(metric.kind, make_key(metric.name, metric.tags))
        if row < 0:
            return CUT, -1, 1.0
        if metric.kind in _COUNTERS:
            return COUNTER, row, 1 / metric.rate
        return (GAUGE if metric.kind is Kind.GAUGE else STATISTIC), row, 1 / metric.rate

    # --------------------------------------------------------------------- lines read one by one

    def _take_odd(
        self,
        data: bytes,
        columns: Columns,
        odd: Places,
        gauges: list[tuple[int, int, float, bool]],
    ) -> None:
        parsed, dialect = self._parsed, self.config.dialect
        starts, ends = columns.starts[odd].tolist(), columns.ends[odd].tolist()
        for number, start, end in zip(odd.tolist(), starts, ends, strict=True):
            line = data[start:end]
            items = parsed.get(line)
            if items is None:
                items = parse_line(line, dialect)
                if len(parsed) >= _PARSED_MAX:
                    parsed.clear()
                if len(line) < 1024:
                    parsed[line] = items
            for item in items:
                self._take_item(item, number, gauges)

    def _take_item(
        self, item: Item, number: int, gauges: list[tuple[int, int, float, bool]]
    ) -> None:
        if isinstance(item, BadLine):
            self.tally.bad_lines += 1
            self.bad_reasons[item.reason] += 1
            self.bad_sample.append(item)
        elif not isinstance(item, Metric):
            if len(self._events) < _EVENTS_MAX:
                self._events.append(item)
            else:
                self.tally.events_dropped += 1
        elif item.timestamp_s is not None:
            self._take_timed(item)
        else:
            self._take_metric(item, number, gauges)

    def _take_metric(
        self, metric: Metric, number: int, gauges: list[tuple[int, int, float, bool]]
    ) -> None:
        if not metric.values:  # a pack of empty values, which gostatsd's dialect takes
            return
        row = self.series.row(metric.kind, make_key(metric.name, metric.tags))
        if row < 0:
            self.series.cut_count += 1
            return
        weight = 1 / metric.rate
        if metric.kind is Kind.GAUGE:
            for value, relative in zip(metric.numbers, metric.relative, strict=True):
                gauges.append((number, row, value, relative))
            return
        self.series.seen[row] = self._interval
        if metric.kind in _COUNTERS:
            for value in metric.numbers:
                self.series.totals[row] += value * weight
        elif metric.kind is Kind.SET:
            self._add_to_set(row, str(metric.values[0]))
        else:
            values = np.array(metric.numbers, np.float64)
            self.series.totals[row] += weight * len(values)
            weights = None if weight == 1 else np.full(len(values), weight)
            self.values.add(np.full(len(values), row, np.int32), values, weights)

    def _add_to_set(self, row: int, value: str) -> None:
        values = self.sets.setdefault(row, set())
        if value in values:
            return
        if self._set_values >= self.config.set_values_max:
            self.tally.set_values_dropped += 1
            return
        values.add(value)
        self._set_values += 1

    def _take_timed(self, metric: Metric) -> None:
        assert metric.timestamp_s is not None
        timed = Timed(metric.kind, make_key(metric.name, metric.tags), metric.timestamp_s)
        if timed not in self._timed and len(self._timed) >= _TIMED_MAX:
            self.tally.timed_dropped += 1
            return
        for index, value in enumerate(metric.numbers):
            if metric.kind is Kind.GAUGE and not metric.relative[index]:
                self._timed[timed] = value
            else:
                self._timed[timed] = self._timed.get(timed, 0.0) + value / metric.rate

    # -------------------------------------------------------------------------------- the flush

    def flush(self, timestamp_s: float) -> Snapshot:
        """Return what came since the last flush and begin anew.

        This takes some copies of arrays; the work is in the snapshot's `rows`.
        """
        self.settle()
        self._note_lag(timestamp_s)
        self._delete_idle()
        snapshot = Snapshot(
            self.config, self.series, self.values, self.sets, timestamp_s=timestamp_s,
            exact_totals=self.exact_totals, timed=self._timed, events=self._events,
        )  # fmt: skip
        self._timed, self._events = {}, []
        self.values = Values(self.config.values_max, self._defer)
        self.sets = {}
        self._set_values = 0
        count = self.series.row_count
        self.series.totals[:count][self.series.kinds[:count] != ord("g")] = 0.0
        self._interval += 1
        return snapshot

    def _note_lag(self, timestamp_s: float) -> None:
        """Keep, as statsd does, by how much an interval was too long."""
        before, self._flushed_s = self._flushed_s, timestamp_s
        if before is not None:
            row = self.series.own_row(Kind.GAUGE, f"{self.config.prefix_stats}.timestamp_lag")
            lag = timestamp_s - before - self.config.interval_s
            self._set_gauges([(0, row, round(lag, 3), False)])

    def _delete_idle(self) -> None:
        config, series = self.config, self.series
        ages = {"g": config.gauge_age_max} if config.delete_gauges else {}
        ages |= {"c": 1} if config.delete_counters else {}
        ages |= {"s": 1} if config.delete_sets else {}
        ages |= {"t": 1, "h": 1, "d": 1} if config.delete_timers else {}
        count = series.row_count
        idle = self._interval - series.seen[:count]
        doomed: list[int] = []
        for mark, age in ages.items():
            is_old = (series.kinds[:count] == ord(mark)) & (idle >= age)
            doomed += np.flatnonzero(is_old).tolist()
        self._delete(set(doomed) - set(self._own_rows))

    def _delete(self, rows: set[int]) -> None:
        for row in rows:
            self.series.delete(row)
            self.sets.pop(row, None)
        if rows:
            self._forms.clear()
            self._parsed.clear()

    def delete(self, kinds: tuple[Kind, ...], key: str) -> bool:
        """Forget a metric at once, as the management port's `delcounters` does."""
        self.settle()
        for kind in kinds:
            row = self.series.find(kind, key)
            if row is not None and row not in self._own_rows:
                if kind in _STATISTICS:
                    self.values.drop_row(row)
                self._delete({row})
                return True
        return False
