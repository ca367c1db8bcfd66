"""A relay's thread that answers requests and sends heartbeats."""

import time
from collections.abc import Callable

import zmq

from p2pmsg.checks import time_to_wait, whole
from p2pmsg.driver.lifecycle import ClosesItself, was_closed
from p2pmsg.errors import LogFailedError
from p2pmsg.publisher.steps import run_steps
from p2pmsg.sync.serving import (
    BUSY_NS,
    MS,
    ServingPeer,
    ServingRounds,
    linger_ms,
)
from p2pmsg.sync.worker import Notifier, Worker


class PublisherDriver(ServingRounds):
    """The thread: it sleeps until a request comes or a deadline is due."""

    def _prepare(self) -> None:
        self._changed = Notifier()
        self._worker = Worker("p2pmsg-publisher", "the publisher", self._turn)
        self.start = self._worker.start
        self.thread = self._worker.thread
        self._polls_sender = False
        self._poller = self._make_poller()

    def wake(self) -> None:
        """Have the thread take a turn now."""
        self._worker.wake()

    def stop(self) -> None:
        """End the thread, and wait for it."""
        self._worker.stop()
        self._changed.notify()

    def is_over(self) -> bool:
        """Whether the thread has ended, or is about to."""
        return self._worker.stopping

    def wait_for_subscribers(self, count: int, timeout: float | None) -> bool:
        """Wait until so many have confirmed; False when the time is up or the thread ended."""
        core = self._core
        self._changed.wait_for(
            lambda: core.joined >= count or self._worker.stopping or core.closing, timeout
        )
        return core.joined >= count

    def wait_for_completion(
        self, timeout: float, is_through: Callable[[], bool] | None = None
    ) -> bool:
        """Wait until everything has left, and every subscriber says that it has it.

        Or until `is_through()`, which is called without the lock, whenever something has happened.
        """
        self.wake()
        core = self._core
        through = is_through or (lambda: core.is_complete)
        return self._changed.wait_for(lambda: through() or self._worker.stopping, timeout)

    def _make_poller(self) -> zmq.Poller:
        poller = zmq.Poller()
        poller.register(self._server.socket, zmq.POLLIN)
        poller.register(self._worker.fileno(), zmq.POLLIN)
        poller.register(self._server.connections.fd, zmq.POLLIN)
        poller.register(self._sender.connections.fd, zmq.POLLIN)
        return poller

    def _turn(self) -> None:
        wait_ms = 0 if self._has_more_subscriptions else self._deadline_ms()
        # While frames are sent, sending looks at the data socket by itself, and what is signalled
        # there is mostly of no use to us: space in queues. It belongs to the thread that holds the
        # lock, so only the descriptor that ZeroMQ signals on is polled.
        busy = time.monotonic_ns() - self._core.sealed_ns < BUSY_NS
        if self._polls_sender == busy:
            self._polls_sender = not busy
            if busy:
                self._poller.unregister(self._sender.fileno())
            else:
                self._poller.register(self._sender.fileno(), zmq.POLLIN)
        self._poller.poll(min(wait_ms, BUSY_NS // MS) if busy else wait_ms)
        self._worker.clear()
        run_steps(self._round())
        if self._core.closing or self._joined_changed():
            self._changed.notify()


class ThreadedServingPeer(ServingPeer, ClosesItself):
    """A publisher or relay with a thread: waits for subscribers, and closes.

    The subclass makes `_driver`.
    """

    _driver: PublisherDriver

    def wait_for_subscribers(self, count: int = 1, timeout: float | None = None) -> None:
        """Wait until `count` subscribers have confirmed that they receive.

        What is published afterwards reaches them; confirmed means over the very path that the
        messages take, at a relay for any session.

        Args:
            count: how many. Default 1.
            timeout: in seconds. Default None: without end.

        Raises:
            TimeoutError: they did not come in time.
            ClosedError: the publisher or relay is closed.

        """
        whole("count", count, 0)
        if timeout is not None:
            timeout = time_to_wait("timeout", timeout)
        if self._closed or not self._driver.wait_for_subscribers(count, timeout):
            self._refuse_wait(count, timeout)

    def close(self, timeout: float = 5.0) -> None:
        """Take no more messages, send what is left, wait until every subscriber has it, and close.

        Args:
            timeout: how long to wait, in seconds, for subscribers that still repair gaps; one that
                has not been heard of for `subscriber_timeout` is not waited for. Default 5.0. Those
                who are not through by then are counted in `stats().undelivered`.

        Raises:
            LogFailedError: not everything could be written to the log.
            ReentrantCallError: a signal handler called it that came within this peer; it is still
                open.

        """
        timeout = time_to_wait("timeout", timeout)
        self._close(timeout)

    def _close(self, timeout: float, is_through: Callable[[], bool] | None = None) -> None:
        """Close as `close` does, but wait for `is_through` instead, within the same time."""
        if not self._closed:
            self._lock.refuse_inside()
        if self._closed:
            return
        failure: LogFailedError | None = None
        self._closed = True
        try:
            was_closed(self)
            self._begin_close()
            self._driver.wait_for_completion(timeout, is_through)
        finally:
            self._on_undelivered()
            self._driver.stop()
            try:
                self._lock.run(self._close_all, linger_ms(timeout))
            except LogFailedError as error:
                failure = error  # raised when the rest is closed
        self._check_delivered(failure)

    def _close_all(self, linger_ms: int) -> None:
        self._close_sockets(linger_ms)
        self._close_log()
