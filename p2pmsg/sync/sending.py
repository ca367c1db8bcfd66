"""Sends the core's outbox into the subscribers' queues, or sheds it."""

import time
from typing import TYPE_CHECKING

import transports
from p2pmsg.errors import SendQueueFullError
from p2pmsg.publisher.control_queue import send_some
from p2pmsg.publisher.core import PublisherCore
from recovery import StallGuard

if TYPE_CHECKING:
    from p2pmsg.relay.core import RelayCore

_MS = 1_000_000
UNSYNCED_MAX = 64
"""So many frames may wait for the disk before `publish` waits, too."""
UNSENT_BYTES_MAX = 16 * 2**20
"""Where `publish` never waits: with so many bytes that wait for space or for the disk it refuses
what comes. As many as a subscriber holds that is slow, and more than a caller should lose sight
of that does not wait now and then."""
UNSENT_FRAMES_MAX = 4096
"""The same in frames: counting their bytes takes 80 µs."""
_SLICE_MS = 5
"""A publisher that waits for space lets others have the lock this often."""


class Outgoing:
    """Sends what is in the outbox, by the rule of `on_full`; every call is made under the lock.

    Attributes:
        guard: how long full queues may hold the publisher up.
        has_more: whether `send_now` stopped only because its time was over: see `never_wait`.

    """

    def __init__(self, core: "PublisherCore | RelayCore", sender: transports.ZmqSender) -> None:
        self._core = core
        self._outbox = core.outbox
        self._sender = sender
        self._on_full = core.config.on_full
        self._held_up = False
        self._slice_ns: int | None = None
        self.has_more = False
        self.guard = StallGuard(core.config.stall_timeout)
        self._control_guard = StallGuard(core.config.stall_timeout)

    @property
    def waits(self) -> bool:
        """Whether anything waits to be sent."""
        return bool(self._outbox)

    def never_wait(self, slice_ns: int) -> None:
        """Wait for nothing in `send`, and send for so long at most in one call.

        What has no space stays in the outbox, which `make_space` bounds.
        """
        self._slice_ns = slice_ns

    def make_space(self) -> None:
        """Before something is accepted: refuse it with `raise` while frames cannot leave.

        Where `send` never waits, it is also refused while too much is there that cannot leave.
        """
        if self._outbox and self._on_full == "raise" and not self.send_now() and not self.has_more:
            raise SendQueueFullError(f"{len(self._outbox)} frames wait for a slow subscriber")
        if self._slice_ns is not None and (self._core.unsynced or self._outbox):
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
        """Send what there is space for, or shed it; False where frames remain. It never waits."""
        outbox, slice_ns = self._outbox, self._slice_ns
        self.has_more = False
        if not outbox:
            return True
        began_ns = now_ns = time.monotonic_ns()
        while outbox:
            if self._sender.send(outbox[0]):
                self._flows()
            elif self._must_stay():
                return False
            else:
                self._sender.send_shedding(outbox[0])
            outbox.popleft()
            now_ns = time.monotonic_ns()
            if slice_ns is not None and outbox and now_ns > began_ns + slice_ns:
                self.has_more = True
                return False
        self._core.on_sent(began_ns, now_ns)
        return True

    def send(self) -> bool:
        """Send all; with `block`, wait for space, a little at a time.

        False: it is to be called again, after the lock was left for a moment. The driver needs it
        then: it answers the others' NACKs.
        """
        if self._slice_ns is not None:
            return self.send_now()
        outbox, sender = self._outbox, self._sender
        began_ns = time.monotonic_ns() if outbox else 0
        while outbox:
            frame = outbox[0]
            if sender.send(frame):
                outbox.popleft()
                if self._held_up:
                    self._flows()
            elif self._on_full != "block":
                self.send_now()
                return True
            elif self._wait_for_space(frame):
                outbox.popleft()
            else:
                return False
        if began_ns:
            self._core.on_sent(began_ns, time.monotonic_ns())
        return len(self._core.unsynced) < UNSYNCED_MAX

    def send_control(self) -> None:
        """Send control frames that there is space for; it never waits. See `send_some`."""
        self._core.control.connections = len(self._sender.connections)
        send_some(
            self._core.control,
            self._sender,
            self._control_guard,
            data_waits=bool(self._outbox),
            now_ns=time.monotonic_ns(),
        )

    def _must_stay(self) -> bool:
        """Whether a frame without space waits in the outbox."""
        if self._on_full == "block":
            return self.guard.blocked(now_ns=time.monotonic_ns()) > 0
        return self._on_full == "raise"

    def _wait_for_space(self, frame: bytes | memoryview) -> bool:
        """Wait a little for space; True when the frame has been sent, or shed."""
        self._held_up = True
        wait_ns = self.guard.blocked(now_ns=time.monotonic_ns())
        if wait_ns <= 0:
            self._sender.send_shedding(frame)
            return True
        if self._sender.send(frame, wait_ms=max(1, min(_SLICE_MS, wait_ns // _MS))):
            self._flows()
            return True
        self.guard.waited(now_ns=time.monotonic_ns())
        return False

    def _flows(self) -> None:
        self._held_up = False
        self.guard.succeeded(now_ns=time.monotonic_ns())
