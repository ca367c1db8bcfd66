"""What simulated peers do differently in a multicast: datagrams instead of connections."""

from collections.abc import Callable
from random import Random
from typing import Final

from p2pmsg.multicast.group_keys import GroupKeys
from p2pmsg.multicast.seal import CIPHERS
from p2pmsg.multicast.sender import MulticastSender
from p2pmsg.publisher.core import PublisherCore
from p2pmsg.subscriber.core import SubscriberCore
from p2pmsg.testing.memory_group import MemoryGroupReceiver, MemoryGroupSender
from p2pmsg.testing.network import FaultyNetwork

_REPAIRS_PER_ROUND: Final = 64


class GroupSending:
    """A simulated publisher's socket: to all, and from each of them."""

    def __init__(self, core: PublisherCore, endpoint: str, network: FaultyNetwork) -> None:
        self._core = core
        self._network = network
        rng = Random(network.rng.getrandbits(64))
        self.socket = MemoryGroupSender(network, endpoint, core.incarnation)
        keys = None
        now_ns = network.clock.now_ns
        if network.options.multicast in ("sealed", "signed"):
            address = self.socket.find_source()
            keys = GroupKeys(
                core.session, core.incarnation, rng.choice(CIPHERS), rng, now_ns=now_ns,
                signed=network.options.multicast == "signed", sources=lambda: [address],
            )  # fmt: skip
        size = self.socket.datagram_bytes
        self.multicast = MulticastSender(core, core.replay, core.config, size, rng, keys)
        core.use_multicast(self.multicast)
        if keys is not None:
            network.secrets.append(lambda: keys.group.secret)

    def send_outbox(self, now_ns: int) -> bool:
        """Send everything: a multicast has no queues that could be full."""
        outbox = self._core.outbox
        while outbox:
            for part in self.multicast.with_parity(bytes(outbox.popleft())):
                self._send(part)
        return True

    def send_control(self, now_ns: int) -> None:
        """Send all control frames."""
        for frame in self._core.control.drain():
            for part in self.multicast.with_parity(frame):
                self._send(part)

    def serve(self, now_ns: int) -> None:
        """Take what receivers sent, and send the repairs that are due."""
        while (answer := self.socket.receive()) is not None:
            self.multicast.receive(*answer, now_ns=now_ns)
        while self.multicast.hints:
            address, hint = self.multicast.hints.popleft()
            self.socket.send(self.multicast.datagram_of(hint), address)
        for _ in range(_REPAIRS_PER_ROUND):
            repair = self.multicast.next_repair(now_ns=now_ns)
            if repair is None:
                return
            for frame in repair.frames:
                self._send(frame)
            self.multicast.repair_sent(repair, now_ns=now_ns)

    def take_forged(self, data: bytes, now_ns: int) -> None:
        """Take a datagram that a stranger sent."""
        nacks = self.multicast.nacks
        self.socket.take_forged(data)
        self.serve(now_ns)
        self._network.answered_bytes += self.multicast.nacks - nacks

    def close(self) -> None:
        """Close the sockets."""
        self.socket.close()

    def _send(self, frame: bytes) -> None:
        self.socket.send(self.multicast.datagram_of(frame))


class GroupReceiving:
    """A simulated subscriber's socket, to one publisher's group."""

    def __init__(
        self, network: FaultyNetwork, name: str, line: int, endpoint: str, pump: Callable[[], None]
    ) -> None:
        self._line = line
        buffer_bytes = network.options.subscriber.multicast.buffer_bytes
        self.socket = MemoryGroupReceiver(network, endpoint, name, buffer_bytes=buffer_bytes)
        for one in self.socket.names:
            network.receivers[one] = pump
        self.socket.connect()
        self.take_forged, self.reconnect = self.socket.take_forged, self.socket.reconnect

    def take(self, core: SubscriberCore, now_ns: int, *, shed: bool) -> int:
        """Give the core what has come."""
        taken = 0
        while (shed or not core.is_full) and (received := self.socket.receive()) is not None:
            taken += 1
            core.receive_datagrams(self._line, *received, now_ns=now_ns, shed=shed)
        while (answer := self.socket.receive_back()) is not None:
            taken += 1
            data, address = answer
            core.receive_datagrams(
                self._line, memoryview(data), len(data) or 1, address, now_ns=now_ns, shed=shed
            )
        return taken

    def flush(self, core: SubscriberCore) -> None:
        """Send back what the core wants sent over this line."""
        assert core.multicast is not None
        outgoing = core.multicast.outgoing
        for _ in range(len(outgoing)):
            line, address, data = outgoing.popleft()
            if line == self._line:
                self.socket.send(data, address)
            else:
                outgoing.append((line, address, data))

    def subscribe(self, prefix: bytes) -> None:
        """Do nothing, as the real line."""

    def unsubscribe(self, prefix: bytes) -> None:
        """Do nothing, as the real line."""

    def close(self) -> None:
        """Close the sockets."""
        self.socket.close()
