"""Datagrams out and in, to and from a multicast group or one address.

The kernel does the cutting: a *train*, many datagrams of one size, goes out in one call
(`UDP_SEGMENT`) and comes in by one (`UDP_GRO`). Measured between two network namespaces, datagrams
of 1,400 bytes: 0.2 M/s one by one, 3.4 M/s in trains of 45. Where the kernel has neither, they go
one by one.
"""

import socket
import struct
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from transports.endpoint import Endpoint, as_endpoint
from transports.errors import ClosedError, EndpointError, TransportError
from transports.udp_socket import (
    DATAGRAM_BYTES_MAX,
    SO_RCVBUFFORCE,
    SO_RXQ_OVFL,
    SO_SNDBUFFORCE,
    UDP_GRO,
    UDP_SEGMENT,
    Address,
    bind_error,
    change_membership,
    datagram_bytes,
    make_socket,
    raise_buffer,
    resolve,
    set_outgoing,
)

SEGMENTS_MAX: Final = 64
"""What kernels before 6.? take in one call (`UDP_MAX_SEGMENTS`)."""
SEND_BUFFER_BYTES: Final = 4 * 2**20
ANSWER_BUFFER_BYTES: Final = 4 * 2**20
"""Room for what receivers send back at once, as after a loss that is common to a thousand of them,
and for what strangers send in addition."""
RECEIVE_BUFFER_BYTES: Final = 16 * 2**20
"""20 ms of what one Python process can take in; more only makes old news older."""
_BUFFER_BYTES: Final = 65_536
_ANCILLARY_BYTES: Final = 128
_SEGMENT: Final = struct.Struct("=H")
_INT: Final = struct.Struct("=i")
_UINT: Final = struct.Struct("=I")
_Send = Callable[..., int]
_Answer = tuple[bytes, list[tuple[int, int, bytes]], int, Address]


class Received(NamedTuple):
    """What one call brought: datagrams of `segment` bytes behind one another, the last shorter."""

    data: memoryview
    """Valid until the next call."""
    segment: int
    address: Address


class UdpSender:
    """Sends datagrams to one place, and gets what its receivers send back.

    Attributes:
        datagram_bytes: how large a datagram may be to go in one packet.
        segmenting: whether trains go to the kernel in one call.
        socket: the socket, for pollers only.
        buffer_bytes: how large the kernel's buffer for answers is, by its own count.
        kernel_drops: answers that the kernel dropped because that buffer was full.

    Raises:
        EndpointError: the endpoint is not well-formed, or its host or interface unknown.
        BindError: the socket could not be set up.

    """

    def __init__(
        self,
        endpoint: str | Endpoint,
        *,
        send_buffer_bytes: int = SEND_BUFFER_BYTES,
        answer_buffer_bytes: int = ANSWER_BUFFER_BYTES,
    ) -> None:
        """Open.

        Args:
            endpoint: where datagrams go.
            send_buffer_bytes: wanted for the kernel's send buffer. Default 4 MiB, sixty trains.
            answer_buffer_bytes: wanted for the kernel's receive buffer. Default 4 MiB; Linux grants
                at most `net.core.rmem_max` without privilege.

        """
        self._endpoint = as_endpoint(endpoint)
        if self._endpoint.is_wildcard or not self._endpoint.port:
            reason = "a sender needs an address and a port"
            raise EndpointError(str(self._endpoint), "host", reason)
        place = resolve(self._endpoint)
        self._place = place
        self._address = place.address
        self.datagram_bytes = datagram_bytes(place)
        self.socket = make_socket(place)
        try:
            set_outgoing(self.socket, place)
            raise_buffer(self.socket, socket.SO_SNDBUF, SO_SNDBUFFORCE, send_buffer_bytes)
            self.buffer_bytes = raise_buffer(
                self.socket, socket.SO_RCVBUF, SO_RCVBUFFORCE, answer_buffer_bytes
            )
            _set_if_known(self.socket, socket.SOL_SOCKET, SO_RXQ_OVFL)
            local = place.interface_address if place.family == socket.AF_INET else ""
            self.socket.bind((local, 0))
        except OSError as error:
            self.socket.close()
            raise bind_error(error, str(self._endpoint)) from error
        self.segmenting = _has_option(self.socket, UDP_SEGMENT)
        self._sendmsg: Callable[..., int] = self.socket.sendmsg
        self._sendto: _Send = self.socket.sendto
        self._recvmsg: Callable[..., _Answer] = self.socket.recvmsg
        self.unreachable = self.kernel_drops = 0
        self._drops_seen = 0

    @property
    def endpoint(self) -> str:
        """Where it sends to, as text."""
        return str(self._endpoint)

    @property
    def local_address(self) -> Address:
        """Where its datagrams come from, and answers go to."""
        address: Address = self.socket.getsockname()
        return address

    def fileno(self) -> int:
        """Return the descriptor, for pollers."""
        return self.socket.fileno()

    def send(self, datagram: bytes, address: Address | None = None) -> bool:
        """Send one datagram, to one receiver where `address` is given; False: no room."""
        try:
            self._sendto(datagram, address or self._address)
        except BlockingIOError:
            return False
        except OSError as error:
            self._failed(error)
        return True

    def send_train(self, pieces: Sequence[bytes], segment: int) -> bool:
        """Send what `pieces` make together, cut into datagrams of `segment` bytes; False: no room.

        At most `SEGMENTS_MAX` datagrams and 65,507 bytes. All but the last have the same size.
        """
        if not self.segmenting:
            return self._send_singly(pieces, segment)
        control = [(socket.IPPROTO_UDP, UDP_SEGMENT, _SEGMENT.pack(segment))]
        try:
            self._sendmsg(pieces, control, 0, self._address)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno in (5, 22, 90, 92, 95):  # EIO, EINVAL, EMSGSIZE: the device cannot
                self.segmenting = False
                return self._send_singly(pieces, segment)
            self._failed(error)
        return True

    def receive(self) -> tuple[bytes, Address] | None:
        """Return the next datagram sent back to us, and by whom; or None. It never waits."""
        while True:
            try:
                data, control, _, address = self._recvmsg(_BUFFER_BYTES, _ANCILLARY_BYTES)
                break
            except BlockingIOError:
                return None
            except ConnectionRefusedError:  # somebody to whom we sent is gone
                self.unreachable += 1
            except OSError as error:
                self._failed(error)
                return None
        for level, kind, value in control:
            if kind == SO_RXQ_OVFL and level == socket.SOL_SOCKET:
                (count,) = _UINT.unpack(value)
                self.kernel_drops += (count - self._drops_seen) % 2**32
                self._drops_seen = count
        return data, address

    def close(self, linger_ms: int = 0) -> None:
        """Close; what the kernel has been given leaves all the same."""
        self.socket.close()

    def _send_singly(self, pieces: Sequence[bytes], segment: int) -> bool:
        train = memoryview(b"".join(pieces))
        for at in range(0, len(train), segment):
            # A train that began to leave is through: what has no room is lost, and repaired.
            if not self.send(train[at : at + segment]) and not at:  # type: ignore[arg-type]
                return False
        return True

    def _failed(self, error: OSError) -> None:
        if self.socket.fileno() < 0:
            raise ClosedError(str(self._endpoint)) from error
        if isinstance(error, ConnectionRefusedError) or error.errno in (101, 113):
            self.unreachable += 1  # nobody listens (unicast), or the network is down: a loss
            return
        raise TransportError(f"{self._endpoint}: {error.strerror or error}") from error


class UdpReceiver:
    """Receives the datagrams of a group, or those that come to one address.

    Attributes:
        socket: the socket, for pollers only.
        back: the socket that answers are sent from, and what is for this receiver alone comes to:
            several processes of a machine may listen to one group, and so share its address.
        buffer_bytes: how large the kernel's buffer is, by its own count.
        buffer_wanted_bytes: what was asked for; Linux grants at most `net.core.rmem_max` without
            privilege.
        kernel_drops: datagrams that the kernel dropped because the buffer was full.

    """

    def __init__(
        self, endpoint: str | Endpoint, *, buffer_bytes: int = RECEIVE_BUFFER_BYTES
    ) -> None:
        """Open, unconnected: nothing comes before `connect`.

        Args:
            endpoint: the group and port, or an address of this machine.
            buffer_bytes: wanted for the kernel's buffer. Default 16 MiB.

        """
        self._endpoint = as_endpoint(endpoint).require_connectable()
        self._place = resolve(self._endpoint)
        self.socket = make_socket(self._place)
        self.back = make_socket(self._place)
        self.buffer_wanted_bytes = buffer_bytes
        self.kernel_drops = 0
        self._drops_seen = 0
        self._connected = False
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._views = [self._view]
        self.buffer_bytes = raise_buffer(
            self.socket, socket.SO_RCVBUF, SO_RCVBUFFORCE, buffer_bytes
        )
        _set_if_known(self.socket, socket.SOL_SOCKET, SO_RXQ_OVFL)
        _set_if_known(self.socket, socket.IPPROTO_UDP, UDP_GRO)
        self._recvmsg_into = self.socket.recvmsg_into

    @property
    def endpoint(self) -> str:
        """Where it listens, as text."""
        return str(self._endpoint)

    def fileno(self) -> int:
        """Return the descriptor, for pollers."""
        return self.socket.fileno()

    def connect(self) -> None:
        """Bind, and join the group.

        Raises:
            BindError: the address is not this machine's, or taken, or the group cannot be joined.

        """
        if self._connected:
            return
        place = self._place
        try:
            if place.is_multicast:
                # Several processes may listen to one group; the address keeps other groups out.
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.socket.bind(place.address)
            if place.is_multicast:
                change_membership(self.socket, place, join=True)
        except OSError as error:
            raise bind_error(error, str(self._endpoint)) from error
        self._connected = True

    def reconnect(self) -> None:
        """Leave the group and join it anew: a switch on the way may have forgotten us."""
        if not self._place.is_multicast or not self._connected:
            return
        for join in (False, True):
            try:
                change_membership(self.socket, self._place, join=join)
            except OSError:
                pass  # the interface is away; the next time

    def receive(self) -> Received | None:
        """Return what came, one datagram or a train; or None. It never waits."""
        while True:
            try:
                size, control, _, address = self._recvmsg_into(self._views, _ANCILLARY_BYTES)
                break
            except BlockingIOError:
                return None
            except ConnectionRefusedError:
                continue
            except OSError as error:
                if self.socket.fileno() < 0:
                    raise ClosedError(str(self._endpoint)) from error
                raise TransportError(f"{self._endpoint}: {error.strerror or error}") from error
        segment = size
        for level, kind, data in control:
            if level == socket.IPPROTO_UDP and kind == UDP_GRO:
                segment = _INT.unpack(data)[0]
            elif kind == SO_RXQ_OVFL and level == socket.SOL_SOCKET:
                self._note_drops(_UINT.unpack(data)[0])
        return Received(self._view[:size], segment or 1, address)

    def send(self, datagram: bytes, address: Address) -> None:
        """Send one datagram back to who sends to us; what has no room is lost."""
        try:
            self.back.sendto(datagram, address)
        except OSError as error:
            if self.back.fileno() < 0:
                raise ClosedError(str(self._endpoint)) from error

    def receive_back(self) -> tuple[bytes, Address] | None:
        """Return the next datagram that came for this receiver alone; or None. It never waits."""
        try:
            return self.back.recvfrom(_BUFFER_BYTES)
        except OSError as error:
            if self.back.fileno() < 0:
                raise ClosedError(str(self._endpoint)) from error
            return None

    def close(self) -> None:
        """Close; what is still queued is lost."""
        self.socket.close()
        self.back.close()

    def _note_drops(self, count: int) -> None:
        self.kernel_drops += (count - self._drops_seen) % 2**32
        self._drops_seen = count


def _has_option(made: socket.socket, option: int) -> bool:
    try:
        made.getsockopt(socket.IPPROTO_UDP, option)
    except OSError:
        return False
    return True


def _set_if_known(made: socket.socket, level: int, option: int) -> None:
    try:
        made.setsockopt(level, option, 1)
    except OSError:
        pass


__all__ = ["DATAGRAM_BYTES_MAX", "SEGMENTS_MAX", "Received", "UdpReceiver", "UdpSender"]
