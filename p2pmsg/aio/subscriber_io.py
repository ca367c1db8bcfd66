"""A subscriber's I/O in an event loop: rounds that never wait."""

import time
from typing import TYPE_CHECKING, Final

import transports
from p2pmsg.aio.loop import LoopDriver
from p2pmsg.subscriber.core import SubscriberCore
from p2pmsg.subscriber.sessions import Stream
from p2pmsg.sync.subscriber_io import NEVER_NS, SubscriberIO

if TYPE_CHECKING:
    from p2pmsg.sync.mold_line import MoldClient

_MS: Final = 1_000_000
_TURN_NS: Final = _MS
"""How long a turn reads at most, while other tasks wait."""
_REST_NS: Final = 2 * _MS
"""How long it rests after such a turn, where no task waits for messages."""
_IDLE_NS: Final = 200 * _MS
"""How late the check of connections, due ten times a second, may be while nothing is missing."""
_READS_ITSELF_NS: Final = 5 * _MS
"""So long after a task has looked at the sockets by itself, it is expected to do so again."""


class LoopSubscriberIO(SubscriberIO):
    """Reads when the loop says that there is something, or a task looks by itself.

    Attributes:
        driver: calls `turn`; None where another loop than asyncio's does.
        waiting: how many tasks wait for messages.
        pausing: how many let others run, and go on in the loop's next round.
        has_frame: whether a turn has seen a frame, which it leaves to a task that waits.
        is_empty: whether the last `check` found that there is nothing to read, and nothing due.

    """

    frames_per_round = 8
    driver: LoopDriver | None = None
    waiting = 0
    pausing = 0
    has_frame = False
    is_empty = False
    _has_waited = False
    _rests_until_ns = 0
    _checked_ns = 0

    def before_close(self, client: "transports.ZmqRecoveryClient | MoldClient") -> None:
        """Do not look at its descriptor any more: another one may get its number."""
        if self.driver is not None:
            self.driver.watch(self.fds())

    def do_commands(self) -> None:
        """Do them, and look again soon: what is sent takes ZeroMQ's signal."""
        super().do_commands()
        if self.driver is not None:
            self.driver.wake()

    def check(
        self, core: SubscriberCore, io: SubscriberIO, deadline_ns: int | None
    ) -> tuple[Stream, bytes] | None:
        """Return the frame that is there, if nothing else is to be done, and its stream.

        It is for `p2pmsg.sync.receiving.receive_frame`.
        """
        self.followed = None
        self.is_empty = False
        stream, receiver = core.last_stream, self.zmq_receiver
        if stream is None or receiver is None or self.only_receiver() is None:
            return None
        if core.ready.entries or self.stopping or self.wait_ms(None) <= 0:
            return None
        if core.cursor is not None and core.cursor.newcomers:
            return None
        self._checked_ns = self.last_round_ns
        data = receiver.receive_awake()
        if data is None:
            self.is_empty = self._has_waited = True
            return None
        if self._has_waited:
            receiver.on_waited()
            self._has_waited = False
        return stream, data

    def turn(self) -> float:
        """Do what there is to do, for 1 ms; return after how many seconds to come again."""
        now_ns = time.monotonic_ns()
        self.check_answers(now_ns)
        wait_ns = self._read(now_ns)
        self.watch_changes()
        return min(wait_ns, self.due_ns()) / 1e9

    def due_ns(self) -> int:
        """Return in how many ns a turn is due; each costs an idle process a third of a ms."""
        core = self._core
        due_ns = core.next_deadline_ns() - time.monotonic_ns()
        if not self._has_datagrams and core.gaps.next_deadline_ns() is None and not core.recovering:
            due_ns = max(due_ns, _IDLE_NS)
        return max(0, due_ns)

    def _sees_frame(self) -> bool:
        """Whether a task that waits can take a frame by itself, which is faster."""
        receiver = self.zmq_receiver
        if receiver is None or not self.takes_batches or self.interrupted:
            return False
        if self._core.ready.entries or self.only_receiver() is None:
            return False
        self.has_frame = self.has_input() and receiver.has_message()
        return self.has_frame

    def watch_changes(self) -> None:
        """Look at the descriptors that there are now."""
        if self.fds_changed and self.driver is not None:
            self.fds_changed = False
            self.driver.watch(self.fds())

    def _after_nothing(self) -> int:
        """Return how long nothing is to be read after nothing was, in ns.

        What is not read now must not keep the loop awake, so ZeroMQ's signals are taken. One of
        them may be of a frame that came after the read: nothing would signal it again.
        """
        core = self._core
        has_input = self.has_input()
        if core.is_full:
            return 5 * _MS
        if has_input and (self._has_frame() or (core.recovering and not core.replies_full)):
            return 0
        return NEVER_NS

    def _has_frame(self) -> bool:
        kind = transports.ZmqReceiver
        return any(one.has_message() for one in self._receivers if isinstance(one, kind))

    def _read(self, now_ns: int) -> int:
        """Read for a while; return how long nothing more is to be read, in ns."""
        core = self._core
        may_rest = self.driver is not None and not self.waiting and not self._has_datagrams
        if now_ns < core.next_deadline_ns():
            if self.pausing:
                return _REST_NS
            resting = max(self._rests_until_ns, self._checked_ns + _READS_ITSELF_NS)
            if self.waiting and self._sees_frame():
                return _REST_NS
            if may_rest and now_ns < resting:
                self.has_input()
                return resting - now_ns
        self._rests_until_ns = 0
        end_ns = now_ns + _TURN_NS
        while True:
            if not self.read(0):
                wait_ns = self._after_nothing()
                break
            if self.waiting and core.ready.entries:
                wait_ns = _REST_NS  # a task goes on, or another turn
                break
            if time.monotonic_ns() >= end_ns:
                wait_ns = 0
                if may_rest:
                    wait_ns = _REST_NS
                    self._rests_until_ns = time.monotonic_ns() + wait_ns
                break
        return wait_ns
