"""What publishers and relays share: answering, subscriptions, keys, the log's upkeep, closing."""

import threading
from abc import abstractmethod
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import transports
from p2pmsg.checks import time_to_wait, whole
from p2pmsg.driver.peer import CLOSED, Peer
from p2pmsg.driver.verbs import Blocking, LateError, Verb, Wait
from p2pmsg.errors import ClosedError, ConfigError, LogFailedError
from p2pmsg.peers.base import BoundBase
from p2pmsg.peers.network import Network
from p2pmsg.peers.sending import Outgoing
from p2pmsg.publisher.requests import Reply
from p2pmsg.security.use import warn_if_open
from recovery.checks import to_ns
from transports.own_log import own_log as _log

if TYPE_CHECKING:
    from p2pmsg.multicast.group_keys import GroupKeys
    from p2pmsg.peers.datagram_sender import DatagramSender
    from p2pmsg.security.access_watch import AccessWatch
    from p2pmsg.security.settings import Security

R = TypeVar("R")
_MS: Final = 1_000_000
_BUSY_NS: Final = 20 * _MS
"""How long after a frame a publisher counts as busy. The data socket is not waited for then: what
it signals is mostly space in queues, and sending finds that by itself."""
_IDLE_NS: Final = 1000 * _MS
_ANSWERING_NS: Final = 1 * _MS
"""How long requests are taken and answered in one turn."""
_REQUESTS_AT_ONCE: Final = 16
_OUTBOX_MAX: Final = 64
"""While so many frames cannot leave, no heartbeats are added to them."""
_RULES_NS: Final = 1000 * _MS
"""How often it is looked whether the files of the rights have changed."""


class ServingPeer(Peer):
    """A publisher or relay: answers requests, and says where its streams stand.

    Attributes:
        core: the engine, of a publisher or a relay.
        sender, server: its sockets.
        outgoing: sends the outbox.
        undelivered: how many subscribers had not got everything when it was closed.

    """

    core: Any
    sender: transports.DataSender
    server: transports.RecoveryServer
    outgoing: Outgoing
    _group: "DatagramSender | None" = None
    """The sender, where it is one to a multicast."""

    def __init__(self, title: str, network: Network, security: "Security | None") -> None:
        self.title = title
        self.name = f"the {self.kind} {title!r}"
        self.now_ns = network.now_ns
        self._wall_ns = network.wall_ns
        self._security = security
        self.undelivered = 0
        self._is_ended = self._is_shut = False
        self._linger_ms = 1000
        self._rules: AccessWatch | None = None
        self._rules_due_ns = 0
        # Syncs of the log that were asked for, and the last of them that has ended.
        self._asked = self._synced = 0
        self._sync_failure: str | None = None
        self._reading: Reply | None = None
        self._reads = threading.Lock()  # held where the log is read, and not to be closed
        self._is_at_disk = False  # the upkeep works, and no turn is due for it
        self._due_ns = 0

    def _use_sockets(self) -> None:
        """Begin to use what the subclass has opened."""
        if self._security is not None:
            from p2pmsg.security.access_watch import AccessWatch

            self._rules = AccessWatch(self._security.grants, self.sender, self.server)
        server, sender = self.server, self.sender
        self.places = sender.endpoint
        for bound in (self.places, server.endpoint):
            warn_if_open(self._security, bound)
        busy = {server.fileno(), server.connections.fd, sender.connections.fd} - {-1}
        self._fds_while_busy = frozenset(busy)
        self._fds = frozenset((busy | {sender.fileno()}) - {-1})

    # -------------------------------------------------------------------------- turns

    def turn(self, now_ns: int) -> None:
        """Take subscriptions and requests, do what is due, send what there is space for."""
        if self._is_ended:
            return
        self.server.connections.update()
        self.sender.take_subscriptions()
        if self._rules is not None:
            self._check_rules(self._rules, now_ns)
        if len(self.core.outbox) < _OUTBOX_MAX:
            self.core.handle_timer(now_ns=now_ns)
        self._take_requests(now_ns)
        self._answer()
        if self.outgoing.waits:
            self.outgoing.send_now()
        if self.core.control:
            self.outgoing.send_control()

    def fds(self) -> Collection[int]:
        """Return the sockets; without the data socket while much is sent there."""
        if self._is_ended:
            return ()
        return self._fds_while_busy if self._is_busy(self.now_ns()) else self._fds

    def next_deadline_ns(self) -> int:
        """Return when the next turn is due."""
        now_ns = self.now_ns()
        self._due_ns = due_ns = now_ns + _IDLE_NS if self._is_ended else self._next_due_ns(now_ns)
        return due_ns

    def _next_due_ns(self, now_ns: int) -> int:
        core, outgoing = self.core, self.outgoing
        if outgoing.has_more or self.sender.has_more or self.server.has_message():
            return now_ns
        deadlines: list[int | None] = [now_ns + _IDLE_NS]
        if self._reading is None:  # else requests wait for the log
            deadlines.append(core.requests.next_deadline_ns(now_ns=now_ns))
        if outgoing.waits or core.control:
            deadlines.append(outgoing.retry_ns(now_ns))
        if len(core.outbox) < _OUTBOX_MAX and not core.control.is_full:
            deadlines.append(self._timer_ns(now_ns))
        if core.log is not None and not self._is_at_disk:
            deadlines.append(core.log.next_deadline_ns(now_ns=now_ns))
        if self._rules is not None and not self._is_at_disk:
            deadlines.append(self._rules_due_ns)
        if self._is_busy(now_ns):
            deadlines.append(now_ns + _BUSY_NS)
        if (group := self._group) is not None:
            deadlines.append(group.multicast.next_repair_ns(now_ns=now_ns))
        return min(due_ns for due_ns in deadlines if due_ns is not None)

    def _timer_ns(self, now_ns: int) -> int | None:
        """Return when the engine has something to do."""
        due_ns: int | None = self.core.next_deadline_ns()
        return due_ns

    def _is_busy(self, now_ns: int) -> bool:
        waits = self.outgoing.waits
        return self._group is None and not waits and now_ns - self.core.sealed_ns < _BUSY_NS

    def resync(self) -> None:
        """Go on after an exception at any line: what was lost of requests is asked for again."""
        self._reading = None
        self.server.resync()
        self.core.resync()

    # ----------------------------------------------------------------------- requests

    def _take_requests(self, now_ns: int) -> None:
        """Take the requests that have come, for 1 ms at most."""
        requests, rules = self.core.requests, self._rules
        at_once = 1 if rules is not None else _REQUESTS_AT_ONCE  # each has a user of its own
        while True:
            taken = self.server.receive_some(at_once)
            for requester, frame in taken:
                if rules is None:
                    requests.receive(requester, frame, now_ns=now_ns)
                else:
                    self._take_of_user(rules, requester, frame, now_ns)
            if len(taken) < at_once or self.now_ns() > now_ns + _ANSWERING_NS:
                break
        if self.server.malformed:
            requests.on_malformed(self.server.malformed)

    def _take_of_user(
        self, rules: "AccessWatch", requester: bytes, frame: bytes, now_ns: int
    ) -> None:
        """Take a request; one of a user that is revoked is dropped."""
        requests, user = self.core.requests, self.server.user
        if user in rules.access_rules.revoked:
            requests.on_revoked()
            self.server.end_last()
            return
        requests.receive(requester, frame, now_ns=now_ns, user=user, wall_ns=self._wall_ns())

    def _answer(self) -> None:
        """Send answers, for 1 ms at most, until one is in the log: the upkeep reads that."""
        requests = self.core.requests
        began_ns = now_ns = self.now_ns()
        while self._reading is None and now_ns <= began_ns + _ANSWERING_NS:
            reply = requests.next_reply(now_ns=now_ns)
            if reply is None:
                return
            if reply.is_in_log:
                self._reading = reply
                return
            self._send_reply(reply)
            now_ns = self.now_ns()

    def _send_reply(self, reply: Reply) -> None:
        requests = self.core.requests
        sent = self.server.reply(reply.requester, reply.frame)
        now_ns = self.now_ns()
        if sent is None:
            requests.requester_gone(reply, now_ns=now_ns)
        elif sent:
            requests.reply_sent(reply, now_ns=now_ns)
        else:
            requests.reply_blocked(reply, now_ns=now_ns)

    # ------------------------------------------------------------------ rights and keys

    def _check_rules(self, rules: "AccessWatch", now_ns: int) -> None:
        """Do what follows from rights that have changed, and end who is revoked."""
        if not rules.check():
            return
        if (keys := self._group_keys) is not None:  # before they are dismissed
            keys.check_users(rules.may_read_all, now_ns=now_ns)
        if rules.ended:
            self.core.revoke(rules.ended)

    @property
    def _group_keys(self) -> "GroupKeys | None":
        return None if self._group is None else self._group.multicast.keys

    def rotate_keys(self) -> None:
        """Begin to use another key of a sealed multicast."""
        self.check_open()
        keys = self._group_keys
        if keys is None:
            limit = "udp:// with security, for keys to rotate"
            raise ConfigError("endpoint", limit, self.places)
        keys.rotate(now_ns=self.now_ns())

    # ------------------------------------------------------------------------- upkeep

    def upkeep(self) -> Verb[None] | None:
        """Return what brings the log to the disk, reads answers from it, and reads the rules."""
        return None if self.core.log is None and self._rules is None else self._keep_up()

    def _keep_up(self) -> Verb[None]:
        while not self._is_ended:
            self._is_at_disk = False
            yield Wait(self._has_disk_work)
            if self._is_ended:
                return
            self._is_at_disk = True
            now_ns = self.now_ns()
            if self._rules is not None and now_ns >= self._rules_due_ns:
                self._rules_due_ns = now_ns + _RULES_NS
                yield Blocking(self._rules.access_rules.refresh)
            if self.core.log is not None:
                if self._is_sync_due(now_ns):
                    yield from self._sync()
                yield from self._more_upkeep()
                yield from self._read()

    def _has_disk_work(self) -> bool:
        now_ns = self.now_ns()
        if self._is_ended or self._reading is not None:
            return True
        if self._rules is not None and now_ns >= self._rules_due_ns:
            return True
        if self.core.log is None:
            return False
        return self._is_sync_due(now_ns) or self._has_more_upkeep(now_ns)

    def _has_more_upkeep(self, now_ns: int) -> bool:
        """Whether `_more_upkeep` has something to do."""
        return False

    def _more_upkeep(self) -> Verb[None]:
        """Do what else waits for the disk."""
        yield from ()

    def _is_sync_due(self, now_ns: int) -> bool:
        if self._asked > self._synced:
            return True
        due_ns = None if self.core.log is None else self.core.log.next_deadline_ns(now_ns=now_ns)
        return due_ns is not None and due_ns <= now_ns

    def _sync(self) -> Verb[None]:
        """Bring all that was accepted to the disk: one fsync for all who wait."""
        core, log, asked = self.core, self.core.log, self._asked
        assert log is not None
        failure = self._seal_all() if asked > self._synced else None
        count = len(core.unsynced)
        if (yield from log.sync_steps(wall_ns=self._wall_ns())):
            core.frames_synced(count)
            self.outgoing.send_now()
        self._synced, self._sync_failure = asked, log.broken or failure

    def _seal_all(self) -> str | None:
        """Append all that was accepted; return why that failed, or None."""
        return None

    def _read(self) -> Verb[None]:
        """Send an answer that is in the log, and have the next one found."""
        requests, reply = self.core.requests, self._reading
        if reply is None:
            return
        try:
            is_found = yield Blocking(partial(self._alone, requests.read, reply))
        except OSError:  # no descriptor is left to read with: it is there all the same
            requests.reply_blocked(reply, now_ns=self.now_ns())
        else:
            if is_found:
                self._send_reply(reply)
            else:
                requests.refuse(reply)
        self._reading = None
        self._answer()

    def _alone(self, call: Callable[..., R], *arguments: Any) -> R:
        with self._reads:
            return call(*arguments)

    def sync(self) -> Verb[None]:
        """Wait until all that was accepted before is on the disk."""
        self.check_open()
        self._asked += 1
        mine = self._asked
        if not (yield Wait(lambda: self._synced >= mine, by_io=False)):
            raise ClosedError(f"the {self.kind}", "it was closed before it was on the disk")
        if self._sync_failure is not None:
            raise LogFailedError(self._sync_failure)

    # -------------------------------------------------------------------- subscribers

    @property
    def recovery_endpoint(self) -> str:
        """Where repairs are asked for."""
        return self.server.endpoint

    def wait_for_subscribers(self, count: int, timeout_s: float | None) -> Verb[None]:
        """Wait until so many subscribers have confirmed that they receive."""
        core = self.core
        deadline_ns = self.deadline_ns(timeout_s)
        yield Wait(lambda: core.joined >= count or self.is_closed, deadline_ns)
        self.check_open()
        if core.joined >= count:
            return
        text = f"{core.joined} of {count} subscribers came within {timeout_s} s"
        if refused := self._refused_by_key():
            text += f"; connections that were refused by their keys: {refused}, see the log"
        raise LateError(text)

    def _counts(self) -> dict[str, Any]:
        """Return the counters of `ServingStats`."""
        from p2pmsg.peers.stats import connection_counts

        core, guard, requests = self.core, self.outgoing.guard, self.core.requests
        return {
            "name": core.name, "endpoint": self.places, "recovery_endpoint": self.server.endpoint,
            "subscribers": core.joined, "replay_bytes": core.replay.bytes_held,
            "repaired": dict(requests.messages_repaired),
            "log": None if core.log is None else core.log.stats(),
            "frames_shed": guard.frames_shed,
            "stalls": guard.stalls, "stalled": guard.stalled_ns / 1e9,
            "frames_invalid": dict(requests.invalid), "undelivered": self.undelivered,
            "subscribers_forgotten": requests.known.forgotten_names(),
            "control_dropped": core.control.dropped + requests.replies_dropped,
            "heads_throttled": requests.heads.throttled, "requests_denied": requests.denied,
            **connection_counts(self.sender, self.server),
        }  # fmt: skip

    def _refused_by_key(self) -> int:
        return self.server.refused_by_key + self.sender.refused_by_key

    # ------------------------------------------------------------------------ closing

    def close(self, timeout_s: float, is_through: Callable[[], bool] | None = None) -> Verb[None]:
        """Accept nothing more, wait until all have everything, and bring the log to an end.

        Args:
            timeout_s: how long to wait.
            is_through: whether to wait no longer. Default: that every subscriber has said that it
                has everything.

        Raises:
            LogFailedError: not everything could be written to the log.

        """
        self._linger_ms = int(max(0.0, min(timeout_s, 1.0)) * 1000)
        if not self.closed_why:
            self._begin_close()
        through = is_through or (lambda: self.core.is_complete)
        deadline_ns = self.now_ns() + to_ns(timeout_s)
        yield Wait(lambda: through() and not self.outgoing.waits, deadline_ns)
        self._end()
        failure: LogFailedError | None = None
        try:
            yield Blocking(partial(self._alone, self._close_log))
        except LogFailedError as error:
            failure = error  # raised when the rest is said
        if self.undelivered:
            _log.warning("subscribers that had not got everything at close: %d", self.undelivered)
        self._check_logged(failure)

    def _begin_close(self) -> None:
        self.core.begin_close(now_ns=self.now_ns())
        self.closed_why = CLOSED  # last: an exception before it leaves the batches to be sealed

    def _end(self) -> None:
        """Take no more turns; count who has not got everything."""
        if not self._is_ended:
            self._is_ended = True
            # Who cannot take the frames that still wait is among those that are not complete.
            self.undelivered = max(self.core.requests.known.undelivered(), bool(self.core.outbox))

    def _check_logged(self, failure: LogFailedError | None) -> None:
        """Raise what failed."""
        if failure is not None:
            raise failure

    @abstractmethod
    def _close_log(self) -> None:
        """Close the log, if there is one and it is open; raises `LogFailedError`."""

    def shut(self) -> None:
        """Close all at once; where it was not closed before, what there is space for still goes."""
        if self._is_shut:
            return
        if not self.closed_why:
            with suppress(transports.TransportError):
                self._begin_close()
                self.outgoing.send_now()
        self._end()
        self._is_shut = True
        self.sender.close(linger_ms=self._linger_ms)
        self.server.close(linger_ms=self._linger_ms)
        try:
            self._alone(self._close_log)
        except LogFailedError as error:
            _log.error("%s: its log was closed, but %s", self.name, error)

    def abandon(self) -> None:
        """Be the closed copy of the parent's, in a forked child."""
        super().abandon()
        self._is_ended = self._is_shut = True
        self.core.abandon()


class ServingBase(BoundBase):
    """What the faces of publishers and relays share."""

    _name: str

    @property
    def recovery_endpoint(self) -> str:
        """Where repairs are asked for; subscribers learn it by themselves."""
        endpoint: str = self._peer.recovery_endpoint
        return endpoint

    @property
    def name(self) -> str:
        """Who publishes or relays, for people."""
        return self._name


def check_count(count: int, timeout: float | None) -> float | None:
    """Check the arguments of a call that waits for so many; return `timeout` in seconds."""
    whole("count", count, 0)
    return None if timeout is None else time_to_wait("timeout", timeout)
