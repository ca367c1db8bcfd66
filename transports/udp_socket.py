"""What all UDP sockets here have in common: addresses, interfaces, groups, buffers."""

import fcntl
import socket
import struct
from dataclasses import dataclass
from typing import Any, Final

from transports.endpoint import Endpoint
from transports.endpoint_options import is_address
from transports.errors import AddressInUseError, BindError, EndpointError

UDP_SEGMENT: Final = 103
UDP_GRO: Final = 104
SO_RXQ_OVFL: Final = 40
SO_SNDBUFFORCE: Final = 32
SO_RCVBUFFORCE: Final = 33
_IP_MTU: Final = 14
_IPV6_MTU: Final = 24
_SIOCGIFADDR: Final = 0x8915
_SIOCGIFMTU: Final = 0x8921
_EADDRINUSE: Final = 98
DATAGRAM_BYTES_MAX: Final = 65_507
"""The largest UDP payload over IPv4 (RFC 768 and 791)."""
MTU_MAX: Final = 1500
"""Datagrams are made for Ethernet even where the interface would take more, as loopback does: what
is tried out on one machine then does the same on a network."""
HEADERS_BYTES: Final = 48
"""IPv6 and UDP headers; with IPv4 they are 20 bytes shorter."""

Address = tuple[Any, ...]
"""(host, port), and for IPv6 flow and scope."""


@dataclass(frozen=True, slots=True)
class Place:
    """A datagram endpoint with its names looked up."""

    family: socket.AddressFamily
    address: Address
    is_multicast: bool
    interface_index: int
    """0: the system's choice."""
    interface_address: str
    """IPv4 only; empty: the system's choice."""
    ttl: int
    loopback: bool


def resolve(endpoint: Endpoint) -> Place:
    """Look up the host and the interface of a datagram endpoint.

    Raises:
        EndpointError: the host or the interface is unknown, or they do not fit.

    """
    if not endpoint.is_datagram:
        reason = f"scheme {endpoint.scheme!r} is not one of UDP's"
        raise EndpointError(str(endpoint), "scheme", reason)
    host = {"*": "0.0.0.0"}.get(endpoint.host, endpoint.host)
    try:
        found = socket.getaddrinfo(host, endpoint.port, type=socket.SOCK_DGRAM)
    except OSError as error:
        reason = f"host {endpoint.host!r} is unknown ({error.strerror})"
        raise EndpointError(str(endpoint), "host", reason) from error
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)  # "localhost" means 127.0.0.1 first
    family, _, _, _, address = found[0]
    index, local = _interface(endpoint, family)
    if family == socket.AF_INET6 and index:
        address = (*address[:3], index)
    return Place(
        family,
        address,
        endpoint.is_multicast,
        index,
        local,
        int(endpoint.option("ttl", "1")),
        endpoint.option("loopback", "1") == "1",
    )


def _interface(endpoint: Endpoint, family: socket.AddressFamily) -> tuple[int, str]:
    """Return (index, IPv4 address) of the interface that the endpoint names."""
    name = endpoint.option("interface")
    if not name:
        return 0, ""
    names = {known: index for index, known in socket.if_nameindex()}
    try:
        if not is_address(name):
            if name not in names:
                raise OSError(f"known: {', '.join(names)}")
            return names[name], _address_of(name) if family == socket.AF_INET else ""
        if (":" in name) == (family == socket.AF_INET6):
            index = next((i for known, i in names.items() if name in _addresses_of(known)), 0)
            if index or family == socket.AF_INET:
                return index, name if family == socket.AF_INET else ""
        raise OSError("no interface has this address")
    except OSError as error:
        reason = f"interface {name!r} cannot be used ({error})"
        raise EndpointError(str(endpoint), "option", reason) from error


def _ioctl(name: str, request: int) -> bytes:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        return fcntl.ioctl(probe.fileno(), request, struct.pack("256s", name.encode()[:15]))


def _address_of(name: str) -> str:
    return socket.inet_ntoa(_ioctl(name, _SIOCGIFADDR)[20:24])


def _addresses_of(name: str) -> set[str]:
    found: set[str] = set()
    try:
        found.add(_address_of(name))
    except OSError:
        pass
    try:
        with open("/proc/net/if_inet6") as table:
            for line in table:
                digits, _, _, _, _, owner = line.split()
                if owner == name:
                    found.add(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits)))
    except OSError:
        pass
    return found


def make_socket(place: Place) -> socket.socket:
    """Return a UDP socket of the right family that does not block."""
    made = socket.socket(place.family, socket.SOCK_DGRAM)
    made.setblocking(False)
    return made


def set_outgoing(made: socket.socket, place: Place) -> None:
    """Set through which interface, how far, and whether back to this machine datagrams go."""
    if not place.is_multicast:
        return
    flag = int(place.loopback)
    if place.family == socket.AF_INET:
        level = socket.IPPROTO_IP
        made.setsockopt(level, socket.IP_MULTICAST_TTL, place.ttl)
        made.setsockopt(level, socket.IP_MULTICAST_LOOP, flag)
        if place.interface_address:
            where = socket.inet_aton(place.interface_address)
            made.setsockopt(level, socket.IP_MULTICAST_IF, where)
    else:
        level = socket.IPPROTO_IPV6
        made.setsockopt(level, socket.IPV6_MULTICAST_HOPS, place.ttl)
        made.setsockopt(level, socket.IPV6_MULTICAST_LOOP, flag)
        made.setsockopt(level, socket.IPV6_MULTICAST_IF, place.interface_index)


def change_membership(made: socket.socket, place: Place, *, join: bool) -> None:
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


def raise_buffer(made: socket.socket, option: int, force: int, wanted_bytes: int) -> int:
    """Make a socket's buffer as large as may be; returns how large it is, in bytes of the kernel.

    Linux gives twice what is asked for and takes its own bookkeeping out of it.
    """
    try:
        made.setsockopt(socket.SOL_SOCKET, force, wanted_bytes)  # needs CAP_NET_ADMIN
    except OSError:
        made.setsockopt(socket.SOL_SOCKET, option, wanted_bytes)  # up to net.core.?mem_max
    return made.getsockopt(socket.SOL_SOCKET, option)


def bind_error(error: OSError, endpoint: str) -> BindError:
    """Return this package's error for `error`, met while opening the socket of `endpoint`."""
    kind = AddressInUseError if error.errno == _EADDRINUSE else BindError
    return kind(endpoint, error.strerror or str(error), error.errno)


def datagram_bytes(place: Place) -> int:
    """Return how large a datagram to `place` may be, headers aside, to go in one packet."""
    mtu = MTU_MAX
    try:
        if place.is_multicast and place.interface_index:
            name = socket.if_indextoname(place.interface_index)
            mtu = struct.unpack_from("i", _ioctl(name, _SIOCGIFMTU), 16)[0]
        else:
            with make_socket(place) as probe:
                probe.connect((place.address[0], place.address[1] or 9, *place.address[2:]))
                v4 = place.family == socket.AF_INET
                level, option = (
                    (socket.IPPROTO_IP, _IP_MTU) if v4 else (socket.IPPROTO_IPV6, _IPV6_MTU)
                )
                mtu = probe.getsockopt(level, option)
    except OSError:  # no route yet; sending will say so
        pass
    return max(576, min(mtu, MTU_MAX)) - HEADERS_BYTES
