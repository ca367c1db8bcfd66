"""A subscriber's line over UDP: from the socket into the core, and NACKs back."""

import select
import threading
import time
from functools import partial
from typing import Final

import transports
from p2pmsg.multicast import datagram
from p2pmsg.subscriber.core import SubscriberCore
from p2pmsg.subscriber.group import MulticastReceiver, source_of_line
from p2pmsg.wire import REST, FrameError
from transports.own_log import own_log as _log

_TRAINS_PER_CALL: Final = 16
_SPACE_PART: Final = 4
"""The kernel counts twice what is asked for, and takes its own bookkeeping out of it: a train takes
1.1 times its bytes, a small datagram ten times."""
_now_ns: Final = time.monotonic_ns


class DatagramLine:
    """Stands where a TCP line has its socket.

    `unread`: the last `take` ended before it had read all that had come.
    """

    unread = False

    def __init__(
        self, endpoint: transports.Endpoint, core: SubscriberCore, line: int, lock: threading.RLock
    ) -> None:
        assert core.multicast is not None
        self._core = core
        self._member: MulticastReceiver = core.multicast
        self._line = line
        self._lock = lock
        wanted = core.config.multicast.buffer_bytes
        self._udp = transports.UdpReceiver(endpoint, buffer_bytes=wanted)
        self.connect, self.reconnect = self._udp.connect, self._udp.reconnect
        self._poll = select.poll()
        self.sockets = (self._udp.socket, self._udp.back)
        for one in self.sockets:
            self._poll.register(one.fileno(), select.POLLIN)
        self._busy_wait = transports.BusyWait(
            core.config.busy_wait * 1e6, partial(self._poll.poll, 0)
        )
        self._is_sealed = self._member.keys is not None
        self._member.buffer_bytes[line] = self._udp.buffer_bytes // _SPACE_PART
        if self._udp.buffer_bytes < wanted:
            _log.warning(
                "%s: the kernel grants a receive buffer of %d bytes where %d were asked for; "
                "raise net.core.rmem_max, or bursts will be dropped and asked for again",
                endpoint, self._udp.buffer_bytes, wanted,
            )  # fmt: skip

    @property
    def kernel_drops(self) -> int:
        """Datagrams that the kernel dropped for lack of space."""
        return self._udp.kernel_drops

    @property
    def buffer_bytes(self) -> int:
        """How large the kernel's buffer is."""
        return self._udp.buffer_bytes

    def unread_bytes(self) -> int:
        """Return how much has come and was not read yet, about, and at least 1.

        A quarter of the buffer may be the kernel's delay in counting.
        """
        return max(1, self._udp.queued_bytes() - self._udp.buffer_bytes // _SPACE_PART)

    def subscribe(self, prefix: bytes) -> None:
        """Do nothing: every datagram comes, and the core takes what it wants."""

    def unsubscribe(self, prefix: bytes) -> None:
        """Do nothing, as `subscribe`."""

    def wait(self, timeout_ms: int) -> bool:
        """Wait until something has come."""
        self._busy_wait.begin()
        if not self._poll.poll(timeout_ms):
            return False
        self._busy_wait.end()
        return True

    def take(self, *, shed: bool = False) -> int:
        """Give the core what has come, a bounded amount of it; returns how much it was."""
        core, udp = self._core, self._udp
        taken = 0
        self.unread = True
        for _ in range(_TRAINS_PER_CALL):
            received = udp.receive()
            if received is None:
                self.unread = False
                break
            taken += 1
            with self._lock:
                self._give(*received, shed=shed)
            if core.ready.entries and not shed:
                break  # somebody waits for it; the kernel keeps the rest
        while (answer := udp.receive_back()) is not None:
            taken += 1
            with self._lock:
                data, address = answer
                self._give(memoryview(data), len(data) or 1, address, shed=shed)
        if self._member.outgoing:
            self.flush()
        return taken

    def receive_wait(self, timeout_ms: int) -> bytes | None:
        """Wait; return a frame of the last stream that came alone. What else comes, the core gets.

        It is for the fast path of `p2pmsg.sync.receiving`: what can be found out before the wait is
        found out there, for the caller does all the I/O meanwhile.
        """
        stream, member = self._core.last_stream, self._member
        prefix, body_at, place = b"", 0, None
        # With parity, every frame is to be remembered, which the core's way does.
        if stream is not None and not self._is_sealed and member.parity is None:
            prefix, place = stream.prefix, source_of_line(stream.peer, self._line)
            body_at = len(prefix) + REST.size
        if not self.wait(timeout_ms):
            return None
        received = self._udp.receive()
        if received is None:
            self.take()
            return None
        data, segment, address = received
        if body_at and segment == len(data) and (place is None or place == address):
            raw = data.obj
            assert isinstance(raw, bytearray)
            if raw.startswith(prefix):
                try:
                    return datagram.open_known(data, body_at)
                except FrameError as error:
                    self._core.invalid[str(error)] += 1
                    return None
        with self._lock:
            self._give(*received)
        if member.outgoing:
            self.flush()
        return None

    def flush(self) -> None:
        """Send what the core wants sent over this line."""
        outgoing = self._member.outgoing
        with self._lock:
            for _ in range(len(outgoing)):
                line, address, data = outgoing.popleft()
                if line == self._line:
                    self._udp.send(data, address)
                else:
                    outgoing.append((line, address, data))

    def close(self) -> None:
        """Close."""
        self._udp.close()

    def _give(self, data: memoryview, segment: int, address: object, *, shed: bool = False) -> None:
        """Give the core a train of datagrams; the lock is held."""
        self._core.receive_datagrams(
            self._line, data, segment, address, now_ns=_now_ns(), shed=shed
        )
