"""What a metrics client gathers, with a thread or in an event loop."""

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from p2pmsg.checks import checked, shown
from p2pmsg.config import PublisherConfig
from p2pmsg.driver.lifecycle import INHERITED, close_in_children
from p2pmsg.errors import ClosedError, ConfigError, MessageError, P2PError
from p2pmsg.metrics.deltas import Deltas, check_name, check_number, check_size, check_tags
from p2pmsg.metrics.sinks import Sink
from p2pmsg.statsd.metric import make_key
from p2pmsg.sync.lock import PublishLock
from transports.own_log import own_log as _log
from transports.signals import defer_signals

if TYPE_CHECKING:
    from pathlib import Path

    from p2pmsg.security.settings import Security
    from recovery.log import LogConfig

_RELIABLE: Final = ("tcp", "ipc", "inproc")
ADD_UP_AT: Final = 1_000
"""Calls that are added up together: their changes wait in a queue until then, or until a flush."""


class Gathering(ABC):
    """Counts and measures; the subclass decides when that is sent, and closes.

    A call appends its change to a queue, which takes one step: so a signal handler may count,
    wherever it came. What it counts within a flush leaves with the next one. It cannot flush there.
    """

    @checked()
    def __init__(
        self,
        endpoint: str,
        *,
        prefix: str = "",
        tags: Iterable[str] = (),
        interval: float = 0.1,
        name: str | None = None,
        config: PublisherConfig | None = None,
        log: "LogConfig | str | Path | None" = None,
        close_timeout: float = 5.0,
        security: "Security | None" = None,
    ) -> None:
        self._security = security
        self._close_timeout = close_timeout
        self._prefix = f"{check_name(prefix)}." if prefix else ""
        self._tags = check_tags(tags)
        self._keys: dict[tuple[str, tuple[str, ...]], str] = {}
        self._interval_s = interval
        scheme = endpoint.partition(":")[0]
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
        self._sent = self._undelivered = self._missing = 0
        self._counted = self._sink.following()
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
        self._lock: Any = threading.RLock()
        self._gathered: deque[tuple[str, str, float | str]] = deque()
        self._sending = PublishLock()
        self._deltas = Deltas(self._sink.bytes_max)
        self._leaving: Deltas | None = None
        self._closed = threading.Event()
        self._is_over = False

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
        return self._undelivered + self._missing

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
        self._gather("c", self._key(name, tags), check_number("value", value))

    def gauge(
        self, name: str, value: float, *, delta: bool = False, tags: Iterable[str] = ()
    ) -> None:
        """Set a gauge to `value`, or with `delta` add `value`. Raises as `increment`."""
        kind = "g+" if delta else "g"
        self._gather(kind, self._key(name, tags), check_number("value", value))

    def timing(self, name: str, value_ms: float, *, tags: Iterable[str] = ()) -> None:
        """Add `value_ms`, in milliseconds, to a timer. Raises as `increment`."""
        self._gather("ms", self._key(name, tags), check_number("value", value_ms))

    def histogram(self, name: str, value: float, *, tags: Iterable[str] = ()) -> None:
        """Add `value`, of any unit, to a histogram. Raises as `increment`."""
        self._gather("h", self._key(name, tags), check_number("value", value))

    def distribution(self, name: str, value: float, *, tags: Iterable[str] = ()) -> None:
        """Add `value`, of any unit, to a distribution. Raises as `increment`."""
        self._gather("d", self._key(name, tags), check_number("value", value))

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
        check_size(key, text, self._sink.bytes_max)
        self._gather("s", key, text)

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
            ReentrantCallError: a signal handler called it that came within a flush.
            ClosedError: the client belongs to the parent process.

        """
        if self._unusable == INHERITED:
            raise ClosedError("the metrics client", INHERITED)
        self._sending.run(self._send_gathered)

    def _gather(self, kind: str, key: str, value: float | str) -> None:
        with self._lock:
            self._check_open()
            self._gathered.append((kind, key, value))
        if self._interval_s and len(self._gathered) < ADD_UP_AT:
            return
        if self._sending.is_mine:  # a signal handler calls: the next flush adds it up
            return
        if self._interval_s:
            self._sending.run(self._add_up_or_send)
        else:
            self.flush()

    def _add_up_or_send(self) -> None:
        """Add up what was gathered; send it where it does not fit into one message."""
        if defer_signals(self._add_up, len(self._gathered)):
            self._send_gathered()

    def _add_up(self, count: int) -> int:
        """Add up so many changes; return how many of them have to wait for the next message."""
        while count and self._deltas.add(*self._gathered[0]):
            self._gathered.popleft()
            count -= 1
        return count

    def _send_gathered(self) -> None:
        if self._leaving is not None:  # a flush was interrupted: it may have been accepted
            self._send_leaving(self._sink.following())
        left, error = len(self._gathered), None
        while True:
            left = defer_signals(self._add_up, left)
            fresh = Deltas(self._sink.bytes_max)
            self._leaving, self._deltas = self._deltas, fresh
            try:
                self._send_leaving(self._counted)
            except P2PError as failure:  # it is counted, and the others may fare better
                error = failure
            if not left:
                break
        if error is not None:
            raise error

    def _send_leaving(self, following: int) -> None:
        """Send what is leaving, unless the sink's `following` says that it was accepted.

        It is done in the last step, which nothing interrupts; until then all may be repeated.
        """
        sink, leaving, counted = self._sink, self._leaving, self._counted
        error: P2PError | None = None
        if leaving and following <= counted:
            try:
                following = sink.send(leaving)
            except P2PError as failure:
                error, following = failure, sink.following()
        sent = int(bool(leaving) and following > counted)
        lost = int(error is not None and not sent)
        sent, lost = self._sent + sent, self._undelivered + lost
        self._sent, self._undelivered, self._counted, self._leaving = sent, lost, following, None
        if error is not None:
            raise error

    def _on_missing(self, missing: int, why: str) -> None:
        """Note what no collector has, and say so."""
        self._missing = missing
        if missing:
            _log.warning(
                "metrics: %d of %d messages of deltas went nowhere: %s",
                missing, self._sent, why,
            )  # fmt: skip

    def _flush_or_say(self) -> None:
        """Send what was gathered; log that it could not be sent."""
        try:
            self.flush()
        except P2PError:
            _log.exception("metrics: deltas could not be sent")

    def __repr__(self) -> str:
        return shown(self, lambda: self.endpoint, lambda: self._closed.is_set())

    def _key(self, name: str, tags: Iterable[str]) -> str:
        given = tags if isinstance(tags, tuple) else check_tags(tags)
        try:
            key = self._keys.get((name, given))
        except TypeError:  # a list among them: the checks name it
            key = None
        if key is None:
            key = make_key(self._prefix + check_name(name), self._tags + check_tags(given))
            check_size(key, 0, self._sink.bytes_max)
            if len(self._keys) < 10_000:
                self._keys[name, given] = key
        return key

    def _check_open(self) -> None:
        """Raise if it is closed; called under the lock, before something is gathered."""
        if self._closed.is_set():
            raise ClosedError("the metrics client", self._unusable)
