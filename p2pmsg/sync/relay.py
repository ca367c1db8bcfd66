"""The threaded relay."""

import select
import time
from typing import Final

from p2pmsg.checks import time_to_wait, whole
from p2pmsg.driver.lifecycle import close_at_exit
from p2pmsg.errors import LogFailedError
from p2pmsg.sync.lock import PublishLock
from p2pmsg.sync.publisher_thread import PublisherDriver, ThreadedServingPeer
from p2pmsg.sync.relaying import LOG_RETRY_S, RelayingPeer
from p2pmsg.sync.worker import Worker

_WAIT_MS: Final = 100
_POLL_S: Final = 0.01


class Relay(RelayingPeer, ThreadedServingPeer):
    """Receives streams and serves them on, under their own sessions and sequences.

    Its subscribers get what the publishers publish, and ask it for what they missed. Its
    publishers may go away and not come back: what it received is served on, from its replay buffer
    and its log. It takes all that its upstreams still have when it first meets them. Subscribers
    may be given its endpoint alone, or with the publisher's own. Relays may be chained; one that
    would get from itself what it has refuses that upstream, and says so.

    Args:
        upstreams: endpoints of publishers and other relays; one, or several.
        endpoint: where to bind, as for `Publisher`.
        name: of the relay, for people; at most 255 bytes. Default: the endpoint.
        topics: what to relay, as for `Subscriber`. Default: all.
        replay_bytes: bound of the replay buffer, over all sessions, in bytes. Default 64 MiB.
        on_full: what happens when a subscriber's queue is full; see `PublisherConfig.on_full`.
        stall_timeout: how long a slow subscriber may hold up the others, in seconds. Default 1.0.
        recovery_endpoint: where repairs are asked for. Default: the same host, a port that the
            system picks.
        log: where a local log of what is received is kept, and how much of it. A relay that is
            started again on its log serves what it has at once, and continues after it. Default
            None: no log.
        config: all settings of its publishing side; the arguments above go before it.
        intake: all settings of its receiving side. Default: those of `SubscriberConfig`, but that a
            gap is given up after 5 s; keep that below the `repair_timeout` of the subscribers.
        security: this peer's key, and whom it knows, on both sides; see `Publisher`. Default None:
            everything is open.

    Raises:
        ConfigError: a setting is out of its limits, or an endpoint is none.
        AuthenticationError: no key is pinned for an upstream, or another one is.
        LogInUseError, LogFormatError, LogFailedError: the log cannot be opened.
        BindError: the endpoint could not be bound.

    """

    def _make_lock(self) -> PublishLock:
        return PublishLock()

    def _begin(self) -> None:
        self._rounds = self._driver = PublisherDriver(
            self._core, self._sender, self._server, self._lock, self._outgoing
        )
        self._worker = Worker("p2pmsg-relay", "the relay", self._turn)
        self._driver.start()
        self._worker.start()
        close_at_exit(self, Relay.close)

    def wait_for_streams(self, count: int = 1, timeout: float | None = None) -> None:
        """Wait until so many streams are served.

        Args:
            count: how many. Default 1.
            timeout: in seconds. Default None: without end.

        Raises:
            TimeoutError: they did not come in time.
            ClosedError: the relay is closed.

        """
        whole("count", count, 0)
        if timeout is not None:
            timeout = time_to_wait("timeout", timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._lock.run(self._count_streams) < count:
            if self._closed or (deadline is not None and time.monotonic() >= deadline):
                self._refuse_wait_for_streams(count, timeout)
            time.sleep(_POLL_S)

    def _begin_close(self) -> None:
        self._worker.stop()
        self._close_receiving()
        self._lock.run(self._core.begin_close, now_ns=time.monotonic_ns())

    def _turn(self) -> None:
        """Receive, keep and send on."""
        try:
            self._receive()
            while self._move() and not self._worker.stopping:
                pass
            self._after_move()
        except LogFailedError as error:
            self._on_log_failure(error)
            self._worker.rest(LOG_RETRY_S)
        except Exception:
            with self._receiving_lock:
                self._receiving.resync()
            raise

    def _receive(self) -> None:
        receiving, now_ns = self._receiving, time.monotonic_ns()
        with self._receiving_lock:
            if self._source.ready.entries or receiving.round(now_ns) or receiving.settle():
                return
            fds = receiving.fds()
            wait_ms = (receiving.next_deadline_ns() - now_ns) / 1e6
        poll = select.poll()
        for fd in (self._worker.fileno(), *fds):
            poll.register(fd, select.POLLIN)
        poll.poll(max(0, min(wait_ms, _WAIT_MS)))
        self._worker.clear()

    def _move(self) -> bool:
        """Move what is ready; False when nothing is left."""
        moved, gone = self._move_some()
        while not gone and not self._worker.stopping:
            time.sleep(0.0002)
            with self._receiving_lock:
                self._receiving.round(time.monotonic_ns())
            gone = self._lock.run(self._send)
        return bool(moved)

    def _forget(self) -> None:
        super()._forget()
        self._worker.stopping = True
