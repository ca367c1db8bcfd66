"""Both ends of a multicast in memory: datagrams to all, and back to who sent them.

A publisher's datagrams come from another port each time that it is started; so four bytes that
stand for it follow each of them, and what is sent back to that port.
"""

import struct
from collections.abc import Sequence
from typing import Any, Final

from p2pmsg.testing.network import FaultyNetwork
from transports.memory import (
    MemoryReceiver,
    MemoryRecoveryClient,
    MemoryRecoveryServer,
    MemorySender,
)

DATAGRAM_BYTES: Final = 400
"""Small, so that few messages make several datagrams and some make fragments."""
_BUFFER_DATAGRAMS: Final = 4096
"""How many datagrams a receive buffer holds at most; what does not fit is lost silently."""
_TRAIN_BYTES_MAX: Final = 60_000
PORT: Final = struct.Struct("!I")
Datagram = tuple[bytes, Any]
"""Its bytes, and where it comes from."""


def _answers_of(endpoint: str) -> str:
    return f"{endpoint}.answers"


class MemoryGroupSender:
    """The publisher's end; see `transports.base.GroupSender`.

    Args:
        network: carries the datagrams.
        endpoint: of the group, in memory.
        port: where they come from; never the same again.

    """

    datagram_bytes = DATAGRAM_BYTES
    kernel_drops = 0
    buffer_bytes = _BUFFER_DATAGRAMS * DATAGRAM_BYTES

    def __init__(self, network: FaultyNetwork, endpoint: str, port: int) -> None:
        self._address, self._port = f"{endpoint}/{port}", PORT.pack(port)
        sockets = network.sockets
        self._sender = MemorySender(endpoint, network=sockets, queue_frames=_BUFFER_DATAGRAMS)
        self._server = MemoryRecoveryServer(
            _answers_of(endpoint), network=sockets, queue_frames=_BUFFER_DATAGRAMS
        )

    @property
    def endpoint(self) -> str:
        """Where it sends to."""
        return self._sender.endpoint

    @property
    def answers(self) -> str:
        """The name of what receives what is sent back."""
        return self._server.endpoint

    def fileno(self) -> int:
        """Return -1: it has no descriptor."""
        return -1

    def find_source(self) -> Any:
        """Return the address that receivers see its datagrams come from."""
        return self._address

    def send(self, datagram: bytes, address: Any = None) -> bool:
        """Send one datagram, to one receiver where `address` is given; it never lacks space."""
        if address is None:
            self._sender.send_shedding(datagram + self._port)
        else:
            self._server.reply(address, datagram + self._port)
        return True

    def send_train(self, pieces: Sequence[bytes], segment: int) -> bool:
        """Send what `pieces` make together, cut into datagrams of `segment` bytes."""
        train = b"".join(pieces)
        for at in range(0, len(train), segment):
            self.send(train[at : at + segment])
        return True

    def receive(self) -> Datagram | None:
        """Return the next datagram sent back to us, and by whom; or None."""
        while found := self._server.receive_some(1):
            requester, data = found[0]
            if data.endswith(self._port):  # else its former incarnation had that port
                return data[: -PORT.size], requester
        return None

    def close(self, linger_ms: int = 0) -> None:
        """Close."""
        self._sender.close()
        self._server.close()


class MemoryGroupReceiver:
    """A subscriber's end; see `transports.base.GroupReceiver`.

    Args:
        network: carries the datagrams.
        endpoint: of the group, in memory.
        name: of its process's socket.
        buffer_bytes: how many bytes of datagrams wait at most; 4096 datagrams at most.

    Attributes:
        ports: of the addresses from which something has come.

    """

    kernel_drops = 0

    def __init__(
        self, network: FaultyNetwork, endpoint: str, name: str, *, buffer_bytes: int
    ) -> None:
        self.endpoint, self.buffer_bytes = endpoint, buffer_bytes
        self.ports: dict[Any, bytes] = {}
        self._next: Datagram | None = None
        self._receiver = MemoryReceiver(
            endpoint,
            network=network.sockets,
            queue_frames=max(1, min(_BUFFER_DATAGRAMS, buffer_bytes // DATAGRAM_BYTES)),
            name=name,
        )
        self._receiver.subscribe(b"")
        self._back = MemoryRecoveryClient(
            _answers_of(endpoint),
            network=network.sockets,
            queue_frames=_BUFFER_DATAGRAMS,
            name=f"{name}.back",
        )

    @property
    def names(self) -> tuple[str, str]:
        """The names of its two sockets."""
        return self._receiver.name, self._back.name

    def fds(self) -> tuple[int, ...]:
        """Return nothing: it has no descriptors."""
        return ()

    def connect(self) -> None:
        """Join the group."""
        self._receiver.connect()
        self._back.connect()

    def reconnect(self) -> None:
        """Miss what is on its way, as a new member of a group does."""
        self._receiver.reconnect()

    def receive(self) -> tuple[memoryview, int, Any] | None:
        """Return what came next, joined to a train as the kernel does it; or None."""
        if self._next is None and not self._receiver.waiting:  # mostly so
            return None
        first, self._next = self._next or self._take(self._receiver), None
        if first is None:
            return None
        train, address = [first[0]], first[1]
        segment = total = len(first[0])
        while len(train[-1]) == segment and total <= _TRAIN_BYTES_MAX:
            following = self._take(self._receiver)
            if following is None or following[1] != address or len(following[0]) > segment:
                self._next = following
                break
            train.append(following[0])
            total += len(following[0])
        return memoryview(b"".join(train)), segment or 1, address

    def receive_back(self) -> Datagram | None:
        """Return the next datagram that came for this receiver alone; or None."""
        return self._take(self._back) if self._back.has_message() else None

    def queued_bytes(self) -> int:
        """Return about how much has come and was not taken."""
        return (self._receiver.waiting + (self._next is not None)) * DATAGRAM_BYTES

    def send(self, datagram: bytes, address: Any) -> None:
        """Send one datagram back to a sender."""
        self._back.send(datagram + self.ports[address])

    def close(self, linger_ms: int = 0) -> None:
        """Close; what is still queued is lost."""
        self._receiver.close()
        self._back.close()

    def _take(self, socket: MemoryReceiver | MemoryRecoveryClient) -> Datagram | None:
        data = socket.receive()
        if data is None:
            return None
        port = data[-PORT.size :]
        address = f"{self.endpoint}/{PORT.unpack(port)[0]}"
        self.ports[address] = port
        return data[: -PORT.size], address
