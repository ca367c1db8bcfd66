"""What relays do when nothing comes: answer requests, send heartbeats.

A thread (`publisher_thread`) or an event loop (`p2pmsg.aio`) takes the rounds.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn

import transports
from p2pmsg.checks import shown
from p2pmsg.driver.verbs import Blocking
from p2pmsg.errors import ClosedError, LogFailedError
from p2pmsg.publisher.log import PublisherLog
from p2pmsg.publisher.requests import Reply
from p2pmsg.publisher.steps import Steps
from p2pmsg.sync.lock import PublishLock
from p2pmsg.sync.sending import Outgoing
from transports.own_log import own_log as _log

if TYPE_CHECKING:
    from p2pmsg.relay.core import RelayCore
    from p2pmsg.security.settings import Security
    from p2pmsg.sync.access_watch import AccessWatch

MS: Final = 1_000_000
RETRY_NS: Final = 2 * MS
"""How soon what has no space is tried again."""
BUSY_NS: Final = 20 * MS
"""How long after a frame the publisher counts as busy, and how long requests wait then at most."""
ROUND_NS: Final = 10 * MS
"""While batches are looked at, how often more than that is done."""
REPLIES_PER_ROUND: Final = 64
_REQUESTS_PER_ROUND: Final = 256
_REQUESTS_AT_ONCE: Final = 16
_OUTBOX_MAX: Final = 64
"""While so many frames cannot leave, no heartbeats are added to them."""


class ServingRounds(ABC):
    """The rounds; the subclass decides who takes them, and when."""

    _subscription_calls: ClassVar[int] = 8
    """Times 2 ms that are spent on subscriptions a round, before requests are answered."""
    _serving_ns: ClassVar[int] = 1000 * MS
    """How long requests are taken and answered a round at most."""

    _access_rules: "AccessWatch | None" = None

    def __init__(
        self,
        core: "RelayCore",
        sender: transports.ZmqSender,
        server: transports.ZmqRecoveryServer,
        lock: PublishLock,
        outgoing: Outgoing,
    ) -> None:
        self._core = core
        self._sender = sender
        self._server = server
        self._lock = lock
        self._outgoing = outgoing
        self._joined = 0
        if core.access_rules is not None:
            self._use_access_rules(core.access_rules)
        core.control.await_subscriptions()
        self._prepare()

    @abstractmethod
    def _prepare(self) -> None:
        """Make what the subclass has in addition."""

    @abstractmethod
    def wake(self) -> None:
        """Have a round taken now."""

    def _deadline_ms(self) -> int:
        """Return how long there is nothing to do, in ms."""
        if len(self._core.outbox) >= _OUTBOX_MAX or self._core.control.is_full:
            return RETRY_NS // MS  # deadlines pass unseen until there is space
        with self._lock:
            now_ns = time.monotonic_ns()
            deadline_ns = now_ns + 1000 * MS
            log = self._core.log
            for due_ns in (
                self._core.next_deadline_ns(),
                self._core.requests.next_deadline_ns(now_ns=now_ns),
                None if log is None else log.next_deadline_ns(now_ns=now_ns),
            ):
                if due_ns is not None:
                    deadline_ns = min(deadline_ns, due_ns)
            if self._outgoing.waits or self._core.control:
                deadline_ns = min(deadline_ns, now_ns + RETRY_NS)
        return max(0, -((now_ns - deadline_ns) // MS))

    @property
    def _has_more_subscriptions(self) -> bool:
        return self._sender.has_more

    def _round(self) -> Steps[None]:
        self._take_subscriptions()
        with self._lock:
            self._handle_timer()
        yield from self._answer()
        if self._core.log is not None:
            yield from self._sync(self._core.log)
            now_ns, wall_ns = time.monotonic_ns(), time.time_ns()
            yield from self._core.expire_log(self._lock, now_ns=now_ns, wall_ns=wall_ns)
        self._send_waiting()

    def _use_access_rules(self, access_rules: Any) -> None:
        """Answer requests by their users."""
        from p2pmsg.sync.access_watch import AccessWatch

        self._access_rules = AccessWatch(access_rules, self._sender, self._server)

    def _receive_of_user(self, requester: bytes, frame: bytes, *, now_ns: int) -> None:
        """Take a request; one of a user that is revoked is dropped."""
        requests, access_rules, user = self._core.requests, self._access_rules, self._server.user
        assert access_rules is not None
        if user in access_rules.access_rules.revoked:
            requests.invalid["revoked"] += 1
            self._server.end_last()
            return
        requests.receive(requester, frame, now_ns=now_ns, user=user, wall_ns=time.time_ns())

    def _take_subscriptions(self) -> None:
        if self._access_rules is not None:
            self._check_access_rules(self._access_rules)
        self._server.connections.update()
        for _ in range(self._subscription_calls):  # an echo needs its own, which came just now
            with self._lock:
                for note in self._sender.receive_subscriptions():
                    self._core.control.on_subscription(note, now_ns=time.monotonic_ns())
            if not self._has_more_subscriptions:
                break

    def _check_access_rules(self, access_rules: "AccessWatch") -> None:
        """Do what follows from rights that have changed, and end who is revoked."""
        access_rules.access_rules.refresh()  # without the lock: it reads files, which may be large
        with self._lock:
            if not access_rules.check():
                return
            if users := access_rules.end_revoked():
                self._core.revoke(users)

    def _handle_timer(self) -> None:
        """Do what is due; called under the lock."""
        if len(self._core.outbox) < _OUTBOX_MAX:
            self._core.handle_timer(now_ns=time.monotonic_ns())

    def _answer(self) -> Steps[object]:
        """Take requests and answer them."""
        return self._serve(REPLIES_PER_ROUND)

    def _send_waiting(self) -> None:
        if self._outgoing.waits:
            with self._lock:
                self._outgoing.send_now()
        if self._core.control:
            with self._lock:
                self._outgoing.send_control()

    def _sync(self, log: PublisherLog) -> Steps[None]:
        """Bring the log to the disk where that is due; one fsync for all frames that wait."""
        now_ns = time.monotonic_ns()
        with self._lock:
            due_ns = log.next_deadline_ns(now_ns=now_ns)
            count = len(self._core.unsynced)
            if due_ns is None and log.broken is None:
                self._core.frames_synced(count)
        if due_ns is not None and due_ns <= now_ns and (yield from log.sync_steps(self._lock)):
            with self._lock:
                self._core.frames_synced(count)

    def _joined_changed(self) -> bool:
        before, self._joined = self._joined, self._core.joined
        return before != self._joined

    def _serve(self, logged_max: int) -> Steps[bool]:
        """Take requests and answer them; returns whether it stopped because of the log's part.

        The lock is entered twice for a request that is answered at once: to take it, and to note
        that the answer has left.
        """
        requests, lock = self._core.requests, self._lock
        end_ns = time.monotonic_ns() + self._serving_ns
        reply = self._take_requests(end_ns)
        if self._server.malformed:
            requests.invalid["parts"] = self._server.malformed
        logged = 0
        for _ in range(REPLIES_PER_ROUND):
            if reply is None:
                return False
            note: Callable[..., None] | None
            if reply.is_in_log:
                logged += 1
                note = yield from self._send_logged(reply)
            else:
                note = self._send(reply)
            with lock:
                now_ns = time.monotonic_ns()
                if note is None:
                    requests.refuse(reply)
                else:
                    note(reply, now_ns=now_ns)
                if logged >= logged_max:
                    return True
                if now_ns > end_ns:
                    break
                reply = requests.next_reply(now_ns=now_ns)
        return False

    def _take_requests(self, end_ns: int) -> Reply | None:
        """Take the requests that have come; return the first reply, or None."""
        requests, lock = self._core.requests, self._lock
        has_access_rules = self._access_rules is not None
        at_once = 1 if has_access_rules else _REQUESTS_AT_ONCE  # each has a user of its own
        for _ in range(0, _REQUESTS_PER_ROUND, at_once):
            taken = self._server.receive_some(at_once)
            is_last = len(taken) < at_once
            for request in taken:
                with lock:  # for each: an answer about thousands of streams takes its time
                    now_ns = time.monotonic_ns()
                    if has_access_rules:
                        self._receive_of_user(*request, now_ns=now_ns)
                    else:
                        requests.receive(*request, now_ns=now_ns)
                    if is_last and request is taken[-1]:
                        return requests.next_reply(now_ns=now_ns)
            if is_last or now_ns > end_ns:
                break
        with lock:
            return requests.next_reply(now_ns=time.monotonic_ns())

    def _send_logged(self, reply: Reply) -> Steps[Callable[..., None] | None]:
        """Do as `_send`, of what is in the log; None: it is there no more."""
        requests = self._core.requests
        try:
            found = yield Blocking(lambda: requests.read(reply))
        except OSError:  # no descriptor is left to read with: it is there all the same
            return requests.reply_blocked
        return self._send(reply) if found else None

    def _send(self, reply: Reply) -> Callable[..., None]:
        """Send a reply; return what takes note of how that ended, called under the lock."""
        requests = self._core.requests
        sent = self._server.reply(reply.requester, reply.frame)
        if sent is None:
            return requests.requester_gone
        return requests.reply_sent if sent else requests.reply_blocked


class ServingPeer(ABC):
    """What publishers and relays have in common: where and who they are.

    The subclass makes all that it consists of.
    """

    _kind: ClassVar[str]
    _core: Any
    _sender: transports.ZmqSender
    _server: transports.ZmqRecoveryServer
    _lock: PublishLock
    _name: str
    _rounds: ServingRounds
    _security: "Security | None" = None
    _closed = False
    _why = "it is closed"
    _undelivered = 0
    _opens_later = False
    _opening: Callable[[], None]

    @abstractmethod
    def _make_lock(self) -> PublishLock:
        """Return the lock; raise where the peer cannot be made here."""

    @abstractmethod
    def _begin(self) -> None:
        """Make what takes its rounds, and begin to take them."""

    def _open_by(self, opening: Callable[[], None]) -> None:
        """Open all that it consists of, and begin; `opening` may wait."""
        self._opening = opening
        if not self._opens_later:
            opening()
            self._begin()

    def revoke(self, who: str) -> list[str]:
        """Admit a peer no more: its connections are ended, and it is sent nothing.

        It returns at once; the connections are ended in the next round, within some ms. It holds
        for all peers that were given the same `Security`, while the process runs: take the peer out
        of the files as well. Others lose nothing.

        Args:
            who: the name of a peer that is known, or its public key as text.

        Returns:
            The public keys that were revoked, as text.

        Raises:
            ConfigError: there is no `security`, or no such peer.
            ClosedError: it is closed.

        """
        if self._closed:
            raise ClosedError(f"the {self._kind}", self._why)
        from p2pmsg.sync.access_watch import revoke_here

        users = revoke_here(self._security, who)
        self._rounds.wake()
        return users

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

    def _refuse_wait(self, count: int, timeout: float | None) -> NoReturn:
        """Raise that not so many subscribers came."""
        if self._closed:
            raise ClosedError(f"the {self._kind}", self._why)
        there = self._core.joined
        text = f"{there} of {count} subscribers came within {timeout} s"
        if refused := self._refused_by_key():
            text += f"; connections that were refused by their keys: {refused}, see the log"
        raise TimeoutError(text)

    def _refused_by_key(self) -> int:
        bound = (self._sender, self._server)
        sockets = [one for one in bound if isinstance(one, transports.ZmqSocket)]
        return sum(one.refused_by_key for one in sockets)

    @abstractmethod
    def _begin_close(self) -> None: ...

    @abstractmethod
    def _check_logged(self, failure: LogFailedError | None) -> None: ...

    def _on_undelivered(self) -> None:
        """Count those who have not got everything; before the sockets are closed."""
        # Who cannot take the frames that still wait is among those that are not complete.
        self._undelivered = max(self._core.requests.undelivered, bool(self._core.outbox))

    def _check_delivered(self, failure: LogFailedError | None) -> None:
        """Say what is lacking, when all is closed."""
        if self._undelivered:
            _log.warning("subscribers that had not got everything at close: %d", self._undelivered)
        self._check_logged(failure)

    def _close_sockets(self, linger_ms: int) -> None:
        self._sender.close(linger_ms=linger_ms)
        self._server.close(linger_ms=linger_ms)

    @abstractmethod
    def _close_log(self) -> None:
        """Close the log, if there is one; raises `LogFailedError`. It waits for the disk."""

    def __repr__(self) -> str:
        return shown(self, lambda: self.endpoint)


def linger_ms(timeout: float) -> int:
    """Return how long a peer's frames may still leave that was closed within so many seconds."""
    return int(max(0.0, min(timeout, 1.0)) * 1000)
