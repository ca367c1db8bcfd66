"""The metrics client for asyncio."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from p2pmsg.aio.closing import ClosesInLoop
from p2pmsg.aio.loop import SAFETY_S, LoopDriver
from p2pmsg.checks import time_to_wait
from p2pmsg.config import PublisherConfig
from p2pmsg.driver.lifecycle import INHERITED
from p2pmsg.errors import ConfigError
from p2pmsg.metrics.deltas import Deltas
from p2pmsg.metrics.gathering import ADD_UP_AT, Gathering
from p2pmsg.metrics.sinks import Plain, Reliable
from p2pmsg.peers.loop.publisher import Publisher
from transports.own_log import own_log as _log


class _Publisher(Publisher):
    """Has the client send what it has gathered before the publisher is closed with the loop."""

    _kind = "metrics client"
    before_end: Callable[[], object] = staticmethod(lambda: None)

    def close_now(self) -> None:
        self.before_end()
        super().close_now()


class Client(Gathering, ClosesInLoop):
    """Counts and measures, and sends the changes every `interval`.

    It is `p2pmsg.metrics.Client` for asyncio, with the same arguments: no thread sends, but the
    event loop in which it is made. The calls that count never wait; `close` is awaited. ::

        async with p2pmsg.aio.metrics.Client("tcp://127.0.0.1:9125") as metrics:
            metrics.increment("orders", tags=["zone:b"])

    The arguments are `endpoint`, `prefix`, `tags`, `interval` (seconds), `name`, `config`, `log`,
    `close_timeout` (seconds) and `security`, with the same defaults.

    The name of a plain StatsD server's host is looked up in the loop's executor; meanwhile it is
    gathered on. One that is unknown is logged, and `flush` and `close` raise.

    Raises:
        ConfigError: an argument is out of its limits.
        BindError: the endpoint could not be bound.
        RuntimeError: no event loop is running.

    """

    _opening: "asyncio.Future[None] | None" = None
    _is_over = True

    @property
    def _is_left_open(self) -> bool:
        return not self._is_over

    def _publish_at(
        self, endpoint: str, name: str | None, config: PublisherConfig | None, log: Any
    ) -> Reliable[_Publisher]:
        self._make_driver(name or endpoint)
        security = self._security
        publisher = _Publisher(endpoint, name=name, config=config, log=log, security=security)
        publisher.before_end = self.close_now
        return Reliable(publisher)

    def _send_to(self, endpoint: str) -> Plain:
        self._make_driver(endpoint)
        sink = Plain(endpoint)
        sink.never_wait()
        try:
            sink.open(socket.AI_NUMERICHOST)
        except ConfigError:  # it is a name, and looking that up takes time
            self._opening = self._driver.loop.run_in_executor(None, sink.open)
            self._opening.add_done_callback(self._opened)
        return sink

    def _make_driver(self, endpoint: str) -> None:
        described = f"the metrics client {endpoint!r}"
        self._driver = LoopDriver(described, self._turn, at_loop_end=self.close_now)

    def _start(self) -> None:
        self._is_over = False
        self._due = self._driver.loop.time() + self._interval_s
        self._driver.start()

    def _turn(self) -> float:
        now = self._driver.loop.time()
        if not self._interval_s:
            return SAFETY_S
        if now >= self._due:
            self._due = now + self._interval_s
            self._flush_or_say()
        return self._due - now

    def _opened(self, opening: "asyncio.Future[None]") -> None:
        error = None if opening.cancelled() else opening.exception()
        if error is not None:
            _log.error("metrics: %s; what is gathered is not sent", error)
        elif not self._is_over:
            self._flush_or_say()

    def flush(self) -> None:
        """Send what was gathered; it never waits.

        While the name of a StatsD server's host is looked up, it is gathered on.

        Raises:
            MessageError, LogFailedError, SendQueueFullError: it could not be sent, and counts as
                `undelivered`.
            ConfigError: the host of the StatsD server is unknown; it counts as `undelivered`.
            ReentrantCallError: a signal handler called it that came within a call of this client.
            RuntimeError: it belongs to another event loop.

        """
        if not self._is_over:
            self._driver.check_loop()
        opening = self._opening
        if opening is None or opening.done() or self._closed.is_set():
            super().flush()
        elif len(self._gathered) >= ADD_UP_AT:
            self._sending.run(self._add_up_or_send)

    def _send_gathered(self) -> None:
        opening = self._opening
        if opening is not None and (not opening.done() or opening.exception() is not None):
            self._drop_gathered()
            if opening.done():
                opening.result()
        super()._send_gathered()

    def _drop_gathered(self) -> bool:
        """Drop what was gathered; return whether that was anything, which is counted then."""
        is_lost = bool(self._gathered or self._deltas or self._leaving)
        self._undelivered += is_lost
        self._gathered.clear()
        self._deltas, self._leaving = Deltas(self._sink.bytes_max), None
        return is_lost

    def _flush_or_say(self) -> None:
        try:
            super()._flush_or_say()
        except RuntimeError:  # its loop was closed, and it is collected
            if self._drop_gathered():
                _log.warning(
                    "%s: what was gathered last is not sent: its loop is closed", repr(self)
                )

    def _check_open(self) -> None:
        super()._check_open()
        self._check_caller()

    def _check_caller(self) -> None:
        self._driver.check_loop()

    async def close(self, timeout: float | None = None) -> None:
        """Send the rest, wait until a collector has everything, and close.

        What no collector has confirmed by then is counted in `undelivered`, with a warning. A call
        that is cancelled leaves it half closed: call it again.

        Args:
            timeout: how long to wait, in seconds. Default None: `close_timeout`.

        Raises:
            ConfigError: the host of the StatsD server is unknown.
            LogFailedError: not everything could be written to the log.
            RuntimeError: it belongs to another event loop.

        """
        if timeout is None:
            timeout = self._close_timeout
        patience_s = time_to_wait("timeout", timeout)
        if self._is_over:
            return
        self._driver.check_loop()
        if self._opening is not None:
            await asyncio.wait([self._opening], timeout=patience_s)
        self._closed.set()
        try:
            self.flush()
        finally:
            await self._close_sink(patience_s)

    async def _close_sink(self, patience_s: float) -> None:
        sink = self._sink
        if isinstance(sink, Plain):
            sink.close()
            self._end()
        elif isinstance(sink, Reliable):
            try:
                await sink.publisher._end(sink.publisher._peer.close(patience_s, sink.is_through))
            finally:
                if sink.publisher._driver.stopping and not self._is_over:
                    self._end()
                    self._on_missing(*sink.missing(patience_s))

    def close_now(self) -> None:
        """Send the rest, as far as there is space, and close: for the end of the loop."""
        if self._is_over:
            return
        self._flush_or_say()
        self._end()
        sink = self._sink
        if isinstance(sink, Reliable):
            sink.publisher.close_now()
            self._on_missing(*sink.missing(0.0))
        elif isinstance(sink, Plain):
            sink.close()

    def _end(self) -> None:
        self._is_over = True
        self._closed.set()
        self._driver.stop()

    async def wait_for_collectors(self, count: int = 1, timeout: float | None = None) -> None:
        """Wait until `count` collectors subscribe; with a plain StatsD server return at once.

        Raises:
            TimeoutError: they did not come within `timeout` seconds.
            RuntimeError: it belongs to another event loop.

        """
        self._driver.check_loop()
        if isinstance(self._sink, Reliable):
            await self._sink.publisher.wait_for_subscribers(count, timeout)

    def _forget(self) -> None:
        """In a forked child the loop is the parent's: it is closed."""
        self._begin()
        self._closed.set()
        self._unusable = INHERITED
        self._is_over = True
