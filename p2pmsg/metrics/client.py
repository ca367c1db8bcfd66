"""The metrics client: the same calls for exact metrics and for a plain StatsD server."""

import atexit
import os
import sys
import threading
import time
import weakref
from typing import Any

from p2pmsg.checks import time_to_wait
from p2pmsg.config import PublisherConfig
from p2pmsg.driver.lifecycle import INHERITED, ClosesItself, quiet_threads
from p2pmsg.errors import ClosedError, P2PError, ReentrantCallError
from p2pmsg.metrics.gathering import Gathering
from p2pmsg.metrics.sinks import Plain, Reliable
from p2pmsg.peers.threads.publisher import Publisher
from p2pmsg.sync.lock import PublishLock
from transports.own_log import own_log as _log
from transports.signals import defer_signals


class Client(Gathering, ClosesItself):
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
        security: of the publisher: only peers that it knows connect, encrypted. None with a plain
            StatsD server. Default None: open.

    Raises:
        ConfigError: an argument is out of its limits.
        BindError: the endpoint could not be bound.

    """

    _patience_s = None  # what `close_timeout` says

    def _publish_at(
        self, endpoint: str, name: str | None, config: PublisherConfig | None, log: Any
    ) -> Reliable[Publisher]:
        security = self._security
        return Reliable(Publisher(endpoint, name=name, config=config, log=log, security=security))

    def _send_to(self, endpoint: str) -> Plain:
        sink = Plain(endpoint)
        sink.open()
        return sink

    def _begin(self) -> None:
        """Start with nothing gathered; the first call starts the thread that sends."""
        super()._begin()
        self._closing = PublishLock()
        self._thread: threading.Thread | None = None

    def _start(self) -> None:
        _open.add(self)
        _end_with_the_process()

    def close(self, timeout: float | None = None) -> None:
        """Send the rest, wait until a collector has everything, and close.

        What no collector has confirmed by then is counted in `undelivered`, with a warning. If
        Ctrl-C ends the call, the next one goes on, or the end of the program.

        Args:
            timeout: how long to wait, in seconds. Default None: `close_timeout`.

        Raises:
            MessageError, LogFailedError, SendQueueFullError: as `flush`; it is closed.
            ReentrantCallError: a signal handler called it that came within a call of this client;
                it is still open.

        """
        if timeout is None:
            timeout = self._close_timeout
        patience_s = time_to_wait("timeout", timeout)
        if self._is_over or self._closing.is_mine:  # a signal handler, while it is being closed
            return
        if self._lock._is_owned():
            raise ReentrantCallError
        self._closing.run(self._close, patience_s)

    def _close(self, patience_s: float) -> None:
        """Close; where an exception came from outside, the next call goes on."""
        if self._is_over:
            return
        self._sending.refuse_inside()
        with self._lock:  # so that nobody who found it open adds something later
            self._closed.set()
        if self._thread is not None:
            self._thread.join()
        failure: P2PError | None = None
        try:
            self.flush()
        except P2PError as error:
            failure = error
        self._close_sink(patience_s)
        self._is_over = True
        _open.discard(self)
        if failure is not None:
            raise failure

    def _close_sink(self, patience_s: float) -> None:
        sink = self._sink
        if isinstance(sink, Reliable):
            publisher = sink.publisher
            publisher._end(publisher._peer.close(patience_s, sink.is_through))
            self._on_missing(*sink.missing(patience_s))
        elif isinstance(sink, Plain):
            sink.close()

    def wait_for_collectors(self, count: int = 1, timeout: float | None = None) -> None:
        """Wait until `count` collectors subscribe; with a plain StatsD server return at once.

        Raises:
            TimeoutError: they did not come within `timeout` seconds.

        """
        if isinstance(self._sink, Reliable):
            self._sink.publisher.wait_for_subscribers(count, timeout)

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise ClosedError("the metrics client", self._unusable)
        if self._thread is None and self._interval_s:
            defer_signals(self._start_thread)

    def _start_thread(self) -> None:
        if self._thread is not None:
            return
        thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # at its end Python 3.12 starts no thread: `end_all` sends it
            return
        self._thread = thread

    def _forget(self) -> None:
        """Drop what was gathered, in a forked child: the parent sends it."""
        if self._is_over:
            return
        self._begin()
        if isinstance(self._sink, Reliable):
            self._closed.set()
            self._unusable = INHERITED
            self._is_over = True
            _open.discard(self)

    def _run(self) -> None:
        wait_s = time_to_wait("interval", self._interval_s)
        while not self._closed.wait(wait_s):
            self._flush_or_say()


_open: "weakref.WeakSet[Client]" = weakref.WeakSet()


def end_all() -> None:
    """Close the clients that are open when the program ends, within one common time."""
    hurried = isinstance(getattr(sys, "last_value", None), KeyboardInterrupt)
    began_s = time.monotonic()
    if _open:
        quiet_threads()
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
