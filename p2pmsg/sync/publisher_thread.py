"""The publisher's background thread: answers requests, sends heartbeats, flushes."""

import logging
import time
from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import zmq

import transports
from p2pmsg.errors import ClosedError, LogFailedError
from p2pmsg.publisher.core import PublisherCore
from p2pmsg.publisher.log import PublisherLog
from p2pmsg.sync.acknowledge import Acknowledgements
from p2pmsg.sync.lifecycle import ClosesItself, was_closed
from p2pmsg.sync.lock import PublishLock
from p2pmsg.sync.sending import Outgoing
from p2pmsg.sync.worker import Notifier, Worker

if TYPE_CHECKING:
    from p2pmsg.relay.core import RelayCore
    from p2pmsg.sync.datagram_sender import DatagramSender

_MS = 1_000_000
_IDLE_ROUNDS = 3
"""Rounds without an open batch after which the thread sleeps until something happens."""
_OFTEN_NS = 5 * _MS
"""Batches that are begun so soon after one another are ticked for; others wake the thread each."""
_ROUND_NS = 10 * _MS
"""While it ticks, how often it does more than to look for batches that have waited."""
_REPLIES_PER_ROUND = 64
_LOGGED_WHILE_PUBLISHING = 16
"""Answers from the log a round while messages are published all the time, which comes first."""
_PUBLISHING_NS = _MS
"""How long after a frame that counts as so."""
_REST_NS_MAX = 10 * _MS
"""How long it rests from answering at most."""
_REQUESTS_PER_ROUND = 256
_SUBSCRIPTION_CALLS = 8
"""Times 2 ms that are spent on subscriptions a round, before requests are answered."""
_RETRY_NS = 2 * _MS
_BUSY_NS = 20 * _MS
"""How long after a frame the publisher counts as busy, and how long requests wait then at most."""
_OUTBOX_MAX = 64
"""While so many frames cannot leave, no heartbeats are added to them."""
_log = logging.getLogger("p2pmsg")


class PublisherDriver:
    """The thread.

    It sleeps until a request comes, a deadline is due, or it is woken because a batch was begun. As
    long as batches are begun often it ticks once a `linger`, so that waking it costs nothing.

    Attributes:
        ticking: whether it looks at the batches by itself; set and read under the lock.
        acknowledgements: who waits until something is on the disk.

    """

    def __init__(
        self,
        core: "PublisherCore | RelayCore",
        sender: "transports.ZmqSender | DatagramSender",
        server: transports.ZmqRecoveryServer,
        lock: PublishLock,
        outgoing: Outgoing,
    ) -> None:
        self._core = core
        self._publisher = core if isinstance(core, PublisherCore) else None
        self._sender = sender
        self._server = server
        self._lock = lock
        self._outgoing = outgoing
        self.ticking = False
        self.acknowledgements = Acknowledgements()
        self._round_due_ns = 0
        self._owes_round = False
        self._begun_ns = 0
        self._often = False
        self._idle_rounds = 0
        self._tick_ms = max(1, round(core.config.linger * 1000))
        self._changed = Notifier()
        core.control.awaits_subscriptions = isinstance(sender, transports.ZmqSender)
        if self._publisher is not None:
            self._publisher.heartbeats.sooner = self._wake_sleeper
        self._worker = Worker("p2pmsg-publisher", "the publisher", self._turn)
        self.start, self.wake = self._worker.start, self._worker.wake
        self.thread = self._worker.thread
        self._has_datagrams = not isinstance(sender, transports.ZmqSender)
        self._polls_sender = False
        self._poller = self._make_poller()

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
        self, timeout: float, enough: Callable[[], bool] = lambda: True
    ) -> bool:
        """Wait until everything has left, every subscriber says that it has it, and `enough()`.

        `enough` is called without the lock, whenever something has happened.
        """
        self.wake()
        core = self._core
        return self._changed.wait_for(
            lambda: (core.is_complete and enough()) or self._worker.stopping, timeout
        )

    def _wake_sleeper(self) -> None:
        if not self.ticking:
            self.wake()

    def _make_poller(self) -> zmq.Poller:
        poller = zmq.Poller()
        poller.register(self._server.socket, zmq.POLLIN)
        poller.register(self._worker.fileno(), zmq.POLLIN)
        poller.register(self._server.connections.fd, zmq.POLLIN)
        if isinstance(self._sender, transports.ZmqSender):
            poller.register(self._sender.connections.fd, zmq.POLLIN)
        return poller

    def _turn(self) -> None:
        wait_ms = self._wait_ms()
        # While messages are sent, sending looks at the data socket by itself, and what is signalled
        # there is mostly of no use to us: space in queues. It belongs to the thread that holds the
        # lock, so only the descriptor that ZeroMQ signals on is polled.
        busy = time.monotonic_ns() - self._core.sealed_ns < _BUSY_NS and not self._has_datagrams
        if self._polls_sender == busy:
            self._polls_sender = not busy
            if busy:
                self._poller.unregister(self._sender.fileno())
            else:
                self._poller.register(self._sender.fileno(), zmq.POLLIN)
        happened = self._poller.poll(min(wait_ms, _BUSY_NS // _MS) if busy else wait_ms)
        now_ns = time.monotonic_ns()
        due = now_ns >= self._round_due_ns or self._has_more_subscriptions
        if self.acknowledgements.is_wanted and not due:
            self._commit()  # many wait for it, and it waits for nothing
        elif happened or due or not self.ticking:
            self._round_due_ns = now_ns + _ROUND_NS
            self._owes_round = False
            woken = self._worker.fileno()
            self._round(woken=any(source == woken for source, _ in happened))
        elif self._publisher is not None and self._publisher.lingering(now_ns=now_ns):
            self._flush(self._publisher)

    def _flush(self, core: PublisherCore) -> None:
        with self._lock:
            now_ns = time.monotonic_ns()
            for topic in core.lingering(now_ns=now_ns):
                core.seal_if_possible(topic, now_ns=now_ns)
            if not (self._often or core.open_batches):
                self.ticking = False
            self._outgoing.send_now()

    def _wait_ms(self) -> int:
        if self._has_more_subscriptions or self.acknowledgements.is_wanted:
            return 0
        if self._owes_round:
            return max(0, -((time.monotonic_ns() - self._round_due_ns) // _MS))
        if self.ticking:
            return self._tick_ms
        if len(self._core.outbox) >= _OUTBOX_MAX or self._core.control.is_full:
            return _RETRY_NS // _MS  # deadlines pass unseen until there is space
        with self._lock:
            now_ns = time.monotonic_ns()
            deadline_ns = now_ns + 1000 * _MS
            log, sender = self._core.log, self._sender
            datagrams = None if isinstance(sender, transports.ZmqSender) else sender
            for due_ns in (
                self._core.next_deadline_ns(),
                self._core.requests.next_deadline_ns(now_ns=now_ns),
                None if log is None else log.next_deadline_ns(now_ns=now_ns),
                None if datagrams is None else datagrams.multicast.next_repair_ns(now_ns=now_ns),
            ):
                if due_ns is not None:
                    deadline_ns = min(deadline_ns, due_ns)
            if self._core.outbox or self._core.control:
                deadline_ns = min(deadline_ns, now_ns + _RETRY_NS)
        return max(0, -((now_ns - deadline_ns) // _MS))

    @property
    def _has_more_subscriptions(self) -> bool:
        sender = self._sender
        return isinstance(sender, transports.ZmqSender) and sender.has_more

    def _commit(self) -> None:
        """Bring the log to the disk for those who wait; all else is seen to a little later."""
        self._worker.clear()
        self._owes_round = True
        if self._core.log is not None:
            self._sync(self._core.log)
        if self._core.outbox:
            with self._lock:
                self._outgoing.send_now()

    def _round(self, *, woken: bool) -> None:
        if woken:
            self._worker.clear()
        self._server.connections.update()
        for _ in range(_SUBSCRIPTION_CALLS):  # a probe's echo needs its own, which came just now
            with self._lock:
                for note in self._sender.receive_subscriptions():
                    self._core.control.note_subscription(note, now_ns=time.monotonic_ns())
            if not self._has_more_subscriptions:
                break
        with self._lock:
            if len(self._core.outbox) < _OUTBOX_MAX:
                self._core.handle_timer(now_ns=time.monotonic_ns())
            if self._publisher is not None and self._publisher.open_batches:
                self._idle_rounds = 0
            elif self.ticking:
                self._idle_rounds += 1
                if self._idle_rounds > _IDLE_ROUNDS or not self._often:
                    self.ticking = False
                    self._idle_rounds = 0
        if self._is_publishing():
            self._serve_while_publishing()
        else:
            self._serve(_REPLIES_PER_ROUND)
        if self._core.log is not None:
            self._sync(self._core.log)
        if self._core.outbox:
            with self._lock:
                self._outgoing.send_now()
        if self._core.control:
            with self._lock:
                self._outgoing.send_control()
        if self._core.closing or self._joined_changed():
            self._changed.notify()

    def _sync(self, log: PublisherLog) -> None:
        """Bring the log to the disk where that is due; one fsync for all frames that wait."""
        now_ns, failure = time.monotonic_ns(), None
        with self._lock:
            is_awaited = self.acknowledgements.begin()
            if is_awaited:
                failure = self._seal_all(now_ns)
            due_ns = log.next_deadline_ns(now_ns=now_ns)
            count = len(self._core.unsynced)
            if due_ns is None and log.broken is None:
                self._core.frames_synced(count)
        is_put_off = due_ns is not None and due_ns > now_ns and log.put_off is not None
        try:
            if due_ns is not None and due_ns <= now_ns:
                is_put_off = not self._sync_now(log, count)
        finally:
            if is_awaited and not (is_put_off and log.overdue is None):
                self.acknowledgements.end(log.broken or failure or log.overdue)

    def _sync_now(self, log: PublisherLog, count: int) -> bool:
        """Bring the log to the disk; False where that could not be begun, and is tried again."""
        if log.sync(self._lock):
            with self._lock:
                self._core.frames_synced(count)
            return True
        return log.put_off is None

    def _seal_all(self, now_ns: int) -> str | None:
        """Append all that was accepted; return why that failed, or None."""
        if self._publisher is None:
            return None  # a relay receives frames, and gathers no messages
        try:
            self._publisher.flush(now_ns=now_ns)
        except LogFailedError as error:
            return str(error)
        return None

    _joined = 0

    def _joined_changed(self) -> bool:
        before, self._joined = self._joined, self._core.joined
        return before != self._joined

    def _is_publishing(self) -> bool:
        return time.monotonic_ns() - self._core.sealed_ns < _PUBLISHING_NS

    def _serve_while_publishing(self) -> None:
        """Serve, and leave the interpreter to publishing for twice as long as the log took."""
        begun_ns = time.monotonic_ns()
        if self._serve(_LOGGED_WHILE_PUBLISHING) and self._is_publishing():
            time.sleep(min(2 * (time.monotonic_ns() - begun_ns), _REST_NS_MAX) / 1e9)

    def _serve(self, logged_max: int) -> bool:
        """Take requests and answer them; returns whether it stopped because of the log's part."""
        requests = self._core.requests
        logged = 0
        for _ in range(_REQUESTS_PER_ROUND):
            request = self._server.receive()
            if request is None:
                break
            with self._lock:
                requests.receive(*request, now_ns=time.monotonic_ns())
        if self._server.malformed:
            requests.invalid["parts"] = self._server.malformed
        for _ in range(_REPLIES_PER_ROUND):
            with self._lock:
                reply = requests.next_reply(now_ns=time.monotonic_ns())
            if reply is None:
                return False
            logged += reply.is_in_log
            try:
                found = not reply.is_in_log or requests.read(reply)
            except OSError:  # no descriptor is left to read with: it is there all the same
                with self._lock:
                    requests.reply_blocked(reply, now_ns=time.monotonic_ns())
                continue
            if not found:
                with self._lock:
                    requests.refuse(reply)
                continue
            try:
                sent = self._server.reply(reply.requester, reply.frame)
            except transports.PeerUnreachableError:
                with self._lock:
                    requests.requester_gone(reply)
                continue
            with self._lock:
                if sent:
                    requests.reply_sent(reply, now_ns=time.monotonic_ns())
                else:
                    requests.reply_blocked(reply, now_ns=time.monotonic_ns())
            if logged >= logged_max:
                return True
        return False


class ServingPeer(ClosesItself):
    """What publishers and relays have in common: where and who they are, and who receives.

    The subclass makes `_driver` and all that it consists of.
    """

    _kind: ClassVar[str]
    _core: Any
    _sender: "transports.ZmqSender | DatagramSender"
    _server: transports.ZmqRecoveryServer
    _driver: PublisherDriver
    _lock: PublishLock
    _name: str
    _closed = False
    _undelivered = 0

    @property
    def endpoint(self) -> str:
        """Where subscribers connect to, with the port that was picked."""
        return self._sender.endpoint

    @property
    def recovery_endpoint(self) -> str:
        """Where repairs are asked for; subscribers learn it by themselves."""
        return self._server.endpoint

    @property
    def name(self) -> str:
        """Who publishes or relays, for people."""
        return self._name

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
        if self._closed or not self._driver.wait_for_subscribers(count, timeout):
            if self._closed:
                raise ClosedError(f"the {self._kind}")
            there = self._core.joined
            raise TimeoutError(f"{there} of {count} subscribers came within {timeout} s")

    def close(self, timeout: float = 5.0) -> None:
        """Take no more messages, send what is left, wait until every subscriber has it, and close.

        Args:
            timeout: how long to wait, in seconds, for subscribers that still repair gaps. Default
                5.0. Those who are not through by then are counted in `stats().undelivered`.

        Raises:
            LogFailedError: not everything could be written to the log.
            ReentrantCallError: a signal handler called it that came within this peer; it is still
                open.

        """
        self._close(timeout)

    def _close(self, timeout: float, enough: Callable[[], bool] = lambda: True) -> None:
        """Close as `close` does, but wait for `enough` as well, within the same time."""
        if not self._closed:
            self._lock.refuse_inside()
        if self._closed:
            return
        self._closed = True
        was_closed(self)
        failure: LogFailedError | None = None
        try:
            self._begin_close()
            self._driver.wait_for_completion(timeout, enough)
        finally:
            self._undelivered = self._core.requests.incomplete + bool(self._core.outbox)
            self._driver.stop()
            try:
                self._lock.run(self._close_sockets, int(max(0.0, min(timeout, 1.0)) * 1000))
            except LogFailedError as error:
                failure = error  # raised when the rest is closed
        if self._undelivered:
            _log.warning("%d subscribers had not got everything at close", self._undelivered)
        self._check_logged(failure)

    @abstractmethod
    def _begin_close(self) -> None: ...

    @abstractmethod
    def _check_logged(self, failure: LogFailedError | None) -> None: ...

    def _close_sockets(self, linger_ms: int) -> None:
        self._sender.close(linger_ms=linger_ms)
        self._server.close(linger_ms=linger_ms)

    def __repr__(self) -> str:
        state = "closed" if self._closed else self.endpoint
        return f"<{self._kind.capitalize()} {self._name!r} {state}>"
