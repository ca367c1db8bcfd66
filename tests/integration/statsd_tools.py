"""What the tests of the StatsD server share."""

import contextlib
import json
import socket
import threading
import time

from p2pmsg.statsd import DIALECTS, AggregateConfig, Collector, Output
from tests.integration.peers import eventually

UDP = "udp://127.0.0.1:0"
LONG_S = 3600.0
"""An interval that does not end by itself."""


class Keep(Output):
    """An output that keeps every row of every flush."""

    name = "keep"

    def __init__(self):
        self.flushes, self.events, self._rows = [], [], []

    def begin(self, snapshot):
        self._rows = []

    def write_event(self, event):
        self.events.append(event)

    def write(self, row):
        self._rows.append(row)

    def end(self, snapshot):
        self.flushes.append({(row.kind.value, row.key): row.fields for row in self._rows})

    def status(self):
        return ()

    def counts(self):
        """Counters over all flushes."""
        totals = {}
        for flush in self.flushes:
            for (kind, key), fields in flush.items():
                if kind == "c":
                    totals[key] = totals.get(key, 0) + fields["count"]
        return totals


def address(endpoint):
    scheme, _, place = endpoint.partition("://")
    if scheme.startswith("unix"):
        return place
    host, _, port = place.rpartition(":")
    return host.strip("[]"), int(port)


def open_client(endpoint):
    scheme = endpoint.partition(":")[0]
    inet = socket.AF_INET6 if "[" in endpoint else socket.AF_INET
    family = socket.AF_UNIX if scheme.startswith("unix") else inet
    kind = socket.SOCK_STREAM if scheme in ("tcp", "unix", "unixstream") else socket.SOCK_DGRAM
    made = socket.socket(family, kind)
    made.connect(address(endpoint))
    return made


def feed(collector, *packets):
    """Send datagrams, few at a time, and wait until all their lines are counted."""
    wanted = collector.stats().metrics
    with open_client(collector.endpoints[0]) as client:
        for start in range(0, len(packets), 100):
            for packet in packets[start : start + 100]:
                client.send(packet)
                wanted += packet.count(b"\n") + 1
            eventually(lambda all_=wanted: collector.stats().metrics == all_)


def feed_and_flush(collector, *packets):
    feed(collector, *packets)
    collector.flush()


@contextlib.contextmanager
def collecting(listen=UDP, **options):
    """A collector that flushes on request, and what it flushed."""
    keep = Keep()
    options.setdefault("interval", LONG_S)
    if "dialect" in options:
        options["config"] = AggregateConfig(dialect=DIALECTS[options.pop("dialect")])
    outputs = [keep, *options.pop("outputs", [])]
    with Collector(listen, outputs=outputs, **options) as collector:
        yield collector, keep


class Carbon:
    """A Graphite that keeps what it gets, and can be taken away and brought back."""

    def __init__(self, port=0):
        self.data = b""
        self._server = socket.create_server(("127.0.0.1", port))
        self._server.settimeout(0.1)
        self.port = self._server.getsockname()[1]
        self._stop = threading.Event()
        self._connections = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        while not self._stop.is_set():
            with contextlib.suppress(TimeoutError):
                made, _ = self._server.accept()
                made.setblocking(False)
                self._connections.append(made)
            for made in self._connections:
                with contextlib.suppress(BlockingIOError, OSError):
                    while data := made.recv(65536):
                        self.data += data

    def close(self):
        self._stop.set()
        self._thread.join()
        for made in (*self._connections, self._server):
            made.close()

    def paths(self):
        lines = self.data[: self.data.rfind(b"\n") + 1].decode().splitlines()
        return {path: float(value) for path, value, _ in map(str.split, lines)}


def read_stream(subscriber, wanted, seconds=60.0):
    """Values of the stream `metrics` by name, until `wanted` names are there."""
    found = {}
    deadline = time.monotonic() + seconds
    while not wanted <= found.keys():
        message = subscriber.receive(max(0.01, deadline - time.monotonic()))
        found[message.key] = json.loads(message.value)
    return found
