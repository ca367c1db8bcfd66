"""Adds metrics up between two flushes. Pure: bytes in, snapshots out; no clock, no socket.

Lines are collected up to some 256 KiB and then processed as one batch: `columns` splits them,
`series` has what each adds to, and the parser reads only lines whose template is new or
that need more than an addition. The order of lines matters for gauges alone, and there it is kept.
"""

import random
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from itertools import repeat
from operator import itemgetter

import numpy as np

from p2pmsg.statsd.columns import PAD_BYTES, CodeKeys, Columns, Floats, Places, split_columns
from p2pmsg.statsd.grammar import parse_line
from p2pmsg.statsd.metric import (
    OWN_PREFIX,
    STATISTICS,
    BadLine,
    Event,
    Item,
    Kind,
    Metric,
    ServiceCheck,
    make_key,
)
from p2pmsg.statsd.series import (
    COUNTER,
    CUT,
    GAUGE,
    HANDLER_BITS,
    PARSER,
    STATISTIC,
    LineTemplates,
    Series,
    add_up,
)
from p2pmsg.statsd.snapshot import AggregateConfig, Snapshot, Timed, Values, quiet

BATCH_BYTES = 256 * 1024
"""Bytes a batch: some 8,000 lines in a millisecond. The hundred numpy calls of a batch then cost
little a line, and their arrays stay in the processor's cache."""
_PADDING = bytes(PAD_BYTES)
_HANDLER_MASK = (1 << HANDLER_BITS) - 1
_BAD_KEPT = 20
_EVENTS_MAX = 10_000
_TIMED_MAX = 100_000
SET_VALUES_MAX = 1_000_000
"""Distinct values that all sets hold between two flushes: some 100 MB."""
VALUES_MAX = 4_000_000
"""Values of timers kept between two flushes: 48 MB, and 400,000 a second by default."""
_COUNTERS = (Kind.COUNTER, Kind.METER)
_EXACT = -1
"""In place of a line's number: the item is of an exact client."""


_GaugeChange = tuple[int, int, float, bool]
"""Number of the line in its batch, row, value, whether the value is added."""


class Aggregator:
    """Adds up metrics.

    Args:
        config: settings.
        interval: time between flushes, in seconds.
        seed: of the codes of line templates; random by default, so that nobody can choose names
            that collide.

    """

    def __init__(
        self,
        config: AggregateConfig | None = None,
        *,
        interval: float = 10.0,
        seed: int | None = None,
    ) -> None:
        self.interval_s = interval
        self.config = config or AggregateConfig()
        self.counts: Counter[str] = Counter()
        """Since the start; `CollectorStats` documents them."""
        self.bad_reasons: Counter[str] = Counter()
        self.bad_sample: deque[BadLine] = deque(maxlen=_BAD_KEPT)
        self.series = Series(self.config.names_max)
        self.values = Values(VALUES_MAX)
        self.sets: dict[int, set[str]] = {}
        self._set_values = 0
        self._timed: dict[Timed, float] = {}
        self._events: list[Event | ServiceCheck] = []
        self._templates = LineTemplates(4 * self.config.names_max)
        self._keys = CodeKeys(random.SystemRandom().getrandbits(256) if seed is None else seed)
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._gauge_changes: list[_GaugeChange] = []
        self._interval = 1
        self._own_rows = [
            self.series.own_row(Kind.COUNTER, f"{OWN_PREFIX}.{name}")
            for name in ("bad_lines_seen", "packets_received", "metrics_received")
        ]
        self._counted = (0, 0, 0)
        self._flushed_s: float | None = None
        self.exact_totals: Mapping[str, float] = {}
        """Exact totals of counters, by key (`ExactTotals.counters`)."""
        self._exact_counts: defaultdict[str, float] = defaultdict(float)

    def feed(self, lines: bytes, packets: int = 1) -> None:
        """Collect lines, separated by line feeds, that came in `packets` datagrams."""
        self.counts["packets"] += packets
        self._pending.append(lines)
        self._pending_bytes += len(lines) + 1
        if self._pending_bytes >= BATCH_BYTES:
            self.drain()

    def drain(self) -> None:
        """Process the lines collected so far."""
        if self._pending:
            pending, self._pending, self._pending_bytes = self._pending, [], 0
            with quiet():
                self._take(b"".join((_PADDING, b"\n".join(pending), b"\n", _PADDING)))
        self._count_own()

    def take(self, items: Sequence[Item]) -> None:
        """Add up items of exact clients, which are in `exact_totals` as well."""
        self.drain()
        with quiet():
            for item in items:
                self._take_item(item, _EXACT)
            self._change_gauges()

    def _count_own(self) -> None:
        """Update the collector's own counters, which are flushed as any other, as in statsd."""
        now = (self.counts["bad_lines"], self.counts["packets"], self.counts["metrics"])
        for row, new, old in zip(self._own_rows, now, self._counted, strict=True):
            self.series.totals[row] += new - old
            self.series.seen[row] = self._interval
        self._counted = now

    # ------------------------------------------------------------------------------- batches

    def _take(self, data: bytes) -> None:
        columns = split_columns(data, self._keys)
        if columns is None:
            return
        self.counts["metrics"] += len(columns.ends)
        templates = self._templates
        if templates.is_full:
            templates.clear()
        slots = templates.find(columns.codes)
        unknown = np.flatnonzero((slots < 0) & columns.regular)
        if len(unknown):
            self._learn(data, columns, unknown)
            slots = templates.find(columns.codes)
        known = columns.regular & (slots >= 0)
        targets = templates.targets[slots].astype(np.int64)
        weights = None if templates.weights is None else templates.weights[slots]
        rows, handlers = targets >> HANDLER_BITS, targets & _HANDLER_MASK
        if not known.all():
            handlers[~known] = PARSER
        if columns.negative.any():
            handlers[columns.negative & (handlers != COUNTER)] = PARSER
        to_parse = np.flatnonzero(handlers == PARSER)
        if len(to_parse):
            self._parse_lines(data, columns, to_parse)
        self._set_gauges(np.flatnonzero(handlers == GAUGE), rows, columns.values)
        self._add_numbers(handlers, rows, weights, columns.values)
        if self.series.is_full:
            self.series.cut_count += int(np.count_nonzero(handlers == CUT))

    def _add_numbers(
        self, handlers: Places, rows: Places, weights: Floats | None, values: Floats
    ) -> None:
        series = self.series
        counters = np.flatnonzero(handlers == COUNTER)
        if len(counters):
            where, amounts = rows[counters], values[counters]
            if weights is not None:
                amounts *= weights[counters]
            add_up(series.totals, where, amounts, series.row_count)
            series.seen[where] = self._interval
        statistics = np.flatnonzero(handlers == STATISTIC)
        if len(statistics):
            where = rows[statistics]
            weight = None if weights is None else weights[statistics]
            add_up(series.totals, where, weight, series.row_count)
            series.seen[where] = self._interval
            if weight is not None and (weight == 1.0).all():
                weight = None
            self._keep_values(where.astype(np.int32), values[statistics], weight)

    def _keep_values(self, rows: Places, values: Floats, weights: Floats | None) -> None:
        self.counts["values_dropped"] += self.values.add(rows, values, weights)

    def _set_gauges(self, lines: Places, rows: Places, values: Floats) -> None:
        """Set gauges; those that parsed lines change too, in the order of the lines."""
        where, late = rows[lines], self._gauge_changes
        if late and len(lines):
            shared = np.isin(where, [row for _, row, _, _ in late])
            if shared.any():
                chosen = lines[shared]
                late += zip(
                    chosen.tolist(), rows[chosen].tolist(), values[chosen].tolist(), repeat(False)
                )
                late.sort(key=itemgetter(0))
                lines, where = lines[~shared], where[~shared]
        if len(lines):
            self.series.totals[where] = values[lines]  # of several, the last one stays
            self.series.seen[where] = self._interval
        self._change_gauges()

    def _change_gauges(self) -> None:
        totals, seen = self.series.totals, self.series.seen
        for _, row, value, relative in self._gauge_changes:
            totals[row] = totals[row] + value if relative else value
            seen[row] = self._interval
        self._gauge_changes = []

    def _learn(self, data: bytes, columns: Columns, unknown: Places) -> None:
        """Parse each new template once, with 1 for a value."""
        codes, first = np.unique(columns.codes[unknown], return_index=True)
        order = np.argsort(first)  # names appear in the order in which they came
        lines = unknown[first[order]].tolist()
        for code, line in zip(codes[order].tolist(), lines, strict=True):
            start, colon = int(columns.starts[line]), int(columns.colons[line])
            bar, end = int(columns.bars[line]), int(columns.ends[line])
            sign = b":-1" if columns.negative[line] else b":1"
            handler, row, weight = self._parse_template(data[start:colon] + sign + data[bar:end])
            if handler == COUNTER or sign == b":1":  # other negative numbers go to the parser
                self._templates.add(code, handler, row, weight)

    def _parse_template(self, line: bytes) -> tuple[int, int, float]:
        """Return handler, row and weight."""
        items = parse_line(line, self.config.dialect)
        if len(items) != 1 or not isinstance(items[0], Metric):
            return PARSER, -1, 1.0
        metric = items[0]
        if metric.timestamp_s is not None or metric.kind is Kind.SET:
            return PARSER, -1, 1.0
        row = self.series.row(metric.kind, make_key(metric.name, metric.tags))
        if row < 0:
            return CUT, -1, 1.0
        if metric.kind in _COUNTERS:
            return COUNTER, row, 1 / metric.rate
        return (GAUGE if metric.kind is Kind.GAUGE else STATISTIC), row, 1 / metric.rate

    # --------------------------------------------------------------------- lines read one by one

    def _parse_lines(self, data: bytes, columns: Columns, lines: Places) -> None:
        starts, ends = columns.starts[lines].tolist(), columns.ends[lines].tolist()
        for number, start, end in zip(lines.tolist(), starts, ends, strict=True):
            for item in parse_line(data[start:end], self.config.dialect):
                self._take_item(item, number)

    def _take_item(self, item: Item, number: int) -> None:
        if isinstance(item, BadLine):
            self.counts["bad_lines"] += 1
            self.bad_reasons[item.reason] += 1
            self.bad_sample.append(item)
        elif not isinstance(item, Metric):
            if len(self._events) < _EVENTS_MAX:
                self._events.append(item)
            else:
                self.counts["events_dropped"] += 1
        elif item.timestamp_s is not None:
            self._take_timed(item, item.timestamp_s)
        elif item.values:  # gostatsd's dialect takes a pack of empty values
            self._take_metric(item, number)

    def _take_metric(self, metric: Metric, number: int) -> None:
        key = make_key(metric.name, metric.tags)
        series = self.series
        row = series.row(metric.kind, key)
        if row < 0:
            series.cut_count += 1
            return
        weight = 1 / metric.rate
        if metric.kind is Kind.GAUGE:
            for value, relative in zip(metric.numbers, metric.relative, strict=True):
                self._gauge_changes.append((number, row, value, relative))
            return
        series.seen[row] = self._interval
        if metric.kind in _COUNTERS:
            for value in metric.numbers:
                series.totals[row] += value * weight
                if number == _EXACT:
                    self._exact_counts[key] += value
        elif metric.kind is Kind.SET:
            self._add_to_set(row, str(metric.values[0]))
        else:
            values = np.array(metric.numbers, np.float64)
            series.totals[row] += weight * len(values)
            weights = None if weight == 1 else np.full(len(values), weight)
            self._keep_values(np.full(len(values), row, np.int32), values, weights)

    def _add_to_set(self, row: int, value: str) -> None:
        values = self.sets.setdefault(row, set())
        if value in values:
            return
        if self._set_values >= SET_VALUES_MAX:
            self.counts["set_values_dropped"] += 1
            return
        values.add(value)
        self._set_values += 1

    def _take_timed(self, metric: Metric, timestamp_s: int) -> None:
        timed = Timed(metric.kind, make_key(metric.name, metric.tags), timestamp_s)
        if timed not in self._timed and len(self._timed) >= _TIMED_MAX:
            self.counts["timed_dropped"] += 1
            return
        for index, value in enumerate(metric.numbers):
            if metric.kind is Kind.GAUGE and not metric.relative[index]:
                self._timed[timed] = value
            else:
                self._timed[timed] = self._timed.get(timed, 0.0) + value / metric.rate

    # ------------------------------------------------------------------------------- flushes

    def flush(self, timestamp_s: float) -> Snapshot:
        """Return a snapshot of the interval and begin the next one.

        This only copies some arrays; the snapshot's `rows` does the work.
        """
        self.drain()
        self._on_lag(timestamp_s)
        self._delete_idle()
        series, count = self.series, self.series.row_count
        snapshot = Snapshot(
            timestamp_s=timestamp_s, interval_s=self.interval_s, config=self.config,
            events=self._events, exact_counts=self._exact_counts, keys=series.marked_keys(),
            kinds=series.kinds[:count].copy(), totals=series.totals[:count].copy(),
            values=self.values, sets=self.sets, exact_totals=dict(self.exact_totals),
            timed=self._timed,
        )  # fmt: skip
        self._timed, self._events, self._exact_counts = {}, [], defaultdict(float)
        self.values = Values(VALUES_MAX)
        self.sets = {}
        self._set_values = 0
        series.totals[:count][series.kinds[:count] != ord("g")] = 0.0
        self._interval += 1
        return snapshot

    def _on_lag(self, timestamp_s: float) -> None:
        """Set the gauge `timestamp_lag`, as statsd does: by how much the interval was too long."""
        before, self._flushed_s = self._flushed_s, timestamp_s
        if before is not None:
            row = self.series.own_row(Kind.GAUGE, f"{OWN_PREFIX}.timestamp_lag")
            self.series.totals[row] = round(timestamp_s - before - self.interval_s, 3)
            self.series.seen[row] = self._interval

    def _delete_idle(self) -> None:
        if self.config.delete_idle:
            count = self.series.row_count
            used = self.series.kinds[:count] != 0
            idle = np.flatnonzero(used & (self.series.seen[:count] < self._interval))
            self._delete(set(idle.tolist()) - set(self._own_rows))

    def _delete(self, rows: set[int]) -> None:
        for row in rows:
            self.series.delete(row)
            self.sets.pop(row, None)
        if rows:
            self._templates.clear()

    def delete(self, kinds: tuple[Kind, ...], key: str) -> bool:
        """Forget a metric, as the management port's `delcounters` does; False if it is unknown."""
        self.drain()
        for kind in kinds:
            row = self.series.find(kind, key)
            if row is not None and row not in self._own_rows:
                if kind in STATISTICS:
                    self.values.drop_row(row)
                elif kind in _COUNTERS:
                    self._exact_counts.pop(key, None)
                self._delete({row})
                return True
        return False
