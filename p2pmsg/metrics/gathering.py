"""What a metrics client gathers, with a thread or in an event loop."""

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from p2pmsg.checks import checked, shown
from p2pmsg.config import PublisherConfig
from p2pmsg.errors import (
    ClosedError,
    ConfigError,
    MessageError,
    P2PError,
    ReentrantCallError,
)
from p2pmsg.metrics.deltas import Deltas, check_name, check_number, check_tags
from p2pmsg.metrics.sinks import Sink
from p2pmsg.statsd.metric import make_key
from p2pmsg.sync.lifecycle import INHERITED, close_in_children
from p2pmsg.sync.lock import PublishLock
from transports.own_log import own_log as _log
from transports.signals import defer_signals

if TYPE_CHECKING:
    from pathlib import Path

    from p2pmsg.security.settings import Security
    from recovery.log import LogConfig

_RELIABLE: Final = ("tcp", "ipc", "inproc")
_ASIDE_MAX: Final = 10_000
"""How much a signal handler may count within one call that it interrupted."""


class Gathering(ABC):
    """Counts and measures; the subclass decides when that is sent, and closes.

    A signal handler may count, wherever it came. What it counts within a call that counts is put
    aside, since that call may have read a sum and not written it yet; the next flush adds it. What
    it counts within a flush leaves with the next one. It cannot flush or close there.
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
        self._is_adding = False
        self._aside: deque[tuple[Callable[..., bool], tuple[Any, ...], dict[str, Any]]] = deque()
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
            ReentrantCallError: a signal handler has counted 10,000 times within one other call.
            ClosedError: the client is closed.

        """
        key = self._key(name, tags)
        check_number("value", value)
        with self._lock:
            self._check_open()
            if self._is_adding:  # a signal handler calls, which came in between
                fits = self._put_aside(Deltas.increment, key, value)
            else:
                self._is_adding = True
                try:
                    fits = self._deltas.increment(key, value)
                finally:
                    self._is_adding = False
        if not fits:
            self._add_later(Deltas.increment, key, value)
        self._after()

    def gauge(
        self, name: str, value: float, *, delta: bool = False, tags: Iterable[str] = ()
    ) -> None:
        """Set a gauge to `value`, or with `delta` add `value`. Raises as `increment`."""
        key = self._key(name, tags)
        check_number("value", value)
        if not self._add(Deltas.gauge, key, value, delta=delta):
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
        if not self._add(Deltas.add_to_set, key, text):
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
            ReentrantCallError: a signal handler called it that came within a call of this client.
            ClosedError: the client belongs to the parent process.

        """
        if self._unusable == INHERITED:
            raise ClosedError("the metrics client", INHERITED)
        if self._lock._is_owned():  # another thread may have the other lock, and wait for this one
            raise ReentrantCallError
        self._sending.run(self._send_gathered)

    def _send_gathered(self) -> None:
        """Send; once more if that is full by then, since who came in between could not flush."""
        if self._leaving is not None:  # a flush was interrupted: it may have been accepted
            self._send_leaving(self._sink.following())
        is_second = False
        while True:
            fresh = Deltas(self._sink.bytes_max)
            with self._lock:
                if self._aside:
                    defer_signals(self._take_aside)
                self._leaving, self._deltas = self._deltas, fresh
            self._send_leaving(self._counted)
            if not self._aside and (is_second or not self._deltas.is_full):
                return
            is_second = True

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

    def _note_missing(self, missing: int, why: str) -> None:
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

    def _value(self, kind: str, name: str, value: float, tags: Iterable[str]) -> None:
        key = self._key(name, tags)
        check_number("value", value)
        with self._lock:
            self._check_open()
            if self._is_adding:
                fits = self._put_aside(Deltas.add_value, kind, key, value)
            else:
                self._is_adding = True
                try:
                    fits = self._deltas.add_value(kind, key, value)
                finally:
                    self._is_adding = False
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

    def _add(self, add: Callable[..., bool], *arguments: Any, **options: Any) -> bool:
        """Add to what is gathered; False if it has to wait for the next message."""
        with self._lock:
            self._check_open()
            if self._is_adding:
                return self._put_aside(add, *arguments, **options)
            self._is_adding = True
            try:
                return add(self._deltas, *arguments, **options)
            finally:
                self._is_adding = False

    def _add_later(self, add: Callable[..., bool], *arguments: Any, **options: Any) -> None:
        """Send what was gathered, and add what did not fit; other threads may be quicker again."""
        while True:
            if self._is_inside():
                self._put_aside(add, *arguments, **options)
                return
            self.flush()
            if self._add(add, *arguments, **options):
                return

    def _put_aside(self, add: Callable[..., bool], *arguments: Any, **options: Any) -> bool:
        """Keep for the next flush what a signal handler adds within another call; return True."""
        add(Deltas(self._sink.bytes_max), *arguments, **options)  # raises what cannot be sent
        if len(self._aside) >= _ASIDE_MAX:
            raise ReentrantCallError
        self._aside.append((add, arguments, options))
        self._ask_to_send()
        return True

    def _take_aside(self) -> None:
        """Add what was put aside, as far as it fits into this message."""
        aside = self._aside
        while aside:
            add, arguments, options = aside[0]
            if not add(self._deltas, *arguments, **options):
                return
            aside.popleft()

    def _is_inside(self) -> bool:
        """Whether a signal handler calls that came within a call of this client."""
        return self._lock._is_owned() or self._sending.is_mine

    def _ask_to_send(self) -> None:
        """Have the call that was interrupted send when it is through."""
        self._deltas.is_full = True

    def _check_open(self) -> None:
        """Raise if it is closed; called under the lock, before something is gathered."""
        if self._closed.is_set():
            raise ClosedError("the metrics client", self._unusable)

    def _after(self) -> None:
        if not self._interval_s or self._deltas.is_full:
            if self._is_inside():
                self._ask_to_send()
            else:
                self.flush()
