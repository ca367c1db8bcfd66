"""To which addresses requests may go: not into private networks, whatever a name resolves to.

A webhook's URL is often given by somebody else. Without a check on the address that is connected to
it reaches what only this machine can: loopback, the private network, a cloud's metadata service.
"""

import ipaddress
import socket
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final
from urllib.parse import unquote

from p2pmsg.errors import ConfigError

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_WITH_IPV4: Final = (
    (IPv6Network("::/96"), 0),  # IPv4-compatible
    (IPv6Network("::ffff:0:0/96"), 0),  # IPv4-mapped
    (IPv6Network("::ffff:0:0:0/96"), 0),  # IPv4-translated (SIIT)
    (IPv6Network("64:ff9b::/96"), 0),  # NAT64
    (IPv6Network("2002::/16"), 80),  # 6to4
)
"""Prefixes of IPv6 addresses that hold an IPv4 address, and how many bits follow it."""
_FORBIDDEN: Final = tuple(
    map(
        ipaddress.ip_network,
        (
            "0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.88.99.0/24", "198.18.0.0/15",
            "240.0.0.0/4", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32",
            "3fff::/20", "5f00::/16", "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8",
        ),
    )
)  # fmt: skip
"""In addition to what `ipaddress` calls not global, which differs between versions of Python."""


def parse_networks(texts: Iterable[str]) -> list[Network]:
    """Return networks such as `10.1.0.0/16`; `ConfigError` where one is none."""
    found = []
    for text in [texts] if isinstance(texts, str) else texts:
        try:
            found.append(ipaddress.ip_network(text))
        except ValueError:
            raise ConfigError("allow", "networks such as 10.1.0.0/16", text) from None
    return found


def check_address(text: str, allowed: Sequence[Network] = ()) -> None:
    """Raise `PermissionError` where no connection may be made to an address.

    Args:
        text: the address, as the system's resolver returned it, or as it stands in a URL.
        allowed: networks to which connections may be made although they are private.

    """
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        raise PermissionError(f"{text!r} is no address") from None
    inner: Address = address
    for network, shift in _WITH_IPV4:
        if address in network:
            inner = IPv4Address(int(address) >> shift & 0xFFFF_FFFF)
    if any(inner in network or address in network for network in allowed):
        return
    if not _is_public(inner):
        shown = text if inner == address else f"{text} ({inner})"
        raise PermissionError(f"{shown} is no public address; allow its network to send there")


def address_of(host: str) -> str | None:
    """Return the address that a URL's host is, or None where it is a name.

    It may be spelled in any way that the system's resolver reads: `127.1`, `2130706433`,
    `0x7f000001`, `017700000001`.

    Args:
        host: without port and brackets.

    """
    try:
        found = socket.getaddrinfo(unquote(host).rstrip("."), None, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        return None  # it is checked at each connection, whatever it stands for then
    return str(found[0][4][0])


def _is_public(address: Address) -> bool:
    if not address.is_global or address.is_multicast or address.is_reserved:
        return False
    return not any(address in network for network in _FORBIDDEN)
