"""Sends an engine's outbox into the subscribers' queues, or sheds it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from p2pmsg.errors import SendQueueFullError
from p2pmsg.publisher.control_queue import send_some
from recovery import StallGuard
from transports import DataSender

if TYPE_CHECKING:
    from p2pmsg.publisher.core import PublisherCore
    from p2pmsg.relay.core import RelayCore

UNSYNCED_MAX: Final = 64
"""So many frames may wait for the disk before a call that may wait does so, too."""
UNSENT_BYTES_MAX: Final = 16 * 2**20
"""Where calls never wait: with so many bytes that wait for space or for the disk, what comes is
refused. As many as a subscriber holds that is slow, and more than a caller should lose sight of
that does not wait now and then."""
UNSENT_FRAMES_MAX: Final = 4096
"""The same in frames: counting their bytes takes 80 µs."""
SLICE_NS: Final = 2_000_000
"""How long one call sends at most: others have their turn in between."""


class Outgoing:
    """Sends what is in the outbox, by the rule of `on_full`; it never waits.

    Args:
        core: the engine whose outbox it is.
        sender: where it goes.
        now_ns: the clock.

    Attributes:
        guard: how long full queues may hold the publisher up.
        has_more: whether `send_now` stopped only because its time was over.

    """

    def __init__(
        self, core: "PublisherCore | RelayCore", sender: DataSender, now_ns: Callable[[], int]
    ) -> None:
        self._core = core
        self._outbox = core.outbox
        self._sender = sender
        self._on_full = core.config.on_full
        self._now_ns = now_ns
        self.has_more = False
        self.guard = StallGuard(core.config.stall_timeout)
        self._control_guard = StallGuard(core.config.stall_timeout)

    @property
    def waits(self) -> bool:
        """Whether anything waits to be sent."""
        return bool(self._outbox)

    @property
    def holds_up(self) -> bool:
        """Whether a call that may wait is to do so until there is space."""
        is_held = self._on_full != "raise" and self.waits
        return is_held or len(self._core.unsynced) >= UNSYNCED_MAX

    def make_space(self, *, bounded: bool) -> None:
        """Before something is accepted: refuse it with `raise` while frames cannot leave.

        With `bounded` it is also refused while too much is there that cannot leave.

        Raises:
            SendQueueFullError: there is no space.

        """
        if self.waits and self._on_full == "raise" and not self.send_now() and not self.has_more:
            raise SendQueueFullError(f"{len(self._outbox)} frames wait for a slow subscriber")
        if bounded and (self._core.unsynced or self._outbox):
            self._check_bounds()

    def _check_bounds(self) -> None:
        unsynced = self._core.unsynced
        self.send_now()
        count = len(self._outbox) + len(unsynced)
        size = sum(map(len, self._outbox)) + sum(len(entry[2]) for entry in unsynced)
        if count >= UNSENT_FRAMES_MAX or size >= UNSENT_BYTES_MAX:
            raise SendQueueFullError(
                f"{count:,} frames with {size:,} bytes wait to be sent; await drain() before there "
                f"are {UNSENT_FRAMES_MAX:,} of them, or {UNSENT_BYTES_MAX:,} bytes"
            )

    def send_now(self) -> bool:
        """Send what there is space for, or shed it; False where frames remain."""
        outbox, now_ns = self._outbox, self._now_ns()
        self.has_more = False
        if not outbox:
            return True
        began_ns = now_ns
        while outbox:
            if self._sender.send(outbox[0]):
                self.guard.succeeded(now_ns=now_ns)
            elif self._must_stay():
                return False
            else:
                self._sender.send_shedding(outbox[0])
            outbox.popleft()
            now_ns = self._now_ns()
            if outbox and now_ns > began_ns + SLICE_NS:
                self.has_more = True
                return False
        self._core.on_sent(began_ns, now_ns)
        return True

    def send_control(self) -> None:
        """Send control frames that there is space for. See `send_some`."""
        self._core.control.use_connections(len(self._sender.connections))
        send_some(
            self._core.control,
            self._sender,
            self._control_guard,
            data_waits=self.waits,
            now_ns=self._now_ns(),
        )

    def retry_ns(self, now_ns: int) -> int:
        """Return when to try again what has no space."""
        return now_ns + SLICE_NS

    def _must_stay(self) -> bool:
        """Whether a frame without space waits in the outbox."""
        if self._on_full == "block":
            return self.guard.blocked(now_ns=self._now_ns()) > 0
        return self._on_full == "raise"
