"""The sending side of a simulated relay, driven as its threaded shell drives it."""

from typing import Final

from p2pmsg.config import PublisherConfig
from p2pmsg.publisher.control_queue import send_some
from p2pmsg.publisher.steps import run_steps
from p2pmsg.relay.core import RelayCore
from recovery import StallGuard
from transports import MemoryRecoveryServer, MemorySender

_REPLIES_PER_ROUND: Final = 64
_RETRY_NS: Final = 2_000_000
OUTBOX_MAX: Final = 64


class ServingSide:
    """What one incarnation sends by, and answers requests by.

    Args:
        core: the engine.
        sender, server: its sockets.
        config: its settings.

    """

    def __init__(
        self,
        core: RelayCore,
        sender: MemorySender,
        server: MemoryRecoveryServer,
        config: PublisherConfig,
    ) -> None:
        self._core = core
        self._sender, self._server = sender, server
        self._on_full = config.on_full
        self._guard = StallGuard(config.stall_timeout)
        self._control_guard = StallGuard(config.stall_timeout)

    def send_outbox(self, now_ns: int) -> bool:
        """Send what waits; False: some of it has to wait for a slow subscriber."""
        outbox = self._core.outbox
        while outbox:
            if self._sender.send(outbox[0]):
                self._guard.succeeded(now_ns=now_ns)
            elif self._must_wait(now_ns):
                return False
            else:
                self._sender.send_shedding(outbox[0])
            outbox.popleft()
        return True

    def pump(self, now_ns: int, wall_ns: int) -> None:
        """Do one round of I/O."""
        core, requests = self._core, self._core.requests
        if len(core.outbox) < OUTBOX_MAX:
            core.handle_timer(now_ns=now_ns)
            run_steps(core.expire_log(now_ns=now_ns, wall_ns=wall_ns))
        while (request := self._server.receive()) is not None:
            requests.receive(*request, now_ns=now_ns)
        self._send_replies(now_ns)
        self._sync(now_ns)
        self.send_outbox(now_ns)
        waits, guard = bool(core.outbox), self._control_guard
        send_some(core.control, self._sender, guard, data_waits=waits, now_ns=now_ns)

    def next_deadline_ns(self, now_ns: int) -> int:
        """Return when `pump` has something to do, though nothing came."""
        core = self._core
        due = [core.requests.next_deadline_ns(now_ns=now_ns)]
        if core.log is not None:
            due.append(core.log.next_deadline_ns(now_ns=now_ns))
        if core.outbox or core.control:
            due.append(now_ns + _RETRY_NS)
        if len(core.outbox) < OUTBOX_MAX:
            due.append(core.next_deadline_ns())
        return min((time_ns for time_ns in due if time_ns is not None), default=2**63)

    def _must_wait(self, now_ns: int) -> bool:
        """Whether a frame without space waits; otherwise the slow subscriber misses it."""
        if self._on_full == "block":
            return self._guard.blocked(now_ns=now_ns) > 0
        return self._on_full == "raise"

    def _send_replies(self, now_ns: int) -> None:
        requests = self._core.requests
        for _ in range(_REPLIES_PER_ROUND):
            reply = requests.next_reply(now_ns=now_ns)
            if reply is None:
                break
            if reply.is_in_log and not requests.read(reply):
                requests.refuse(reply)
                continue
            sent = self._server.reply(reply.requester, reply.frame)
            if sent:
                requests.reply_sent(reply, now_ns=now_ns)
            elif sent is None:
                requests.requester_gone(reply, now_ns=now_ns)
            else:
                requests.reply_blocked(reply, now_ns=now_ns)

    def _sync(self, now_ns: int) -> None:
        core, log = self._core, self._core.log
        due_ns = None if log is None else log.next_deadline_ns(now_ns=now_ns)
        if log is not None and due_ns is not None and due_ns <= now_ns and log.sync():
            core.frames_synced(len(core.unsynced))
