"""The metrics client: the same calls for exact metrics and for a plain StatsD server."""

import atexit
import logging
import os
import socket
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from p2pmsg.checks import at_least
from p2pmsg.config import PublisherConfig
from p2pmsg.errors import ClosedError, ConfigError, MessageError, P2PError
from p2pmsg.metrics.deltas import Deltas, check_name, check_number, check_tags
from p2pmsg.statsd.listen import parse_listen
from p2pmsg.statsd.metric import make_key
from p2pmsg.statsd.totals import TOPIC
from p2pmsg.sync.lifecycle import ClosesItself, close_in_children
from p2pmsg.sync.publisher import Publisher
from recovery._renamed import renamed_arguments

_PACKET_BYTES = 1432
"""What fits into one Ethernet frame, as statsd's documentation advises."""
_RELIABLE = ("tcp", "ipc", "inproc")
_log = logging.getLogger("p2pmsg")


class _Reliable:
    """Publishes deltas for collectors, which subscribe and request what was lost."""

    def __init__(
        self, endpoint: str, name: str | None, config: PublisherConfig | None, log: Any
    ) -> None:
        self.publisher = Publisher(endpoint, name=name, config=config, log=log)
        self.endpoint = self.publisher.endpoint
        self._published = self.publisher.stats().published
        self._first: int | None = None
        self._following = 0

    def send(self, deltas: Deltas) -> None:
        self._note_sent(self.publisher.publish(TOPIC, deltas.message()))
        self.publisher.flush()

    def _note_sent(self, sequence: int) -> None:
        if self._first is None:
            self._first = sequence
        self._following = sequence + 1

    def has_sent(self) -> bool:
        """Whether deltas were accepted although `send` was interrupted."""
        following = self.publisher.stats().published  # there is one topic only
        if following <= max(self._following, self._published):
            return False
        self._note_sent(following - 1)
        return True

    def close(self, timeout: float) -> tuple[int, str]:
        """Wait until a collector has everything; return how many deltas none has, and why."""
        requests, first, following = self.publisher._core.requests, self._first, self._following

        def is_settled() -> bool:
            settled = requests.settled.get(TOPIC, 0)
            return first is None or bool(requests.settlers) or settled >= following

        self.publisher._close(timeout, is_settled)
        if first is None or is_settled():
            return 0, ""
        why = "confirmed by no collector" if requests.subscribers else "no collector was there"
        return following - max(first, requests.settled.get(TOPIC, 0)), why


class _Plain:
    """Sends lines to a StatsD server; losses are not noticed."""

    def __init__(self, endpoint: str) -> None:
        place = parse_listen(endpoint, "endpoint")
        self.endpoint = str(place)
        if place.path:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._address: Any = place.path
        else:
            try:
                found = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_DGRAM)[0]
            except OSError as error:
                raise ConfigError("endpoint", "of a host that is known", endpoint) from error
            self._socket = socket.socket(found[0], socket.SOCK_DGRAM)
            self._address = found[4]

    def send(self, deltas: Deltas) -> None:
        packet: list[bytes] = []
        size = 0
        for line in deltas.lines():
            data = line.encode()
            if packet and size + len(data) + 1 > _PACKET_BYTES:
                self._send_packet(packet)
                packet, size = [], 0
            packet.append(data)
            size += len(data) + 1
        if packet:
            self._send_packet(packet)

    def _send_packet(self, packet: list[bytes]) -> None:
        try:
            self._socket.sendto(b"\n".join(packet), self._address)
        except OSError:
            pass  # a server that is away is no reason for a program to fail

    def has_sent(self) -> bool:
        """Return True: it is unknown, and sending again might count twice."""
        return True

    def close(self, timeout: float) -> tuple[int, str]:
        self._socket.close()
        return 0, ""


class Client(ClosesItself):
    """Counts and measures, and sends the changes every `interval`.

    With `tcp://` or `ipc://` it publishes deltas with sequences: a collector with
    `exact=[endpoint]` subscribes, requests what was lost, and so arrives at exactly the totals that
    were sent; what cannot be repeated is reported with its range. With `udp://HOST:PORT` or
    `unixgram:///PATH` the same calls go to a plain StatsD server, which may miss some. ::

        with p2pmsg.metrics.Client("tcp://127.0.0.1:9125") as metrics:
            metrics.increment("orders", tags=["zone:b"])
            with metrics.timed("checkout"):
                ...

    It may be used from several threads. Integers are added up exactly, floats as floats in the
    order in which they are sent. In a forked child a client of a StatsD server starts again with
    nothing gathered; one that is bound is closed.

    When a call returns, its value is in this process's memory. It is sent within `interval`, and
    kept for collectors until the process ends; it is safe once a collector has it on its disk
    (`exact=`, `state=`). `close` waits for a collector, and so does the end of a program that has
    not called it. A process that is killed loses what no collector had; with `log` only what was
    not sent.

    Args:
        endpoint: where to bind (`tcp`, `ipc`, `inproc`), or where the StatsD server is.
        prefix: put before each name, with a dot between. Default "".
        tags: added to each metric, `key:value` or `key`. Default none.
        interval: how long deltas are gathered, in seconds. Default 0.1: what a crash may cost, and
            ten messages a second. 0 sends each call by itself.
        name: of the publisher, for people. Default: the endpoint.
        config: of the publisher. Its replay buffer bounds how long a collector may be away: the
            default of 64 MiB lasts most of an hour with 100 counters that change all the time.
        log: of the publisher, so that what was sent outlasts the client too. Default: none.
        close_timeout: how long `close` without an argument, and the end of a program, wait until a
            collector has everything that was sent, in seconds; 0 does not wait. Default 5.0: a
            running collector takes less than one, one that is being restarted a few. What no
            collector has by then is counted in `undelivered`, with a warning. A relay counts as a
            collector: it keeps what it has received. With a plain StatsD server there is nothing to
            wait for.

    Raises:
        ConfigError: an argument is out of its limits.
        BindError: the endpoint could not be bound.

    """

    _patience_s = None  # what `close_timeout` says

    @renamed_arguments(interval_ms="interval")
    def __init__(
        self,
        endpoint: str,
        *,
        prefix: str = "",
        tags: Iterable[str] = (),
        interval: float = 0.1,
        name: str | None = None,
        config: PublisherConfig | None = None,
        log: Any = None,
        close_timeout: float = 5.0,
    ) -> None:
        at_least("interval", interval, 0)
        at_least("close_timeout", close_timeout, 0)
        self._close_timeout = close_timeout
        self._prefix = f"{check_name(prefix)}." if prefix else ""
        self._tags = check_tags(tags)
        self._keys: dict[tuple[str, tuple[str, ...]], str] = {}
        self._interval_s = interval
        scheme = endpoint.partition(":")[0] if isinstance(endpoint, str) else ""
        self._sink: _Reliable | _Plain
        if scheme in _RELIABLE:
            self._sink = _Reliable(endpoint, name, config, log)
        elif scheme in ("udp", "unixgram"):
            if log is not None:
                raise ConfigError("log", "None with a plain StatsD server", log)
            self._sink = _Plain(endpoint)
        else:
            raise ConfigError("endpoint", "tcp://, ipc://, udp:// or unixgram://", endpoint)
        self._sent = self._undelivered = 0
        self._unusable = "it is closed"
        self._begin()
        close_in_children(self)
        _open.add(self)
        _end_with_the_process()

    def _begin(self) -> None:
        """Start with nothing gathered; the first call starts the thread that sends."""
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._deltas = Deltas()
        self._leaving: Deltas | None = None
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def endpoint(self) -> str:
        """Where it is bound, with the port that was picked for 0, or where it sends to."""
        return self._sink.endpoint

    @property
    def sent(self) -> int:
        """How many messages of deltas have been sent."""
        return self._sent

    @property
    def undelivered(self) -> int:
        """How many messages of deltas were not sent or, known after `close`, reached no collector.

        One message has the changes of one `interval`. Messages that a killed collector may have
        received, but did not confirm, count too.
        """
        return self._undelivered

    def increment(self, name: str, value: float = 1, *, tags: Iterable[str] = ()) -> None:
        """Add to a counter; a negative value subtracts.

        Args:
            name: of the metric, without the client's prefix. The other calls take it as well.
            value: how much; an int is added up exactly. Default 1.
            tags: of this metric, `key:value` or `key`, added to the client's. Default none.

        Raises:
            MessageError: the name, a tag or the value cannot be sent.
            ClosedError: the client is closed.

        """
        key = self._key(name, tags)
        check_number("value", value)
        with self._lock:
            self._check_open()
            fits = self._deltas.increment(key, value)
        if not fits:
            self.flush()
            with self._lock:
                self._deltas.increment(key, value)
        self._after()

    def gauge(
        self, name: str, value: float, *, delta: bool = False, tags: Iterable[str] = ()
    ) -> None:
        """Set a gauge to `value`, or with `delta` add `value`. Raises as `increment`."""
        key = self._key(name, tags)
        check_number("value", value)
        with self._lock:
            self._check_open()
            self._deltas.gauge(key, value, delta=delta)
        self._after()

    def timing(self, name: str, value_ms: float, *, tags: Iterable[str] = ()) -> None:
        """Add `value_ms`, in milliseconds, to a timer. Raises as `increment`."""
        self._value("ms", name, value_ms, tags)

    def histogram(self, name: str, value: float, *, tags: Iterable[str] = ()) -> None:
        """Add `value`, of any unit, to a histogram. Raises as `increment`."""
        self._value("h", name, value, tags)

    def distribution(self, name: str, value: float, *, tags: Iterable[str] = ()) -> None:
        """Add `value`, of any unit, to a distribution. Raises as `increment`."""
        self._value("d", name, value, tags)

    def set_add(self, name: str, value: str | int, *, tags: Iterable[str] = ()) -> None:
        """Add `value` to a set, whose distinct values are counted.

        Raises:
            MessageError: as `increment`; or `value` is neither a str nor an int.
            ClosedError: the client is closed.

        """
        key, text = self._key(name, tags), str(value)
        if not text or not text.isprintable() or "|" in text:
            raise MessageError("value", f"must be a text without a bar, not {value!r}")
        with self._lock:
            self._check_open()
            self._deltas.add_to_set(key, text)
        self._after()

    @contextmanager
    def timed(self, name: str, *, tags: Iterable[str] = ()) -> Iterator[None]:
        """Time a block or, as a decorator, a function, even if it raises."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.timing(name, (time.perf_counter() - began) * 1e3, tags=tags)

    def flush(self) -> None:
        """Send what was gathered.

        Raises:
            MessageError, LogFailedError, SendQueueFullError: it could not be sent, and counts as
                `undelivered`.

        """
        with self._sending:
            if self._leaving is not None:  # a flush was interrupted
                self._send_leaving()
            with self._lock:
                self._leaving = self._deltas
                self._deltas = Deltas()
            self._send_leaving()

    def _send_leaving(self) -> None:
        leaving = self._leaving
        if leaving is self._deltas:  # the interrupt came before new ones were begun
            self._deltas = Deltas()
        try:
            if leaving:
                self._sink.send(leaving)
                self._sent += 1
        except P2PError:
            self._undelivered += 1
            self._leaving = None
            raise
        except BaseException:
            if self._sink.has_sent():
                self._leaving = None
                self._sent += 1
            raise
        self._leaving = None

    def close(self, timeout: float | None = None) -> None:
        """Send the rest, wait until a collector has everything, and close.

        What no collector has confirmed by then is counted in `undelivered`, with a warning.

        Args:
            timeout: how long to wait, in seconds. Default None: `close_timeout`.

        """
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
            _open.discard(self)
        if self._thread is not None:
            self._thread.join()
        try:
            self.flush()
        finally:
            patience_s = self._close_timeout if timeout is None else timeout
            missing, why = self._sink.close(patience_s)
            self._undelivered += missing
            if missing:
                _log.warning(
                    "metrics: %d of %d messages of deltas went nowhere: %s within %g s",
                    missing, self._sent, why, patience_s,
                )  # fmt: skip

    def __repr__(self) -> str:
        return f"<metrics.Client {'closed' if self._closed.is_set() else self.endpoint}>"

    def wait_for_collectors(self, count: int = 1, timeout: float | None = None) -> None:
        """Wait until `count` collectors subscribe; with a plain StatsD server return at once.

        Raises:
            TimeoutError: they did not come within `timeout` seconds.

        """
        if isinstance(self._sink, _Reliable):
            self._sink.publisher.wait_for_subscribers(count, timeout)

    def _value(self, kind: str, name: str, value: float, tags: Iterable[str]) -> None:
        key = self._key(name, tags)
        check_number("value", value)
        with self._lock:
            self._check_open()
            self._deltas.add_value(kind, key, value)
        self._after()

    def _key(self, name: str, tags: Iterable[str]) -> str:
        given = tags if isinstance(tags, tuple) else check_tags(tags)
        try:
            key = self._keys.get((name, given))
        except TypeError:  # a list among them: the checks name it
            key = None
        if key is None:
            key = make_key(self._prefix + check_name(name), self._tags + check_tags(given))
            if len(self._keys) < 10_000:
                self._keys[name, given] = key
        return key

    def _check_open(self) -> None:
        """Raise if it is closed; called under the lock, before something is gathered."""
        if self._closed.is_set():
            raise ClosedError("the metrics client", self._unusable)
        if self._thread is None and self._interval_s:
            thread = threading.Thread(target=self._run, name="metrics", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # at its end Python 3.12 starts no thread: `end_all` sends it
                return
            self._thread = thread

    def _after(self) -> None:
        if not self._interval_s or self._deltas.is_full:
            self.flush()

    def _forget(self) -> None:
        """Drop what was gathered, in a forked child: the parent sends it."""
        if self._closed.is_set():
            return
        self._begin()
        if isinstance(self._sink, _Reliable):
            self._closed.set()
            self._unusable = "it belongs to the parent process"
            _open.discard(self)

    def _run(self) -> None:
        while not self._closed.wait(self._interval_s):
            try:
                self.flush()
            except P2PError:
                _log.exception("metrics: deltas could not be sent")


_open: "weakref.WeakSet[Client]" = weakref.WeakSet()


def end_all() -> None:
    """Close the clients that are open when the program ends, within one common time."""
    hurried = isinstance(getattr(sys, "last_value", None), KeyboardInterrupt)
    began_s = time.monotonic()
    for client in list(_open):
        wait_s = client._hurried_s if hurried else client._close_timeout
        try:
            client.close(max(0.0, wait_s - (time.monotonic() - began_s)))
        except P2PError:
            _log.exception("metrics: deltas could not be sent")
        except KeyboardInterrupt:
            hurried = True  # nothing is waited for after Ctrl-C


_processes: set[int] = set()


def _end_with_the_process() -> None:
    """Call `end_all` at the end of a forked multiprocessing process too, which skips atexit."""
    util: Any = sys.modules.get("multiprocessing.util")
    if util is not None and os.getpid() not in _processes:
        _processes.add(os.getpid())
        util.Finalize(None, end_all, exitpriority=0)


atexit.register(end_all)
