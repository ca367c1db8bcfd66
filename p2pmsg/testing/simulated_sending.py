"""The sending side of a simulated publisher or relay, driven as the threaded shell drives it."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Final

from p2pmsg.config import PublisherConfig
from p2pmsg.publisher.control_queue import send_some
from p2pmsg.publisher.core import PublisherCore
from p2pmsg.publisher.steps import run_steps
from p2pmsg.relay.core import RelayCore
from p2pmsg.testing.network import MS, FaultyNetwork
from p2pmsg.testing.simulated_group import GroupSending
from recovery import StallGuard
from transports import MemoryRecoveryServer, MemorySender

_REPLIES_PER_ROUND: Final = 64
_RETRY_NS: Final = 2 * MS
OUTBOX_MAX: Final = 64
WALL_NS: Final = 1_700_000_000 * 10**9
"""What the simulated wall clock shows when the manual clock shows 0."""


class QueueSending:
    """The data path over connections: a bounded queue for each subscriber."""

    def __init__(
        self,
        core: PublisherCore | RelayCore,
        endpoint: str,
        config: PublisherConfig,
        network: FaultyNetwork,
    ) -> None:
        self._core = core
        self._on_full = config.on_full
        self._sender = MemorySender(
            endpoint,
            network=network.sockets,
            queue_frames=config.queue_frames,
            welcome=core.welcome,
        )
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

    def send_control(self, now_ns: int) -> None:
        """Send control frames as far as there is space."""
        waits, guard = bool(self._core.outbox), self._control_guard
        send_some(self._core.control, self._sender, guard, data_waits=waits, now_ns=now_ns)

    def close(self) -> None:
        """Close the socket; queued frames are lost."""
        self._sender.close()

    def _must_wait(self, now_ns: int) -> bool:
        """Whether a frame without space waits; otherwise the slow subscriber misses it."""
        if self._on_full == "block":
            return self._guard.blocked(now_ns=now_ns) > 0
        return self._on_full == "raise"


class ServingSide:
    """The sockets of one incarnation of a publisher or relay.

    They send, answer requests and sync the log.

    Args:
        core: the real core.
        endpoint: where subscribers connect to.
        recovery: where requests come in.
        config: its settings.
        network: carries the frames.
        pump: called when something has come.

    Attributes:
        group: its socket in a multicast, otherwise None.

    """

    def __init__(
        self,
        core: PublisherCore | RelayCore,
        endpoint: str,
        recovery: str,
        config: PublisherConfig,
        network: FaultyNetwork,
        pump: Callable[[], None],
    ) -> None:
        self._core = core
        self._server = MemoryRecoveryServer(
            recovery, network=network.sockets, queue_frames=config.queue_frames
        )
        self.group: GroupSending | None = None
        self._sending: QueueSending | GroupSending
        if network.options.multicast and isinstance(core, PublisherCore):
            self._sending = self.group = GroupSending(core, endpoint, network)
            network.receivers[self.group.socket.answers] = pump
        else:
            self._sending = QueueSending(core, endpoint, config, network)
        network.receivers[recovery] = pump

    def send_outbox(self, now_ns: int) -> bool:
        """Send what waits; False: some of it has to wait for a slow subscriber."""
        return self._sending.send_outbox(now_ns)

    def pump(self, now_ns: int) -> bool:
        """Do one round of I/O; return whether the log was synced."""
        requests = self._core.requests
        if len(self._core.outbox) < OUTBOX_MAX:
            self._core.handle_timer(now_ns=now_ns)
            wall_ns = WALL_NS + now_ns
            run_steps(self._core.expire_log(nullcontext(), now_ns=now_ns, wall_ns=wall_ns))
        while (request := self._server.receive()) is not None:
            requests.receive(*request, now_ns=now_ns)
        if self.group is not None:
            self.group.serve(now_ns)
        self._send_replies(now_ns)
        is_synced = self._sync(now_ns)
        self._sending.send_outbox(now_ns)
        self._sending.send_control(now_ns)
        return is_synced

    def next_deadline_ns(self, now_ns: int) -> int | None:
        """Return when `pump` has something to do; None: not before something comes."""
        core = self._core
        due = [core.requests.next_deadline_ns(now_ns=now_ns)]
        if core.log is not None:
            due.append(core.log.next_deadline_ns(now_ns=now_ns))
        if self.group is not None:
            due.append(self.group.multicast.next_repair_ns(now_ns=now_ns))
        if core.outbox or core.control:
            due.append(now_ns + _RETRY_NS)
        if len(core.outbox) < OUTBOX_MAX:
            due.append(core.next_deadline_ns())
        return min((time_ns for time_ns in due if time_ns is not None), default=None)

    def close(self) -> None:
        """Close the sockets; what is queued is lost."""
        self._sending.close()
        self._server.close()

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

    def _sync(self, now_ns: int) -> bool:
        core, log = self._core, self._core.log
        due_ns = None if log is None else log.next_deadline_ns(now_ns=now_ns)
        if log is None or due_ns is None or due_ns > now_ns or not log.sync(nullcontext()):
            return False
        core.frames_synced(len(core.unsynced))
        return True
