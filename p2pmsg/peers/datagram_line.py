"""A subscriber's line over UDP: from the socket into the core, and NACKs back."""

import select
from functools import partial
from typing import Final

import transports
from p2pmsg.multicast import datagram
from p2pmsg.peers.network import MACHINE, Network
from p2pmsg.subscriber.core import SubscriberCore
from p2pmsg.subscriber.group import MulticastReceiver, source_of_line
from p2pmsg.wire import REST, FrameError
from transports.own_log import own_log as _log

_TRAINS_PER_CALL: Final = 16
_SPACE_PART: Final = 4
"""The kernel counts twice what is asked for, and takes its own bookkeeping out of it: a train takes
1.1 times its bytes, a small datagram ten times."""


class DatagramLine:
    """Stands where a TCP line has its socket.

    `unread`: the last `take` ended before it had read all that had come.
    """

    unread = False

    def __init__(
        self,
        endpoint: transports.Endpoint,
        core: SubscriberCore,
        line: int,
        network: Network = MACHINE,
    ) -> None:
        assert core.multicast is not None
        self._core = core
        self._member: MulticastReceiver = core.multicast
        self._line = line
        self._network = network
        wanted = core.config.multicast.buffer_bytes
        self.udp = network.group_receiver(endpoint, buffer_bytes=wanted)
        self.connect, self.reconnect, self.fds = self.udp.connect, self.udp.reconnect, self.udp.fds
        poll = select.poll()
        for fd in self.fds():
            poll.register(fd, select.POLLIN)
        self._has_come = partial(poll.poll, 0)
        self._busy_wait = transports.BusyWait(core.config.busy_wait * 1e6, self._has_come)
        self._is_sealed = self._member.keys is not None
        self._member.buffer_bytes[line] = self.udp.buffer_bytes // _SPACE_PART
        if self.udp.buffer_bytes < wanted:
            _log.warning(
                "%s: the kernel grants a receive buffer of %d bytes where %d were asked for; "
                "raise net.core.rmem_max, or bursts will be dropped and asked for again",
                endpoint, self.udp.buffer_bytes, wanted,
            )  # fmt: skip

    @property
    def kernel_drops(self) -> int:
        """Datagrams that the kernel dropped for lack of space."""
        return self.udp.kernel_drops

    @property
    def buffer_bytes(self) -> int:
        """How large the kernel's buffer is."""
        return self.udp.buffer_bytes

    def unread_bytes(self) -> int:
        """Return how much has come and was not read yet, about, and at least 1.

        A quarter of the buffer may be the kernel's delay in counting.
        """
        return max(1, self.udp.queued_bytes() - self.udp.buffer_bytes // _SPACE_PART)

    def subscribe(self, prefix: bytes) -> None:
        """Do nothing: every datagram comes, and the core takes what it wants."""

    def unsubscribe(self, prefix: bytes) -> None:
        """Do nothing, as `subscribe`."""

    def take(self, *, shed: bool = False) -> int:
        """Give the core what has come, a bounded amount of it; returns how much it was."""
        core, udp = self._core, self.udp
        taken = 0
        self.unread = True
        for _ in range(_TRAINS_PER_CALL):
            received = udp.receive()
            if received is None:
                self.unread = False
                break
            taken += 1
            self._give(*received, shed=shed)
            if core.ready.entries and not shed:
                break  # somebody waits for it; the kernel keeps the rest
        while (answer := udp.receive_back()) is not None:
            taken += 1
            data, address = answer
            self._give(memoryview(data), len(data) or 1, address, shed=shed)
        if self._member.outgoing:
            self.flush()
        return taken

    def receive_awake(self) -> bytes | None:
        """Return a frame of the last stream that came alone; what else comes, the core gets.

        It looks for it a moment, as `transports.ZmqReceiver.receive_awake`.
        """
        if not self._has_come():
            if not self._busy_wait.begin():
                return None
            self._busy_wait.end()
        received = self.udp.receive()
        if received is None:
            self.take()
            return None
        data, segment, address = received
        stream, member = self._core.last_stream, self._member
        # With parity, every frame is to be remembered, which the core's way does.
        is_lone = segment == len(data) and not self._is_sealed and member.parity is None
        if stream is not None and is_lone:
            place, raw = source_of_line(stream.peer, self._line), data.obj
            assert isinstance(raw, bytearray)
            if place in (None, address) and raw.startswith(stream.prefix):
                try:
                    return datagram.open_known(data, len(stream.prefix) + REST.size)
                except FrameError as error:
                    self._core.reject(str(error))
                    return None
        self._give(*received)
        if member.outgoing:
            self.flush()
        return None

    def on_waited(self) -> None:
        """Note that something has come for which `receive_awake` looked in vain."""
        self._busy_wait.end()

    def flush(self) -> None:
        """Send what the core wants sent over this line."""
        outgoing = self._member.outgoing
        for _ in range(len(outgoing)):
            line, address, data = outgoing.popleft()
            if line == self._line:
                self.udp.send(data, address)
            else:
                outgoing.append((line, address, data))

    def close(self) -> None:
        """Close."""
        self.udp.close()

    def _give(self, data: memoryview, segment: int, address: object, *, shed: bool = False) -> None:
        """Give the core a train of datagrams."""
        self._core.receive_datagrams(
            self._line, data, segment, address, now_ns=self._network.now_ns(), shed=shed
        )
