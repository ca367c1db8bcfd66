"""Graphite's plaintext and pickle protocols, with reconnect and a bounded buffer; and its paths.

Paths are as in statsd, in the legacy namespace or the new one. A metric with tags is
`name;key=value;…`. Carbon refuses a path with an empty key or value, although statsd sends such
paths. Here a tag without a value is `key=true`, as in telegraf; a value of which no character is
allowed is `_`; a tag without a key is left out and counted, and so is one called `name`, which
carbon would replace by the path's own name. Carbon would keep only the last of several values of
one key: they are joined by commas.

Two metrics whose names differ only in characters that Graphite does not accept have one path, and
so have a timer and a histogram of one name. Carbon would keep the last one: here the second one of
a flush is left out and counted.
"""

import contextlib
import math
import pickle
import re
import select
import socket
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from p2pmsg.checks import check, check_fields, checked
from p2pmsg.errors import ConfigError
from p2pmsg.statsd.metric import Kind
from p2pmsg.statsd.numbers import clean_name, number_text
from p2pmsg.statsd.snapshot import Fields, Row, Snapshot
from p2pmsg.trouble import Rarely, Trouble
from transports.own_log import own_log as _log

_PAUSES_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_PICKLE_METRICS_MAX = 500
"""Metrics in one pickle; carbon refuses one of more than a megabyte."""
_CONNECT_S = 5.0
PROTOCOLS = ("plaintext", "pickle")
_PERCENT = re.compile(r"_(top)?[0-9]+$")
_TIMER_FIELDS = (
    "count", "count_ps", "std", "upper", "lower", "sum", "sum_squares", "mean", "median",
    "count_percent", "mean_percent", "upper_percent", "lower_percent", "sum_percent",
    "sum_squares_percent",
)  # fmt: skip
_FRACTION = re.compile(r"(?:count|mean|upper|lower|sum|sum_squares)_(?:top)?[0-9]+_percent")
"""What statsd makes of `upper_99_9`: it replaces the last number only."""
_SPACES = {Kind.COUNTER: "c", Kind.GAUGE: "g", Kind.SET: "s"}
"""Kinds that have a path space of their own; all others share the timers'."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphiteNames:
    """How paths are made; the defaults are statsd's. `ConfigError` for an unknown timer metric."""

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
    …, and `upper_percent` for `upper_90` and `upper_top10` alike. Default: all."""

    def __post_init__(self) -> None:
        check_fields(self)
        for field in self.timer_metrics:
            ok = field in _TIMER_FIELDS or _FRACTION.fullmatch(field) is not None
            check("timer_metrics", field, ok, f"of {', '.join(_TIMER_FIELDS)}")

    def paths(
        self, row: Row, refused: Counter[str] | None = None, taken: set[int] | None = None
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
        if row.kind is Kind.COUNTER:
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
        return _PERCENT.sub("_percent", field) in self.timer_metrics

    def _counter(self, name: str, tail: str, fields: Fields) -> Iterator[tuple[str, float]]:
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
        """Return the path of the number of metrics; `prefix_stats` is statsd's own name there."""
        suffix = f".{self.global_suffix}" if self.global_suffix else ""
        space = f"{self.global_prefix}." if self.global_prefix and not self.legacy else ""
        return f"{space}{prefix_stats}.numStats{suffix}"


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


class GraphiteOutput:
    """Sends flushes to carbon, in a thread of its own.

    A carbon that is away is named in the log at once, then once a minute, and when it works again;
    so is the first drop. `failures` counts the attempts.

    Args:
        host: of carbon.
        port: of carbon. Default 2003, with `pickle` 2004.
        protocol: `plaintext` (default) or `pickle`.
        names: how paths are made. Default: as in statsd.
        buffer_bytes: how much is kept while carbon is away; beyond it the oldest is dropped and
            counted. Default 64 MiB: an hour and more of 2,000 metrics every 10 s.

    Raises:
        ConfigError: an argument is out of its limits.

    """

    name = "graphite"

    @checked(port=(0, 65535), buffer_bytes=1)
    def __init__(
        self,
        host: str,
        port: int | None = None,
        *,
        protocol: str = "plaintext",
        names: GraphiteNames | None = None,
        buffer_bytes: int = 64 * 2**20,
    ) -> None:
        if protocol not in PROTOCOLS:
            raise ConfigError("protocol", f"one of {', '.join(PROTOCOLS)}", protocol)
        if buffer_bytes < 1:
            raise ConfigError("buffer_bytes", "at least 1", buffer_bytes)
        self._address = (host, port or (2004 if protocol == "pickle" else 2003))
        self._pickles = protocol == "pickle"
        self._names = names or GraphiteNames()
        self._buffer_bytes = buffer_bytes
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._changed = threading.Condition()
        self._closing = False
        self._abandoned = False
        self._sending_bytes = 0
        self._connection: socket.socket | None = None
        self._paths: list[tuple[str, float, int]] = []
        self.dropped_bytes = 0
        """Bytes dropped because the buffer was full, or not sent when it was closed."""
        self.refused: Counter[str] = Counter()
        """What is not sent, counted at each flush: `tags` without a key or called `name` (only the
        tag is left out), `values` that are not finite, `names` whose path another metric has."""
        self._refused_name = ""
        self._taken: set[int] = set()
        self.connects = 0
        """Connections made so far."""
        self._started_s = time.time()
        self._last_flush_s, self._last_exception_s = self._started_s, 0.0
        self._flush_ms, self._flush_bytes = 0, 0
        self._has_warned = False
        self.failures = 0
        """Failed attempts to connect or to send; each is repeated."""
        self._trouble = Trouble(
            f"statsd: carbon at {host}:{self._address[1]}",
            f"up to {buffer_bytes:,} bytes of what is flushed are kept",
            Rarely(),
        )
        self._drop_said = Rarely()
        self._thread = threading.Thread(target=self._run, name="statsd-graphite", daemon=True)
        self._thread.start()

    def begin(self, snapshot: Snapshot) -> None:
        """Begin the flush of `snapshot`."""
        self._paths = []
        self._taken.clear()
        self._flushed = 0

    def write(self, row: Row) -> None:
        """Take `row`."""
        at = round(row.timestamp_s)
        refused = self.refused.get("names", 0)
        for path, value in self._names.paths(row, self.refused, self._taken):
            if math.isfinite(value):
                self._paths.append((path, value, at))
            else:
                self.refused["values"] += 1
        if not self._refused_name and self.refused.get("names", 0) > refused:
            self._refused_name = row.key
        if len(self._paths) >= _PICKLE_METRICS_MAX:
            self._send_paths()

    def end(self, snapshot: Snapshot) -> None:
        """Send the rest, and the number of metrics in `snapshot`."""
        path = self._names.stats_path(snapshot.config.prefix_stats)
        self._paths.append((path, len(snapshot), round(snapshot.timestamp_s)))
        self._send_paths()
        self._flush_bytes = self._flushed
        if self.refused and not self._has_warned:
            self._has_warned = True
            counts = ", ".join(f"{count} {what}" for what, count in self.refused.items() if count)
            first = f" (the first is {self._refused_name[:200]!r}, whose path another metric has)"
            _log.warning(
                "statsd: carbon cannot keep %s%s: they are not sent, and counted",
                counts, first if self._refused_name else "",
            )  # fmt: skip

    def _send_paths(self) -> None:
        paths, self._paths = self._paths, []
        if self._pickles:
            for start in range(0, len(paths), _PICKLE_METRICS_MAX):
                part = [
                    (path, (at, value)) for path, value, at in paths[start:][:_PICKLE_METRICS_MAX]
                ]
                body = pickle.dumps(part, protocol=2)  # the one that carbon documents
                self._put(struct.pack("!L", len(body)) + body)
        else:
            lines = [f"{path} {number_text(value)} {at}\n" for path, value, at in paths]
            self._put("".join(lines).encode())

    def _put(self, data: bytes) -> None:
        self._flushed += len(data)
        with self._changed:
            self._queue.append(data)
            self._queued_bytes += len(data)
            gone_bytes = 0
            while self._queued_bytes > self._buffer_bytes and self._queue:
                gone = self._queue.popleft()
                self._queued_bytes -= len(gone)
                gone_bytes += len(gone)
            self.dropped_bytes += gone_bytes
            self._changed.notify()
        if gone_bytes:
            self._say_dropped()

    # ------------------------------------------------------------------------------ the thread

    def _run(self) -> None:
        failures = 0
        while (data := self._next()) is not None:
            try:
                if self._connection is not None and _is_closed(self._connection):
                    self._disconnect()
                connection = self._connection or self._connect()
                began = time.monotonic()
                connection.sendall(data)
            except (OSError, UnicodeError) as error:  # UnicodeError: the host is no name
                self._last_exception_s = time.time()
                self._disconnect()
                self._put_back(data)
                self._note_failed(error)
                self._pause(_PAUSES_S[min(failures, len(_PAUSES_S) - 1)])
                failures += 1
                continue
            failures = 0
            self._trouble.over()
            self._flush_ms = round((time.monotonic() - began) * 1e3)
            self._last_flush_s = time.time()
        self._disconnect()

    def _note_failed(self, error: OSError | UnicodeError) -> None:
        self.failures += 1
        if not self._abandoned:  # else `close` has ended the connection
            what = getattr(error, "strerror", None) or str(error)
            self._trouble.note(what, now_ns=time.monotonic_ns())

    def _say_dropped(self) -> None:
        """Say at the first drop, then once a minute, how much was dropped in all."""
        if self._drop_said.is_due():
            _log.warning(
                "statsd: the buffer for carbon is full, and the oldest is dropped: %d bytes so far",
                self.dropped_bytes,
            )

    def _connect(self) -> socket.socket:
        made = socket.create_connection(self._address, timeout=_CONNECT_S)
        with self._changed:
            self._connection = made
            if self._abandoned:  # what is to be sent is counted as dropped
                raise OSError("closed")
        self.connects += 1
        return made

    def _disconnect(self) -> None:
        with self._changed:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _next(self) -> bytes | None:
        with self._changed:
            self._sending_bytes = 0
            while not self._queue:
                if self._closing:
                    return None
                self._changed.wait()
            data = self._queue.popleft()
            self._queued_bytes -= len(data)
            self._sending_bytes = len(data)
            return data

    def _put_back(self, data: bytes) -> None:
        with self._changed:
            self._sending_bytes = 0
            if self._abandoned:
                return
            fits = self._queued_bytes + len(data) <= self._buffer_bytes
            if fits:
                self._queue.appendleft(data)
                self._queued_bytes += len(data)
            else:
                self.dropped_bytes += len(data)
        if not fits:
            self._say_dropped()

    def _pause(self, seconds: float) -> None:
        with self._changed:
            if self._closing:
                self._changed.wait(0.05)
            else:
                self._changed.wait_for(lambda: self._closing, seconds)

    def status(self) -> Iterable[tuple[str, float]]:
        """Return what statsd's own Graphite output shows, and what was dropped."""
        return (
            ("last_flush", round(self._last_flush_s)),
            ("last_exception", round(self._last_exception_s)),
            ("flush_time", self._flush_ms),
            ("flush_length", self._flush_bytes),
            *([("dropped_bytes", self.dropped_bytes)] if self.dropped_bytes else []),
            *((f"refused_{what}", count) for what, count in self.refused.items()),
        )

    def close(self, timeout: float) -> None:
        """Send what is left, for `timeout` seconds at most; the rest is counted as dropped.

        So is a piece of which carbon has a part. A connection that is being made is given up, and
        its thread ends within five seconds.
        """
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout)
        with self._changed:
            self._abandoned = True
            self.dropped_bytes += self._queued_bytes + self._sending_bytes
            self._queue.clear()
            self._queued_bytes = 0
            if self._connection is not None and self._sending_bytes:
                with contextlib.suppress(OSError):
                    self._connection.shutdown(socket.SHUT_RDWR)
            self._changed.notify()
        if self.dropped_bytes:
            _log.warning("statsd: %d bytes have not reached Graphite", self.dropped_bytes)


def _is_closed(connection: socket.socket) -> bool:
    """Whether carbon has closed it; the next `send` would be lost without an error."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    try:
        return bool(poll.poll(0)) and connection.recv(1, socket.MSG_PEEK) == b""
    except OSError:
        return True
