"""Graphite's plaintext and pickle protocols, with a bounded buffer; and its paths.

Paths are as in statsd, in the legacy namespace or the new one. A metric with tags is
`name;key=value;…`. Carbon refuses a path with an empty key or value, although statsd sends such
paths. Here a tag without a value is `key=true`, as in telegraf; a value of which no character is
allowed is `_`; a tag without a key is left out, and so is one called `name`, which carbon would
replace by the path's own name. Carbon would keep only the last of several values of one key: they
are joined by commas.
"""

import contextlib
import math
import pickle
import re
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from p2pmsg.statsd.grammar import clean_name
from p2pmsg.statsd.metric import OWN_PREFIX, Kind, number_text
from p2pmsg.statsd.outputs.base import Output
from p2pmsg.statsd.snapshot import Row, Snapshot
from p2pmsg.toolkit import Trouble, check, check_fields, checked
from p2pmsg.toolkit import own_log as _log

BUFFER_BYTES = 64 * 2**20
"""What is kept while carbon is away: an hour and more of 2,000 metrics every 10 s."""
_PAUSE_S = 0.5
_PICKLE_METRICS_MAX = 500
"""Metrics in one pickle; carbon refuses one of more than a megabyte."""
_CONNECT_S = 5.0
_PORTS = {"plaintext": 2003, "pickle": 2004}
_PERCENT = re.compile(r"_(top)?[0-9_]+$")
_TIMER_FIELDS = (
    "count", "count_ps", "std", "upper", "lower", "sum", "sum_squares", "mean", "median",
    "count_percent", "mean_percent", "upper_percent", "lower_percent", "sum_percent",
    "sum_squares_percent",
)  # fmt: skip
_SPACES = {Kind.COUNTER: "counters", Kind.GAUGE: "gauges", Kind.SET: "sets"}
"""Second part of a path in the new namespace; all other kinds are among the timers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphiteNames:
    """How paths are made; the defaults are statsd's. `ConfigError` for an unknown timer metric."""

    legacy: bool = True
    """`stats.name` and `stats_counts.name` for counters instead of `stats.counters.name.rate` and
    `.count`. On, as with statsd; new installations want it off."""
    global_prefix: str = "stats"
    """First part of every path in the new namespace; "" for none."""
    global_suffix: str = ""
    """Last part of every path, such as the host's name."""
    timer_metrics: tuple[str, ...] = ()
    """Which fields of timers are sent, as statsd's `calculatedTimerMetrics`: `count`, `median`, …,
    and `upper_percent` for `upper_90` and `upper_top10` alike. Default: all."""

    def __post_init__(self) -> None:
        check_fields(self)
        for field in self.timer_metrics:
            check("timer_metrics", field, field in _TIMER_FIELDS, f"of {', '.join(_TIMER_FIELDS)}")

    def paths(self, row: Row) -> Iterator[tuple[str, float]]:
        """Yield path and value of each field of a row."""
        name, tags = _clean(row)
        tail = (f".{self.global_suffix}" if self.global_suffix else "") + tags
        if row.kind is Kind.COUNTER and self.legacy:
            yield f"stats.{name}{tail}", row.fields["rate"]
            yield f"stats_counts.{name}{tail}", row.fields["count"]
            return
        prefix = "stats" if self.legacy else self.global_prefix
        space = f"{prefix}." if prefix else ""
        space += _SPACES.get(row.kind, "timers")
        chosen = () if row.kind in _SPACES else self.timer_metrics
        for field, value in row.fields.items():
            is_chosen = not chosen or _PERCENT.sub("_percent", field) in chosen
            if is_chosen and field != "total":
                place = name if row.kind is Kind.GAUGE else f"{name}.{field}"
                yield f"{space}.{place}{tail}", value

    def stats_path(self) -> str:
        """Return the path of the number of metrics."""
        suffix = f".{self.global_suffix}" if self.global_suffix else ""
        space = f"{self.global_prefix}." if self.global_prefix and not self.legacy else ""
        return f"{space}{OWN_PREFIX}.numStats{suffix}"


def _clean(row: Row) -> tuple[str, str]:
    """Return a name and `;key=value…`, in characters that Graphite accepts.

    Tags within the name (Graphite's own style) keep their order.
    """
    name, *tags = row.name.split(";")
    tags += [tag.replace(":", "=", 1).replace(";", "_") for tag in row.tags]
    found: dict[str, str] = {}
    for tag in tags:
        key, _, value = tag.partition("=")
        key = clean_name(key)
        if key and key != "name":
            value = (clean_name(value) or "_") if value else "true"
            found[key] = f"{found[key]},{value}" if key in found else value
    return clean_name(name), "".join(f";{key}={value}" for key, value in found.items())


class GraphiteOutput(Output):
    """Sends flushes to carbon, in a thread of its own, with one connection a flush.

    While carbon is away, the last 64 MiB are kept; what is older is dropped and counted. That is
    named in the log at once, then once a minute, and when it works again.

    Args:
        host: of carbon.
        port: of carbon. Default 2003, with `pickle` 2004.
        protocol: `plaintext` (default) or `pickle`.
        names: how paths are made. Default: as in statsd.

    Attributes:
        dropped_bytes: what was dropped, or not sent at the end.
        refused: values that are not finite, which are left out.
        failures: failed attempts to connect or to send; each is repeated.

    Raises:
        ConfigError: an argument is out of its limits.

    """

    name = "graphite"

    @checked(port=(0, 65535))
    def __init__(
        self,
        host: str,
        port: int | None = None,
        *,
        protocol: Literal["plaintext", "pickle"] = "plaintext",
        names: GraphiteNames | None = None,
    ) -> None:
        self._address = (host, port or _PORTS[protocol])
        self._pickles = protocol == "pickle"
        self._names = names or GraphiteNames()
        self._paths: list[tuple[str, float, int]] = []
        self._queue: deque[tuple[bytes, bool]] = deque()
        """Pieces; after a flush's last one the connection is closed, as by statsd."""
        self._queued_bytes = 0
        self._changed = threading.Condition()
        self._closing = False
        self._connection: socket.socket | None = None
        self.dropped_bytes = self.refused = self.failures = 0
        self._last_flush_s, self._last_exception_s = time.time(), 0.0
        self._flush_ms = self._flush_bytes = self._flushed = 0
        self._trouble = Trouble(
            f"statsd: carbon at {host}:{self._address[1]}",
            f"up to {BUFFER_BYTES:,} bytes of what is flushed are kept",
        )
        self._thread = threading.Thread(target=self._run, name="statsd-graphite", daemon=True)
        self._thread.start()

    def begin(self, snapshot: Snapshot) -> None:
        """Begin the flush of `snapshot`."""
        self._paths = []
        self._flushed = 0

    def write(self, row: Row) -> None:
        """Take `row`."""
        at = round(row.timestamp_s)
        for path, value in self._names.paths(row):
            if math.isfinite(value):
                self._paths.append((path, value, at))
            else:
                self.refused += 1
        if len(self._paths) >= _PICKLE_METRICS_MAX:
            self._send_paths()

    def end(self, snapshot: Snapshot) -> None:
        """Send the rest, and the number of metrics in `snapshot`."""
        path = self._names.stats_path()
        self._paths.append((path, len(snapshot), round(snapshot.timestamp_s)))
        self._send_paths(is_last=True)
        self._flush_bytes = self._flushed

    def _send_paths(self, *, is_last: bool = False) -> None:
        paths, self._paths = self._paths, []
        if self._pickles:  # the protocol that carbon documents
            body = pickle.dumps([(path, (at, value)) for path, value, at in paths], protocol=2)
            data = struct.pack("!L", len(body)) + body
        else:
            lines = [f"{path} {number_text(value)} {at}\n" for path, value, at in paths]
            data = "".join(lines).encode()
        self._flushed += len(data)
        with self._changed:
            self._queue.append((data, is_last))
            self._queued_bytes += len(data)
            while self._queued_bytes > BUFFER_BYTES:
                gone = len(self._queue.popleft()[0])
                self._queued_bytes -= gone
                self.dropped_bytes += gone
            self._changed.notify()

    # ------------------------------------------------------------------------------ the thread

    def _run(self) -> None:
        while (piece := self._next()) is not None:
            began_s = time.monotonic()
            try:
                self._send(*piece)
            except (OSError, UnicodeError) as error:  # UnicodeError: the host is no name
                self.failures += 1
                self._last_exception_s = time.time()
                self._disconnect()
                if self._queue:  # else `close` has ended the connection
                    self._trouble.note(error)
                    time.sleep(_PAUSE_S)
                continue
            self._trouble.over()
            self._flush_ms = round((time.monotonic() - began_s) * 1e3)
            self._last_flush_s = time.time()
            with self._changed:
                if self._queue and self._queue[0] is piece:  # it was not dropped meanwhile
                    self._queue.popleft()
                    self._queued_bytes -= len(piece[0])
        self._disconnect()

    def _next(self) -> tuple[bytes, bool] | None:
        """Wait for something to send; it stays in the buffer until it is sent."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing)
            return self._queue[0] if self._queue else None

    def _send(self, data: bytes, is_last: bool) -> None:
        if self._connection is None:
            self._connection = socket.create_connection(self._address, timeout=_CONNECT_S)
        if self._queue:  # else it was closed meanwhile, and this is counted as dropped
            self._connection.sendall(data)
        if is_last:
            self._disconnect()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def status(self) -> Iterable[tuple[str, float]]:
        """Return what statsd's own Graphite output shows, and what was dropped."""
        return (
            ("last_flush", round(self._last_flush_s)),
            ("last_exception", round(self._last_exception_s)),
            ("flush_time", self._flush_ms),
            ("flush_length", self._flush_bytes),
            *([("dropped_bytes", self.dropped_bytes)] if self.dropped_bytes else []),
            *([("refused", self.refused)] if self.refused else []),
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
            self.dropped_bytes += self._queued_bytes
            self._queue.clear()
            self._queued_bytes = 0
            connection = self._connection
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        if self.dropped_bytes:
            _log.warning("statsd: %d bytes have not reached Graphite", self.dropped_bytes)
