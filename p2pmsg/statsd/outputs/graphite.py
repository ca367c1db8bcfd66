"""Graphite's plaintext and pickle protocols, with reconnect and a bounded buffer."""

import logging
import math
import pickle
import select
import socket
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable

from p2pmsg.errors import ConfigError
from p2pmsg.statsd.graphite_names import GraphiteNames
from p2pmsg.statsd.numbers import number_text
from p2pmsg.statsd.snapshot import Row, Snapshot

_PAUSES_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_PICKLE_METRICS_MAX = 500
"""Metrics in one pickle; carbon refuses one of more than a megabyte."""
_CONNECT_S = 5.0
PROTOCOLS = ("plaintext", "pickle")
_log = logging.getLogger("p2pmsg")


class GraphiteOutput:
    """Sends flushes to carbon, in a thread of its own.

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
        self._paths: list[tuple[str, float, int]] = []
        self.dropped_bytes = 0
        """Bytes dropped because the buffer was full."""
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
        self._thread = threading.Thread(target=self._run, name="statsd-graphite", daemon=True)
        self._thread.start()

    def begin(self, snapshot: Snapshot) -> None:
        """Begin a flush."""
        self._paths = []
        self._taken.clear()
        self._flushed = 0

    def write(self, rows: list[Row]) -> None:
        """Take rows."""
        for row in rows:
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
        """Send the rest, and the number of metrics."""
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
            while self._queued_bytes > self._buffer_bytes and self._queue:
                gone = self._queue.popleft()
                self._queued_bytes -= len(gone)
                self.dropped_bytes += len(gone)
            self._changed.notify()

    # ------------------------------------------------------------------------------ the thread

    def _run(self) -> None:
        failures = 0
        connection: socket.socket | None = None
        while (data := self._next()) is not None:
            try:
                if connection is not None and _is_closed(connection):
                    connection.close()
                    connection = None
                if connection is None:
                    connection = socket.create_connection(self._address, timeout=_CONNECT_S)
                    self.connects += 1
                began = time.monotonic()
                connection.sendall(data)
            except OSError:
                self._last_exception_s = time.time()
                if connection is not None:
                    connection.close()
                connection = None
                self._put_back(data)
                self._pause(_PAUSES_S[min(failures, len(_PAUSES_S) - 1)])
                failures += 1
                continue
            failures = 0
            self._flush_ms = round((time.monotonic() - began) * 1e3)
            self._last_flush_s = time.time()
        if connection is not None:
            connection.close()

    def _next(self) -> bytes | None:
        with self._changed:
            while not self._queue:
                if self._closing:
                    return None
                self._changed.wait()
            data = self._queue.popleft()
            self._queued_bytes -= len(data)
            return data

    def _put_back(self, data: bytes) -> None:
        with self._changed:
            if self._queued_bytes + len(data) <= self._buffer_bytes:
                self._queue.appendleft(data)
                self._queued_bytes += len(data)
            else:
                self.dropped_bytes += len(data)

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
        """Send what is left, for at most so many seconds; the rest is counted as dropped."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout)
        if self._thread.is_alive():
            with self._changed:
                self.dropped_bytes += self._queued_bytes
                self._queue.clear()
                self._queued_bytes = 0
            self._thread.join(1.0)
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
