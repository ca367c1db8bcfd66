"""The publisher's background thread: answers requests, sends heartbeats, flushes."""

import time
from collections.abc import Callable
from typing import Any, Final

import zmq

import transports
from p2pmsg.checks import time_to_wait, whole
from p2pmsg.driver.lifecycle import ClosesItself, was_closed
from p2pmsg.errors import LogFailedError
from p2pmsg.publisher.steps import Steps, run_steps
from p2pmsg.sync.serving import (
    BUSY_NS,
    MS,
    REPLIES_PER_ROUND,
    ROUND_NS,
    ServingPeer,
    ServingRounds,
    linger_ms,
)
from p2pmsg.sync.worker import Notifier, Worker

_IDLE_ROUNDS: Final = 3
"""Rounds without an open batch after which the thread sleeps until something happens."""
_OFTEN_NS: Final = 5 * MS
"""Batches that are begun so soon after one another are ticked for; others wake the thread each."""
_LOGGED_WHILE_PUBLISHING: Final = 16
"""Answers from the log a round while messages are published all the time, which comes first."""
_PUBLISHING_NS: Final = MS
"""How long after a frame that counts as so."""
_REST_NS_MAX: Final = 10 * MS
"""How long it rests from answering at most."""
_SKIPPED_NS_MAX: Final = 50 * MS
"""How long rounds are left out that would have nothing to do."""


class PublisherDriver(ServingRounds):
    """The thread.

    It sleeps until a request comes, a deadline is due, or it is woken because a batch was begun. As
    long as batches are begun often it ticks once a `linger`, so that waking it costs nothing.
    """

    def _prepare(self) -> None:
        self._round_due_ns = 0
        self._owes_round = False
        self._begun_ns = 0
        self._often = False
        self._idle_rounds = 0
        self._tick_ms = max(1, round(min(self._core.config.linger, 1.0) * 1000))
        self._changed = Notifier()
        self._worker = Worker("p2pmsg-publisher", "the publisher", self._turn)
        self.start = self._worker.start
        self.thread = self._worker.thread
        self._has_datagrams = not isinstance(self._sender, transports.ZmqSender)
        # AccessRules and a log want rounds of their own.
        plain = self._core.access_rules is None and self._core.log is None
        self._skips_rounds = plain
        # A relay's requests, those of users with rights and a multicast's lead to other work.
        self._answers_alone = (
            self._publisher is not None
            and self._core.access_rules is None
            and not self._has_datagrams
        )
        self._asleep_until_ns = 0
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

    def tick(self) -> None:
        """Check the open batches from now on; called under the lock."""
        now_ns = time.monotonic_ns()
        self._often = now_ns - self._begun_ns < _OFTEN_NS
        self._begun_ns = now_ns
        self.ticking = True
        self.wake()

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
        if isinstance(self._sender, transports.ZmqSender):
            poller.register(self._sender.connections.fd, zmq.POLLIN)
        return poller

    def _turn(self) -> None:
        is_logged = self._core.log is not None
        if is_logged and self.acknowledgements.is_due and not self._is_late(time.monotonic_ns()):
            self._commit()  # many wait for it, and it waits for nothing
            return
        wait_ms = self._wait_ms()
        # While messages are sent, sending looks at the data socket by itself, and what is signalled
        # there is mostly of no use to us: space in queues. It belongs to the thread that holds the
        # lock, so only the descriptor that ZeroMQ signals on is polled.
        busy = time.monotonic_ns() - self._core.sealed_ns < BUSY_NS and not self._has_datagrams
        if self._polls_sender == busy:
            self._polls_sender = not busy
            if busy:
                self._poller.unregister(self._sender.fileno())
            else:
                self._poller.register(self._sender.fileno(), zmq.POLLIN)
        happened = self._poller.poll(min(wait_ms, BUSY_NS // MS) if busy else wait_ms)
        now_ns = time.monotonic_ns()
        due = self._is_late(now_ns)
        if is_logged and self.acknowledgements.is_due and not due:
            self._commit()  # many wait for it, and it waits for nothing
        elif self._takes_no_round(happened, now_ns):
            pass
        elif happened or due or not self.ticking:
            self._round_due_ns = now_ns + ROUND_NS
            self._owes_round = False
            woken = self._worker.fileno()
            if any(source == woken for source, _ in happened):
                self._worker.clear()
            run_steps(self._round())
            if self._core.closing or self._joined_changed():
                self._changed.notify()
        elif self._publisher is not None and self._publisher.lingering(now_ns=now_ns):
            with self._lock:
                self._flush(self._publisher)
                if not (self._often or self._publisher.open_batches):
                    self.ticking = False

    def _is_late(self, now_ns: int) -> bool:
        return now_ns >= self._round_due_ns or self._has_more_subscriptions

    def _takes_no_round(self, happened: list[tuple[Any, int]], now_ns: int) -> bool:
        """Whether nothing is left to do after requests were answered, or a heartbeat put off."""
        if happened:
            return self._came_requests_only(happened, now_ns) and self._answer_only()
        return self._is_put_off(now_ns)

    def _came_requests_only(self, happened: list[tuple[Any, int]], now_ns: int) -> bool:
        """Whether requests came and nothing else is to be done: nothing is due."""
        if len(happened) != 1 or happened[0][0] is not self._server.socket:
            return False
        if not self._answers_alone or self.ticking or self._owes_round:
            return False
        due_ns = self._due_ns if self._polls_sender else min(self._due_ns, self._round_due_ns)
        return now_ns < due_ns and not self._has_more_subscriptions

    def _answer_only(self) -> bool:
        """Answer requests; False where that left something to send, which a round does.

        Subscriptions, heartbeats, subscribers that are silent: to look for all that took half of
        what one NACK cost. Nothing of it is due, and what becomes so wakes the thread.
        """
        run_steps(self._answer())
        core = self._core
        if core.closing or core.joined != self._joined:
            self._joined = core.joined
            self._changed.notify()
        if core.outbox or core.control:
            return False
        if self._polls_sender:
            due_ns = core.requests.next_deadline_ns(now_ns=time.monotonic_ns())
            self._asleep_until_ns = self._due_ns if due_ns is None else min(due_ns, self._due_ns)
        return True

    def _is_put_off(self, now_ns: int) -> bool:
        """Whether a round has nothing to do, since the heartbeat that it was for was put off.

        While messages are published all the time one is, each 10 ms. A round takes the lock five
        times, and a caller who computes between its messages leaves the interpreter only while it
        sends, with the lock: each time took up to 5 ms, in which the thread ran for nothing.
        """
        core = self._publisher
        if core is None or not self._skips_rounds or self.ticking or self._outgoing.waits:
            return False
        if core.control or self._has_more_subscriptions:
            return False
        rest_ns = min(self._but_beats_ns, self._round_due_ns - ROUND_NS + _SKIPPED_NS_MAX)
        due_ns = core.heartbeats.put_off_until_ns(now_ns)
        if due_ns is None or min(due_ns, rest_ns) <= now_ns:
            return False
        self._asleep_until_ns = min(due_ns, rest_ns)
        return True

    def _wait_ms(self) -> int:
        until_ns, self._asleep_until_ns = self._asleep_until_ns, 0
        if self._has_more_subscriptions or self.acknowledgements.is_due:
            return 0
        if until_ns and not self.ticking:
            return max(0, -((time.monotonic_ns() - until_ns) // MS))
        if self._owes_round:
            return max(0, -((time.monotonic_ns() - self._round_due_ns) // MS))
        return self._tick_ms if self.ticking else self._deadline_ms()

    def _commit(self) -> None:
        """Bring the log to the disk for those who wait; all else is seen to a little later."""
        self._worker.clear()
        self._owes_round = True
        if self._core.log is not None:
            run_steps(self._sync(self._core.log))
        if self._outgoing.waits:
            with self._lock:
                self._outgoing.send_now()

    def _handle_timer(self) -> None:
        super()._handle_timer()
        if self._publisher is not None and self._publisher.open_batches:
            self._idle_rounds = 0
        elif self.ticking:
            self._idle_rounds += 1
            if self._idle_rounds > _IDLE_ROUNDS or not self._often:
                self.ticking = False
                self._idle_rounds = 0

    def _is_publishing(self) -> bool:
        return time.monotonic_ns() - self._core.sealed_ns < _PUBLISHING_NS

    def _answer(self) -> Steps[object]:
        if self._is_publishing():
            return self._answer_aside()
        return self._serve(REPLIES_PER_ROUND)

    def _answer_aside(self) -> Steps[None]:
        """Serve; leave the interpreter to publishing for twice as long as the log took."""
        begun_ns = time.monotonic_ns()
        if (yield from self._serve(_LOGGED_WHILE_PUBLISHING)) and self._is_publishing():
            time.sleep(min(2 * (time.monotonic_ns() - begun_ns), _REST_NS_MAX) / 1e9)


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
