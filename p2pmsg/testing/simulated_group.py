"""What simulated peers do differently in a multicast: datagrams instead of connections.

A publisher's datagrams come from another port each time that it is started; so four bytes that
stand for it follow each of them, and what is sent back to that port.
"""

import struct
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, Final

from p2pmsg.multicast.group_keys import GroupKeys
from p2pmsg.multicast.seal import CIPHERS
from p2pmsg.multicast.sender import MulticastSender
from p2pmsg.publisher.core import PublisherCore
from p2pmsg.subscriber.core import SubscriberCore
from p2pmsg.testing.network import FaultyNetwork
from transports import MemoryReceiver, MemoryRecoveryClient, MemoryRecoveryServer, MemorySender

DATAGRAM_BYTES: Final = 400
"""Small, so that few messages make several datagrams and some make fragments."""
_BUFFER_DATAGRAMS: Final = 4096
"""The publisher's receive buffer; what does not fit is lost silently."""
_REPAIRS_PER_ROUND: Final = 64
_TRAIN_BYTES_MAX: Final = 60_000
STRANGER: Final = "a stranger"
"""The address of a peer that never joined."""
_FORGED_MAX: Final = 4096
_PORT: Final = struct.Struct("!I")
"""Of which incarnation of its publisher a datagram is."""


def _address_of(endpoint: str, port: int) -> str:
    return f"{endpoint}/{port}"


class GroupSending:
    """A simulated publisher's socket: to all, and from each of them."""

    def __init__(self, core: PublisherCore, endpoint: str, network: FaultyNetwork) -> None:
        self._core = core
        self._network = network
        rng = Random(network.rng.getrandbits(64))
        self._port = _PORT.pack(core.incarnation)
        keys = None
        now_ns = network.clock.now_ns
        if network.options.multicast in ("sealed", "signed"):
            address = _address_of(endpoint, core.incarnation)
            keys = GroupKeys(
                core.session, core.incarnation, rng.choice(CIPHERS), rng, now_ns=now_ns,
                signed=network.options.multicast == "signed", sources=lambda: [address],
            )  # fmt: skip
        self.multicast = MulticastSender(core, core.replay, core.config, DATAGRAM_BYTES, rng, keys)
        core.use_multicast(self.multicast)
        self._sender = MemorySender(
            endpoint, network=network.sockets, queue_frames=_BUFFER_DATAGRAMS
        )
        self.answers = f"{endpoint}.answers"
        self._server = MemoryRecoveryServer(
            self.answers, network=network.sockets, queue_frames=_BUFFER_DATAGRAMS
        )

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
        while (answer := self._server.receive()) is not None:
            requester, data = answer
            if not data.endswith(self._port):
                continue  # its former incarnation had that port
            data = data[: -_PORT.size]
            self.multicast.receive(data, requester, now_ns=now_ns)
        while self.multicast.hints:
            address, hint = self.multicast.hints.popleft()
            self._reply(address, hint)
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
        self.multicast.receive(data, STRANGER, now_ns=now_ns)
        self._network.answered_bytes += self.multicast.nacks - nacks

    def close(self) -> None:
        """Close the sockets."""
        self._sender.close()
        self._server.close()

    def _reply(self, address: Any, frame: bytes) -> None:
        if address == STRANGER:
            self._network.answered_bytes += len(frame)
            return
        made = self.multicast.datagram_of(frame)
        self._network.on_sealed(frame, made)
        self._server.reply(address, made + self._port)

    def _send(self, frame: bytes) -> None:
        made = self.multicast.datagram_of(frame)
        self._network.on_sealed(frame, made)
        self._sender.send_shedding(made + self._port)


class GroupReceiving:
    """A simulated subscriber's socket, to one publisher's group."""

    def __init__(
        self, network: FaultyNetwork, name: str, line: int, endpoint: str, pump: Callable[[], None]
    ) -> None:
        self._line = line
        self._endpoint = endpoint
        self._ports: dict[Any, bytes] = {}
        self._address = self._on_port(_PORT.pack(1))
        self._network = network
        self._forged: deque[tuple[bytes, Any]] = deque(maxlen=_FORGED_MAX)
        self._receiver = MemoryReceiver(
            endpoint,
            network=network.sockets,
            queue_frames=network.options.buffer_datagrams,
            name=name,
        )
        self._receiver.subscribe(b"")
        self._client = MemoryRecoveryClient(
            f"{endpoint}.answers",
            network=network.sockets,
            queue_frames=_BUFFER_DATAGRAMS,
            name=f"{name}.back",
        )
        network.receivers[name] = pump
        network.receivers[f"{name}.back"] = pump
        self._receiver.connect()
        self._client.connect()

    def take_forged(self, data: bytes, *, spoofed: bool) -> None:
        """Take a datagram that a stranger sent, with the publisher's address where `spoofed`."""
        self._forged.append((data, self._address if spoofed else STRANGER))

    def take(self, core: SubscriberCore, now_ns: int, *, shed: bool) -> int:
        """Give the core what has come, joined to trains as the kernel does it."""
        taken = 0
        while self._forged and (shed or not core.is_full):
            forged, address = self._forged.popleft()
            taken += 1
            view = memoryview(forged)
            core.receive_datagrams(self._line, view, len(view), address, now_ns=now_ns, shed=shed)
        train: list[bytes] = []
        while shed or not core.is_full:
            data = self._receive(self._receiver)
            if data is None:
                break
            taken += 1
            if train and (
                self._address != address
                or len(train[-1]) < len(train[0])
                or len(data) > len(train[0])
                or sum(map(len, train)) > _TRAIN_BYTES_MAX
            ):
                self._give(core, train, address, now_ns, shed)
                train = []
            address = self._address
            train.append(data)
        if train:
            self._give(core, train, address, now_ns, shed)
        while (data := self._receive(self._client)) is not None:
            taken += 1
            self._give(core, [data], self._address, now_ns, shed)
        return taken

    def flush(self, core: SubscriberCore) -> None:
        """Send back what the core wants sent over this line."""
        assert core.multicast is not None
        outgoing = core.multicast.outgoing
        for _ in range(len(outgoing)):
            line, address, data = outgoing.popleft()
            if line == self._line and address == STRANGER:
                self._network.answered_bytes += len(data)
            elif line == self._line:
                self._client.send(data + self._ports[address])
            else:
                outgoing.append((line, address, data))

    def reconnect(self) -> None:
        """Miss what is on its way, as a new member of a group does."""
        self._receiver.reconnect()

    def subscribe(self, prefix: bytes) -> None:
        """Do nothing, as the real line."""

    def unsubscribe(self, prefix: bytes) -> None:
        """Do nothing, as the real line."""

    def close(self) -> None:
        """Close the sockets."""
        self._receiver.close()
        self._client.close()

    def _receive(self, socket: MemoryReceiver | MemoryRecoveryClient) -> bytes | None:
        """Return the next datagram, and note where it comes from."""
        data = socket.receive()
        if data is None:
            return None
        self._address = self._on_port(data[-_PORT.size :])
        return data[: -_PORT.size]

    def _on_port(self, port: bytes) -> str:
        address = _address_of(self._endpoint, *_PORT.unpack(port))
        self._ports[address] = port
        return address

    def _give(
        self, core: SubscriberCore, train: list[bytes], address: Any, now_ns: int, shed: bool
    ) -> None:
        data = memoryview(b"".join(train))
        core.receive_datagrams(self._line, data, len(train[0]), address, now_ns=now_ns, shed=shed)
