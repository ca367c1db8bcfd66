"""Datagrams out and in, to and from a multicast group or one address.

The kernel does the cutting: a *train*, many datagrams of one size, goes out in one call
(`UDP_SEGMENT`) and comes in by one (`UDP_GRO`). Measured between two network namespaces, datagrams
of 1,400 bytes: 0.2 M/s one by one, 3.4 M/s in trains of 45. Where the kernel has neither, they go
one by one.
"""

import errno
import fcntl
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from transports.base import RECEIVE_BUFFER_BYTES
from transports.binding import on_bound, on_closed, translate_bind
from transports.endpoint import Endpoint, as_endpoint, is_address
from transports.errors import ClosedError, EndpointError, TransportError
from transports.platform import (
    IP_MTU,
    IPV6_MTU,
    SIOCGIFADDR,
    SO_BINDTOIFINDEX,
    SO_MEMINFO,
    SO_RCVBUFFORCE,
    SO_RXQ_OVFL,
    SO_SNDBUFFORCE,
    UDP_GRO,
    UDP_SEGMENT,
)
from transports.trouble import Trouble, is_program_error

DATAGRAM_BYTES_MAX: Final = 65_507
"""The largest UDP payload over IPv4 (RFC 768 and 791)."""
_MTU_MAX: Final = 1500
"""Datagrams are made for Ethernet even where the interface would take more, as loopback does: what
is tried out on one machine then does the same on a network."""
_HEADERS_BYTES: Final = 48
"""IPv6 and UDP headers; with IPv4 they are 20 bytes shorter."""
SEGMENTS_MAX: Final = 64
"""What kernels before 6.? take in one call (`UDP_MAX_SEGMENTS`)."""
_SEND_BUFFER_BYTES: Final = 4 * 2**20
"""Sixty trains."""
_BUFFER_BYTES_MAX: Final = 2**31 - 1
"""The system takes the size of a buffer as an int."""
ANSWER_BUFFER_BYTES: Final = 4 * 2**20
"""Space for what receivers send back at once, as after a loss that is common to a thousand of them,
and for what unknown senders add."""
_BUFFER_BYTES: Final = 65_536
_ANCILLARY_BYTES: Final = 128
_MEMINFO_BYTES: Final = 36
_SEGMENT: Final = struct.Struct("=H")
_INT: Final = struct.Struct("=i")
_UINT: Final = struct.Struct("=I")
_NO_TRAINS: Final = {
    errno.EIO, errno.EINVAL, errno.EMSGSIZE, errno.ENOPROTOOPT, errno.EOPNOTSUPP,
}  # fmt: skip
"""The device cannot cut trains, or a datagram alone fails, too."""
_SET_AGAIN_NS: Final = 1_000_000_000
"""How often a socket that cannot send is set up again for an interface that may be a new one."""
Address = tuple[Any, ...]
"""(host, port), and for IPv6 flow and scope."""
_Answer = tuple[bytes, list[tuple[int, int, bytes]], int, Address]


class Received(NamedTuple):
    """What one call brought: consecutive datagrams of `segment` bytes, the last one shorter."""

    data: memoryview
    """Valid until the next call."""
    segment: int
    address: Address


class _UdpSocket:
    """A socket that does not block, and whose kernel counts what it dropped."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._place = _resolve(endpoint)
        self.socket = _make_socket(self._place)
        self.kernel_drops = self._drops_seen = 0

    @property
    def endpoint(self) -> str:
        """Where it sends to, or listens, as text."""
        return str(self._endpoint)

    def fileno(self) -> int:
        """Return the descriptor, for pollers."""
        return self.socket.fileno()

    def _on_drops(self, count: int) -> None:
        self.kernel_drops += (count - self._drops_seen) % 2**32
        self._drops_seen = count


class UdpSender(_UdpSocket):
    """Sends datagrams to one place, and gets what its receivers send back.

    Attributes:
        datagram_bytes: how large a datagram may be to go in one packet.
        segmenting: whether trains go to the kernel in one call.
        socket: the socket, for pollers only.
        buffer_bytes: how large the kernel's buffer for answers is, by its own count.
        kernel_drops: answers that the kernel dropped because that buffer was full.
        unsent: datagrams that the network did not take, and why. They are lost, as others are on
            the way. Datagrams to one receiver are counted, and not said: it may be gone.

    Raises:
        EndpointError: the endpoint is not well-formed, or its host or interface unknown.
        AddressError: the socket could not be set up.

    """

    def __init__(self, endpoint: str | Endpoint) -> None:
        """Open.

        Args:
            endpoint: where datagrams go.

        """
        parsed = as_endpoint(endpoint)
        if parsed.is_wildcard or not parsed.port:
            reason = "a sender needs an address and a port"
            raise EndpointError(str(parsed), "host", reason)
        if parsed.key:
            reason = "a key is pinned where one receives; a sender has the key of its own"
            raise EndpointError(str(parsed), "option", reason)
        if parsed.option("ttl") == "0" and not parsed.is_multicast:
            reason = "ttl 0 is for groups: to one address it is at least 1"
            raise EndpointError(str(parsed), "option", reason)
        super().__init__(parsed)
        place = self._place
        if place.family == socket.AF_INET and place.interface_index and not place.interface_address:
            reason = f"interface {parsed.option('interface')!r} has no IPv4 address to send from"
            raise EndpointError(str(parsed), "option", reason)
        self._address = place.address
        self.datagram_bytes = _datagram_bytes(place)
        try:
            _set_outgoing(self.socket, place)
            raise_buffer(self.socket, socket.SO_SNDBUF, SO_SNDBUFFORCE, _SEND_BUFFER_BYTES)
            _set_if_known(self.socket, socket.SOL_SOCKET, SO_RXQ_OVFL)
            self.buffer_bytes = raise_buffer(
                self.socket, socket.SO_RCVBUF, SO_RCVBUFFORCE, ANSWER_BUFFER_BYTES
            )
            # To a group the option of the interface decides, which may change with its address.
            self.socket.bind(("" if place.is_multicast else place.interface_address, 0))
        except OSError as error:
            self.socket.close()
            raise translate_bind(error, self._endpoint) from error
        self.segmenting = _has_option(self.socket, UDP_SEGMENT)
        self._sendmsg: Callable[..., int] = self.socket.sendmsg
        self._sendto: Callable[..., int] = self.socket.sendto
        self._recvmsg: Callable[..., _Answer] = self.socket.recvmsg
        self._set_ns = 0
        what = f"{parsed}: datagrams cannot be sent"
        self.unsent = Trouble(what, "these are lost, as on the way")

    @property
    def local_address(self) -> Address:
        """Where its datagrams come from, and answers go to."""
        address: Address = self.socket.getsockname()
        return address

    def find_source(self) -> Address | None:
        """Return the address that receivers see its datagrams come from; None: there is no way.

        Where it is bound to no address, interfaces and routes decide, and they may change.
        """
        local = self.local_address
        if local[0] not in ("0.0.0.0", "::"):
            return local
        try:
            with _probe(self._place) as probe:
                found: Address = probe.getsockname()
        except OSError:
            return None
        return (found[0], *local[1:])

    def send(self, datagram: bytes, address: Address | None = None) -> bool:
        """Send one datagram, to one receiver where `address` is given; False: no space.

        What the network does not take is lost, and counted in `unsent`.
        """
        try:
            self._sendto(datagram, address or self._address)
        except BlockingIOError:
            return False
        except OSError as error:
            self._not_sent(error, 1, address)
        else:
            if self.unsent.why and address is None:
                self.unsent.over()
        return True

    def send_train(self, pieces: Sequence[bytes], segment: int) -> bool:
        """Send what `pieces` make together, cut into datagrams of `segment` bytes; False: no space.

        At most `SEGMENTS_MAX` datagrams and 65,507 bytes. All but the last have the same size. What
        the network does not take is lost, and counted in `unsent`.
        """
        if not self.segmenting:
            return self._send_singly(pieces, segment)
        control = [(socket.IPPROTO_UDP, UDP_SEGMENT, _SEGMENT.pack(segment))]
        try:
            self._sendmsg(pieces, control, 0, self._address)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno in _NO_TRAINS:
                lost = self.unsent.count
                if not self._send_singly(pieces, segment):
                    return False
                self.segmenting = self.unsent.count != lost
                return True
            self._not_sent(error, -(-sum(map(len, pieces)) // segment))
        else:
            if self.unsent.why:
                self.unsent.over()
        return True

    def receive(self) -> tuple[bytes, Address] | None:
        """Return the next datagram sent back to us, and by whom; or None. It never waits."""
        while True:
            try:
                data, control, _, address = self._recvmsg(_BUFFER_BYTES, _ANCILLARY_BYTES)
                break
            except BlockingIOError:
                return None
            except OSError as error:
                _check_usable(self.socket, self._endpoint, error)
                if not isinstance(error, ConnectionRefusedError):  # who was sent to is gone
                    return None
        for level, kind, value in control:
            if kind == SO_RXQ_OVFL and level == socket.SOL_SOCKET:
                self._on_drops(_UINT.unpack(value)[0])
        return data, address

    def close(self, linger_ms: int = 0) -> None:
        """Close; what the kernel has been given leaves all the same."""
        self.socket.close()

    def _send_singly(self, pieces: Sequence[bytes], segment: int) -> bool:
        train = memoryview(b"".join(pieces))
        for at in range(0, len(train), segment):
            # A train that began to leave is through: what has no space is lost, and repaired.
            if not self.send(train[at : at + segment]) and not at:  # type: ignore[arg-type]
                return False
        return True

    def _not_sent(self, error: OSError, count: int, address: Address | None = None) -> None:
        """Count datagrams as lost; raises where the error is not the network's."""
        _check_usable(self.socket, self._endpoint, error)
        if address is not None:
            self.unsent.count += count
            return
        self.unsent.note(error, count)
        now_ns = time.monotonic_ns()
        if now_ns - self._set_ns >= _SET_AGAIN_NS:
            self._set_ns = now_ns
            with suppress(OSError, EndpointError):  # the interface is away; the next time
                self._set_again()

    def _set_again(self) -> None:
        """Send through the interface that has the name, or address, now: it may be another one."""
        place = _place_at(self._endpoint, self._place.family, self._place.address)
        _set_outgoing(self.socket, place)
        self._place, self._address = place, place.address


class UdpReceiver(_UdpSocket):
    """Receives the datagrams of a group, or those that come to one address.

    Attributes:
        socket: the socket, for pollers only.
        back: the socket that answers are sent from, and what is for this receiver alone comes to:
            several processes of a machine may listen to one group, and so share its address.
        buffer_bytes: how large the kernel's buffer is, by its own count.
        kernel_drops: datagrams that the kernel dropped because the buffer was full.
        unsent: answers that the network did not take, and why; they are lost.

    """

    def __init__(
        self, endpoint: str | Endpoint, *, buffer_bytes: int = RECEIVE_BUFFER_BYTES
    ) -> None:
        """Open, unconnected: nothing comes before `connect`.

        Args:
            endpoint: the group and port, or an address of this machine.
            buffer_bytes: wanted for the kernel's buffer. Default 16 MiB; Linux grants at most
                `net.core.rmem_max` without privilege.

        """
        super().__init__(as_endpoint(endpoint).require_connectable())
        self.back = _make_socket(self._place)
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
        place = str(self._endpoint)
        self.unsent = Trouble(f"{place}: answers cannot be sent by UDP", "these are lost")
        self._away = Trouble(
            f"{place}: the group cannot be joined again",
            "nothing is heard of it until its interface is back",
        )

    def connect(self) -> None:
        """Bind, and join the group.

        Raises:
            AddressError: the address is taken, or not this machine's, or no group that can be
                joined.

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
                _change_membership(self.socket, place, join=True)
        except OSError as error:
            raise translate_bind(error, self._endpoint) from error
        self._connected = True
        on_bound(self._endpoint)

    def reconnect(self) -> None:
        """Leave the group and join it again.

        A switch on the way may have forgotten us, or the interface may be another one of the same
        name, or address. While it is away, that is said, and it is tried again the next time.
        """
        if not self._place.is_multicast or not self._connected:
            return
        with suppress(OSError):  # the interface is away; the membership may be, too
            _change_membership(self.socket, self._place, join=False)
        try:
            place = _place_at(self._endpoint, self._place.family, self._place.address)
            if place.address != self._place.address:  # IPv6: the socket is bound to the former one
                self.socket.setsockopt(socket.SOL_SOCKET, SO_BINDTOIFINDEX, place.interface_index)
            self._place = place
            _change_membership(self.socket, place, join=True)
        except (OSError, EndpointError) as error:
            if getattr(error, "errno", None) != errno.EADDRINUSE:  # it is a member still
                self._away.note(error)
                return
        self._away.over()

    def receive(self) -> Received | None:
        """Return what came, one datagram or a train; or None. It never waits."""
        while True:
            try:
                size, control, _, address = self._recvmsg_into(self._views, _ANCILLARY_BYTES)
                break
            except BlockingIOError:
                return None
            except OSError as error:
                _check_usable(self.socket, self._endpoint, error)
                if not isinstance(error, ConnectionRefusedError):
                    return None
        segment = size
        for level, kind, data in control:
            if level == socket.IPPROTO_UDP and kind == UDP_GRO:
                segment = _INT.unpack(data)[0]
            elif kind == SO_RXQ_OVFL and level == socket.SOL_SOCKET:
                self._on_drops(_UINT.unpack(data)[0])
        return Received(self._view[:size], segment or 1, address)

    def fds(self) -> tuple[int, int]:
        """Return the descriptors of both sockets, for pollers."""
        return self.socket.fileno(), self.back.fileno()

    def queued_bytes(self) -> int:
        """Return how much of its buffer is in use, by the kernel's count.

        The kernel may give back space for what was read late, up to a quarter of the buffer.
        """
        try:
            found = self.socket.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, _MEMINFO_BYTES)
            return int(_UINT.unpack_from(found)[0])
        except (OSError, struct.error):
            return self.buffer_bytes

    def send(self, datagram: bytes, address: Address) -> None:
        """Send one datagram back to a sender; what has no space, or no way, is lost."""
        try:
            self.back.sendto(datagram, address)
        except BlockingIOError:
            pass
        except OSError as error:
            _check_usable(self.back, self._endpoint, error)
            self.unsent.note(error)
        else:
            if self.unsent.why:
                self.unsent.over()

    def receive_back(self) -> tuple[bytes, Address] | None:
        """Return the next datagram that came for this receiver alone; or None. It never waits."""
        try:
            return self.back.recvfrom(_BUFFER_BYTES)
        except OSError as error:
            if self.back.fileno() < 0:
                raise ClosedError(str(self._endpoint)) from error
            return None

    def close(self, linger_ms: int = 0) -> None:
        """Close; what is still queued is lost."""
        self.socket.close()
        if self._connected:
            self._connected = False
            on_closed(self._endpoint)
        self.back.close()


def _check_usable(used: socket.socket, endpoint: Endpoint, error: OSError) -> None:
    """Raise what a failed call means, unless it is the network's failure."""
    if used.fileno() < 0:
        raise ClosedError(str(endpoint)) from error
    if is_program_error(error):
        raise TransportError(f"{endpoint}: {error.strerror or error}") from error


def _has_option(made: socket.socket, option: int) -> bool:
    try:
        made.getsockopt(socket.IPPROTO_UDP, option)
    except OSError:
        return False
    return True


def _set_if_known(made: socket.socket, level: int, option: int) -> None:
    with suppress(OSError):
        made.setsockopt(level, option, 1)


@dataclass(frozen=True, slots=True)
class _Place:
    """A datagram endpoint with its names looked up."""

    family: socket.AddressFamily
    address: Address
    is_multicast: bool
    interface_index: int
    """0: the system's choice."""
    interface_address: str
    """IPv4 only; empty: the system's choice."""
    ttl: int | None
    """None: the system's choice, which for a group is 1."""
    loopback: bool


def _resolve(endpoint: Endpoint) -> _Place:
    """Look up the host and the interface of a datagram endpoint.

    Raises:
        EndpointError: the host or the interface is unknown, or they do not fit.

    """
    if not endpoint.is_datagram:
        reason = f"scheme {endpoint.scheme!r} is not one of UDP's"
        raise EndpointError(str(endpoint), "scheme", reason)
    host = {"*": "0.0.0.0"}.get(endpoint.host, endpoint.host).partition("%")[0]
    try:
        found = socket.getaddrinfo(host, endpoint.port, type=socket.SOCK_DGRAM)
    except OSError as error:
        reason = f"host {endpoint.host!r} is unknown ({error.strerror})"
        raise EndpointError(str(endpoint), "host", reason) from error
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)  # "localhost" means 127.0.0.1 first
    family, _, _, _, address = found[0]
    return _place_at(endpoint, family, address)


def _place_at(endpoint: Endpoint, family: socket.AddressFamily, address: Address) -> _Place:
    index, local = _interface(endpoint, family)
    if family == socket.AF_INET6 and index:
        address = (*address[:3], index)
    ttl = endpoint.option("ttl")
    return _Place(
        family,
        address,
        endpoint.is_multicast,
        index,
        local,
        int(ttl) if ttl else None,
        endpoint.option("loopback", "1") == "1",
    )


def _interface(endpoint: Endpoint, family: socket.AddressFamily) -> tuple[int, str]:
    """Return (index, IPv4 address) of the interface that the option names, or the zone of the host.

    Of one that is named by its IPv4 address the system finds the index.
    """
    zone, name = endpoint.host.partition("%")[2], endpoint.option("interface")
    if zone and name:
        reason = f"the zone {zone!r} names the interface: interface={name} is one too many"
        raise EndpointError(str(endpoint), "option", reason)
    if not zone and not name:
        return 0, ""
    is_ipv4 = family == socket.AF_INET
    if is_ipv4 and is_address(name):
        return 0, name
    try:
        # getaddrinfo takes names of interfaces for link-local addresses only.
        name = socket.if_indextoname(int(zone)) if zone.isdecimal() else zone or name
        return socket.if_nametoindex(name), _address_of(name) if is_ipv4 else ""
    except (OSError, OverflowError) as error:
        known = ", ".join(name for _, name in socket.if_nameindex())
        reason = f"interface {zone or name!r} cannot be used ({error}; known: {known})"
        raise EndpointError(str(endpoint), "option", reason) from error


def _address_of(name: str) -> str:
    """Return the IPv4 address of an interface; "": it has none, as before DHCP."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            request = struct.pack("256s", name.encode()[:15])
            return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)[20:24])
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
            return ""


def _make_socket(place: _Place) -> socket.socket:
    """Return a UDP socket of the right family that does not block."""
    made = socket.socket(place.family, socket.SOCK_DGRAM)
    made.setblocking(False)
    return made


@contextmanager
def _probe(place: _Place) -> Iterator[socket.socket]:
    """Yield a socket that is connected by the route that datagrams take; it raises `OSError`."""
    with _make_socket(place) as probe:
        _set_outgoing(probe, place)
        probe.connect(place.address)
        yield probe


def _set_outgoing(made: socket.socket, place: _Place) -> None:
    """Set through which interface, how far, and whether back to this machine datagrams go."""
    is_ipv4 = place.family == socket.AF_INET
    if not place.is_multicast:
        if place.ttl is not None and is_ipv4:
            made.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, place.ttl)
        elif place.ttl is not None:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS, place.ttl)
        return
    flag, ttl = int(place.loopback), 1 if place.ttl is None else place.ttl
    if is_ipv4:
        level = socket.IPPROTO_IP
        made.setsockopt(level, socket.IP_MULTICAST_TTL, ttl)
        made.setsockopt(level, socket.IP_MULTICAST_LOOP, flag)
        if place.interface_address:
            where = socket.inet_aton(place.interface_address)
            made.setsockopt(level, socket.IP_MULTICAST_IF, where)
    else:
        level = socket.IPPROTO_IPV6
        made.setsockopt(level, socket.IPV6_MULTICAST_HOPS, ttl)
        made.setsockopt(level, socket.IPV6_MULTICAST_LOOP, flag)
        made.setsockopt(level, socket.IPV6_MULTICAST_IF, place.interface_index)


def _change_membership(made: socket.socket, place: _Place, *, join: bool) -> None:
    """Join or leave the group."""
    if place.family == socket.AF_INET:
        group = socket.inet_aton(place.address[0])
        local = socket.inet_aton(place.interface_address or "0.0.0.0")
        request = struct.pack("=4s4si", group, local, place.interface_index)
        option = socket.IP_ADD_MEMBERSHIP if join else socket.IP_DROP_MEMBERSHIP
        made.setsockopt(socket.IPPROTO_IP, option, request)
    else:
        group = socket.inet_pton(socket.AF_INET6, place.address[0].partition("%")[0])
        request = struct.pack("=16si", group, place.interface_index)
        option = socket.IPV6_JOIN_GROUP if join else socket.IPV6_LEAVE_GROUP
        made.setsockopt(socket.IPPROTO_IPV6, option, request)


def raise_buffer(made: socket.socket, option: int, force: int | None, wanted_bytes: int) -> int:
    """Make a socket's buffer as large as may be; returns how large it is, in bytes of the kernel.

    Linux gives twice what is asked for and takes its own bookkeeping out of it.
    """
    wanted_bytes = min(wanted_bytes, _BUFFER_BYTES_MAX)
    try:
        if force is None:
            raise OSError("only Linux has it")
        made.setsockopt(socket.SOL_SOCKET, force, wanted_bytes)  # needs CAP_NET_ADMIN
    except OSError:
        with suppress(OSError):  # Linux gives net.core.?mem_max at most, macOS then refuses
            made.setsockopt(socket.SOL_SOCKET, option, wanted_bytes)
    return made.getsockopt(socket.SOL_SOCKET, option)


def raise_receive_buffer(made: socket.socket, wanted_bytes: int) -> int:
    """Make a socket's receive buffer as large as may be; see `raise_buffer`."""
    return raise_buffer(made, socket.SO_RCVBUF, SO_RCVBUFFORCE, wanted_bytes)


def _datagram_bytes(place: _Place) -> int:
    """Return how large a datagram to `place` may be, headers aside, to go in one packet."""
    is_ipv4, mtu = place.family == socket.AF_INET, _MTU_MAX
    level, option = (socket.IPPROTO_IP, IP_MTU) if is_ipv4 else (socket.IPPROTO_IPV6, IPV6_MTU)
    with suppress(OSError), _probe(place) as probe:  # no route yet: sending will say so
        mtu = probe.getsockopt(level, option)
    return max(576, min(mtu, _MTU_MAX)) - _HEADERS_BYTES
