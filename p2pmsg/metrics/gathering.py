"""What a metrics client gathers, with a thread or in an event loop."""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from p2pmsg.checks import at_least
from p2pmsg.config import PublisherConfig
from p2pmsg.errors import ClosedError, ConfigError, MessageError, P2PError, WrongLoopError
from p2pmsg.metrics.deltas import Deltas, check_name, check_number, check_tags
from p2pmsg.metrics.sinks import Sink
from p2pmsg.security.use import check_security
from p2pmsg.statsd.metric import make_key
from p2pmsg.sync.lifecycle import INHERITED, close_in_children
from recovery._renamed import renamed_arguments
from transports.own_log import own_log as _log

if TYPE_CHECKING:
    from p2pmsg.security.settings import Security

_RELIABLE: Final = ("tcp", "ipc", "inproc")


class Gathering(ABC):
    """Counts and measures; the subclass decides when that is sent, and closes."""

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
        security: "Security | None" = None,
    ) -> None:
        self._security = check_security(security)
        at_least("interval", interval, 0)
        at_least("close_timeout", close_timeout, 0)
        self._close_timeout = close_timeout
        self._prefix = f"{check_name(prefix)}." if prefix else ""
        self._tags = check_tags(tags)
        self._keys: dict[tuple[str, tuple[str, ...]], str] = {}
        self._interval_s = interval
        scheme = endpoint.partition(":")[0] if isinstance(endpoint, str) else ""
        self._sink: Sink
        if scheme in _RELIABLE:
            self._sink = self._publish_at(endpoint, name, config, log)
        elif scheme in ("udp", "unixgram"):
            if log is not None:
                raise ConfigError("log", "None with a plain StatsD server", log)
            if security is not None:
                raise ConfigError("security", "None with a plain StatsD server", security)
            self._sink = self._send_to(endpoint)
        else:
            raise ConfigError("endpoint", "tcp://, ipc://, udp:// or unixgram://", endpoint)
        self._sent = self._undelivered = 0
        self._unusable = "it is closed"
        self._begin()
        close_in_children(self)
        self._start()

    @abstractmethod
    def _publish_at(
        self, endpoint: str, name: str | None, config: PublisherConfig | None, log: Any
    ) -> Sink:
        """Bind a publisher."""

    @abstractmethod
    def _send_to(self, endpoint: str) -> Sink:
        """Open a socket."""

    @abstractmethod
    def _start(self) -> None:
        """See to it that what is gathered is sent."""

    @abstractmethod
    def _forget(self) -> None: ...

    def _begin(self) -> None:
        """Start with nothing gathered."""
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._deltas = Deltas(self._sink.bytes_max)
        self._leaving: Deltas | None = None
        self._closed = threading.Event()

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
            MessageError: the name, a tag or the value cannot be sent. `MessageTooLargeError`: they
                are larger than the publisher's `message_bytes_max`.
            ClosedError: the client is closed.

        """
        key = self._key(name, tags)
        check_number("value", value)
        with self._lock:
            self._check_open()
            fits = self._deltas.increment(key, value)
        if not fits:
            self._add_later(Deltas.increment, key, value)
        self._after()

    def gauge(
        self, name: str, value: float, *, delta: bool = False, tags: Iterable[str] = ()
    ) -> None:
        """Set a gauge to `value`, or with `delta` add `value`. Raises as `increment`."""
        key = self._key(name, tags)
        check_number("value", value)
        with self._lock:
            self._check_open()
            fits = self._deltas.gauge(key, value, delta=delta)
        if not fits:
            self._add_later(Deltas.gauge, key, value, delta=delta)
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
        if not isinstance(value, str | int):
            raise MessageError("value", f"must be a text or an integer, not {value!r}")
        key, text = self._key(name, tags), str(value)
        if not text or not text.isprintable() or "|" in text:
            raise MessageError("value", f"must be a text without a bar, not {value!r}")
        with self._lock:
            self._check_open()
            fits = self._deltas.add_to_set(key, text)
        if not fits:
            self._add_later(Deltas.add_to_set, key, text)
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
            ClosedError: the client belongs to the parent process.

        """
        if self._unusable == INHERITED:
            raise ClosedError("the metrics client", INHERITED)
        with self._sending:
            if self._leaving is not None:  # a flush was interrupted
                self._send_leaving()
            with self._lock:
                self._leaving = self._deltas
                self._deltas = Deltas(self._sink.bytes_max)
            self._send_leaving()

    def _send_leaving(self) -> None:
        leaving = self._leaving
        if leaving is self._deltas:  # the interrupt came before new ones were begun
            self._deltas = Deltas(self._sink.bytes_max)
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

    def _note_missing(self, missing: int, why: str, patience_s: float) -> None:
        """Count what no collector has, and say so."""
        self._undelivered += missing
        if missing:
            _log.warning(
                "metrics: %d of %d messages of deltas went nowhere: %s within %g s",
                missing, self._sent, why, patience_s,
            )  # fmt: skip

    def _flush_or_say(self) -> None:
        """Send what was gathered; log that it could not be sent."""
        try:
            self.flush()
        except WrongLoopError:
            raise
        except P2PError:
            _log.exception("metrics: deltas could not be sent")

    def __repr__(self) -> str:
        return f"<metrics.Client {'closed' if self._closed.is_set() else self.endpoint}>"

    def _value(self, kind: str, name: str, value: float, tags: Iterable[str]) -> None:
        key = self._key(name, tags)
        check_number("value", value)
        with self._lock:
            self._check_open()
            fits = self._deltas.add_value(kind, key, value)
        if not fits:
            self._add_later(Deltas.add_value, kind, key, value)
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

    def _add_later(self, add: Callable[..., bool], *arguments: Any, **options: Any) -> None:
        """Send what was gathered, and add what did not fit; other threads may be quicker again."""
        while True:
            self.flush()
            with self._lock:
                self._check_open()
                if add(self._deltas, *arguments, **options):
                    return

    def _check_open(self) -> None:
        """Raise if it is closed; called under the lock, before something is gathered."""
        if self._closed.is_set():
            raise ClosedError("the metrics client", self._unusable)

    def _after(self) -> None:
        if not self._interval_s or self._deltas.is_full:
            self.flush()
