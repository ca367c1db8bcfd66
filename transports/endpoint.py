"""Endpoints: the only place where their text is parsed.

- `tcp://HOST:PORT`. HOST is a name, an IPv4 address, an IPv6 address in brackets, or `*` (every
  interface). PORT is 0 to 65535; 0, or `*`, lets the system pick one when binding.
- `ipc://PATH`, a Unix-domain socket. A PATH that begins with `@` is in Linux's abstract space.
- `inproc://NAME`, between the threads of one process.
- `udp://HOST:PORT?interface=…&ttl=…&loopback=…`, datagrams to a multicast group or to one address.
- `mold://HOST:PORT?interface=…&request=HOST:PORT`, the same with the framing of MoldUDP64.
- `memory://NAME`, between the parts of one simulation (`transports.memory`).

The options of datagrams, after the `?`:

=============  =========================  ======================================================
option         value                      meaning
=============  =========================  ======================================================
``interface``  name or IPv4 address       where a group is joined, and where datagrams leave
``ttl``        0 to 255                   how many routers they may pass; 1: none. Default: 1 to a
                                          group; to one address the system's, which has to be 1
                                          at least where it is given
``loopback``   0 or 1, default 1          whether processes on this machine get them, too
``request``    HOST:PORT, several times   mold only: where what was missed is asked for
``topic``      name, default "mold"       mold only: the topic that its messages get
``key``        KEY                        udp only: see below; of the group's publisher
=============  =========================  ======================================================

`tcp` and `ipc` have one option, which `udp` has, too: `?key=KEY` is the public key that the peer
there has to hold, 43 characters of base64url. It is for connecting only, and never part of what
ZeroMQ gets.
"""

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NoReturn, Self

from transports.errors import EndpointError
from transports.platform import IPC_PATH_BYTES_MAX, IS_LINUX

if TYPE_CHECKING:
    from ipaddress import IPv6Address

SCHEMES: Final = ("tcp", "ipc", "inproc", "memory", "udp", "mold")
DATAGRAM_SCHEMES: Final = ("udp", "mold")
PORT_MAX: Final = 65535
NAME_BYTES_MAX: Final = 255
"""ZeroMQ keeps an endpoint in 256 bytes."""
HOST_CHARACTERS_MAX: Final = 253
"""The longest name that DNS carries."""

_WILDCARD_HOSTS: Final = frozenset({"*", "0.0.0.0", "::"})
_SCHEME: Final = re.compile(r"([A-Za-z0-9+.\-]*)://(.*)", re.DOTALL)
_TCP: Final = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(?::(.*))?", re.DOTALL)
_LABEL: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_\-]{0,61}[A-Za-z0-9_])?")
_DIGITS_AND_DOTS: Final = re.compile(r"[0-9.]+")
_BYTE: Final = r"(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4: Final = re.compile(rf"{_BYTE}(?:\.{_BYTE}){{3}}")
"""What `ipaddress.IPv4Address` takes. That module is imported for IPv6 only: it has 0.3 MB."""
_IPV4_GROUP: Final = re.compile(r"2(?:2[4-9]|3[0-9])\.")
_OPTIONS: Final = {
    "tcp": ("key",),
    "ipc": ("key",),
    "udp": ("interface", "ttl", "loopback", "key"),
    "mold": ("interface", "ttl", "loopback", "request", "topic"),
}
_VALUES: Final = {
    "interface": (r"[A-Za-z0-9_.:@%\-]{1,64}", "is neither a name nor an address"),
    "ttl": (_BYTE, "is not a number from 0 to 255"),
    "loopback": (r"[01]", "is neither 0 nor 1"),
    "request": (
        r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.\-]+):[0-9]{1,5}",
        "is not of the form HOST:PORT",
    ),
    "topic": (
        r"[A-Za-z0-9_.\-]{1,64}",
        "is not of 1 to 64 letters, digits, '.', '_' or '-'",
    ),
}
_KEY: Final = re.compile(r"[A-Za-z0-9_\-]{42}[AEIMQUYcgkosw048]")
"""32 bytes in base64url: the last of 43 characters has but four bits of them."""
_A_KEY: Final = "43 characters of base64url that are 32 bytes"
_SHOWN_MAX: Final = 32
"""Characters of an option, or its value, that an error shows: a key has more."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a socket binds or connects. Made by `parse_endpoint`; `str()` gives the text back."""

    scheme: str
    """One of `SCHEMES`."""

    host: str = ""
    """tcp, udp, mold: lower-case name or address; an IPv6 address stands without its brackets."""

    port: int = 0
    """tcp, udp, mold: 0 to 65535. Default 0: the system picks one when binding."""

    path: str = ""
    """The path of an ipc endpoint, the name of an inproc or memory endpoint."""

    options: tuple[tuple[str, str], ...] = ()
    """What comes after the `?`, checked."""

    def __str__(self) -> str:
        options = "&".join(f"{name}={value}" for name, value in self.options)
        return f"{self.address}{'?' if options else ''}{options}"

    @property
    def address(self) -> str:
        """The text without the options."""
        if not self.has_port:
            return f"{self.scheme}://{self.path}"
        host = f"[{self.host}]" if self.is_ipv6 else self.host
        return f"{self.scheme}://{host}:{self.port}"

    @property
    def key(self) -> str:
        """The public key that the peer there has to hold, as text; "" where none is pinned."""
        return self.option("key")

    @property
    def has_port(self) -> bool:
        """Whether it is made of a host and a port."""
        return self.scheme == "tcp" or self.is_datagram

    @property
    def is_datagram(self) -> bool:
        """Whether what goes there goes by UDP."""
        return self.scheme in DATAGRAM_SCHEMES

    @property
    def is_multicast(self) -> bool:
        """Whether the host is the address of a multicast group."""
        if _IPV4.fullmatch(self.host) is not None:
            return _IPV4_GROUP.match(self.host) is not None
        found = _ipv6(self.host)
        return found is not None and found.is_multicast

    def option(self, name: str, default: str = "") -> str:
        """Return the value of an option; of one that is given several times, the last."""
        return dict(self.options).get(name, default)

    @property
    def is_ipv6(self) -> bool:
        """Whether the host is an IPv6 address, not a name that may lead to one."""
        return ":" in self.host

    @property
    def is_wildcard(self) -> bool:
        """Whether the host means every interface, hence fits binding only."""
        return self.has_port and self.host in _WILDCARD_HOSTS

    @property
    def is_abstract(self) -> bool:
        """Whether this is an ipc endpoint without a file, in Linux's abstract name space."""
        return self.scheme == "ipc" and self.path.startswith("@")

    def without_key(self) -> Self:
        """Return this endpoint without the option `key`."""
        if not self.options:
            return self
        return replace(self, options=tuple(one for one in self.options if one[0] != "key"))

    def with_port(self, port: int) -> Self:
        """Return this endpoint with another port; `EndpointError` if it cannot have that one."""
        if not self.has_port:
            _refuse(str(self), "port", f"an {self.scheme} endpoint has no port: cannot set {port}")
        return replace(self, port=port)

    def with_host(self, host: str) -> Self:
        """Return this endpoint with another host; an IPv6 address may stand without brackets.

        The usual use is to give out a wildcard endpoint under a name that others can reach.

        Raises:
            EndpointError: `host` is not well-formed, or the endpoint has no host.

        """
        if not self.has_port:
            _refuse(str(self), "host", f"an {self.scheme} endpoint has no host: cannot set {host}")
        bracketed = f"[{host}]" if ":" in host and not host.startswith("[") else host
        return replace(self, host=_parse_host(f"tcp://{bracketed}:{self.port}", bracketed))

    def reached_by(self, host: str) -> Self:
        """Return what a peer announced as it is connected to from here.

        Args:
            host: by which that peer is reached. A wildcard stands for it; and a zone is its zone,
                since one is of no use to another host (RFC 4007).

        """
        if self.is_wildcard:
            return self.with_host(host)
        address, has_zone, _ = self.host.partition("%")
        zone = host.partition("%")[2]
        return self.with_host(f"{address}%{zone}") if has_zone and zone else self

    def require_connectable(self) -> Self:
        """Return the endpoint itself if one can connect to it.

        Raises:
            EndpointError: the host is a wildcard or the port is 0, which mean something only to
                the side that binds.

        """
        if self.is_wildcard and not self.is_datagram:  # there, a subscriber binds the address
            _refuse(str(self), "host", f"cannot connect to the wildcard host {self.host!r}")
        if self.has_port and self.port == 0:
            _refuse(str(self), "port", "cannot connect to port 0")
        return self


def parse_endpoint(text: str) -> Endpoint:
    """Parse an endpoint such as `"tcp://127.0.0.1:5555"`, `"ipc:///run/feed"`, `"inproc://feed"`.

    Raises:
        EndpointError: `text` is not a str or not well-formed; the error names the part and value.

    """
    if not isinstance(text, str):
        _refuse(text, "endpoint", f"an endpoint is a str, not {type(text).__name__},")
    if text != text.strip():
        _refuse(text, "endpoint", "white space around the endpoint")
    match = _SCHEME.fullmatch(text)
    if match is None or not match[1]:
        _refuse(text, "scheme", f"missing scheme (known: {', '.join(SCHEMES)})")
    scheme, rest = match[1], match[2]
    if scheme == "tcp":
        place, question, options = rest.partition("?")
        where = _parse_tcp(text, place)
        return replace(where, options=_parse_options(text, scheme, options)) if question else where
    if scheme in DATAGRAM_SCHEMES:
        if not IS_LINUX:
            _refuse(text, "scheme", f"{scheme}:// needs Linux")
        place, question, options = rest.partition("?")
        where = _parse_tcp(text, place)
        known = _parse_options(text, scheme, options) if question else ()
        return replace(where, scheme=scheme, options=known)
    if scheme == "ipc":
        # Another "?" is part of the path.
        path, question, key = rest.partition("?key=")
        pinned = _parse_options(text, scheme, f"key={key}") if question else ()
        return Endpoint(scheme, path=_parse_path(text, path), options=pinned)
    if scheme in SCHEMES:
        return Endpoint(scheme, path=_parse_name(text, rest))
    _refuse(text, "scheme", f"unknown scheme {scheme!r} (known: {', '.join(SCHEMES)})")


def as_endpoint(value: "str | Endpoint") -> Endpoint:
    """Return `value` if it is an `Endpoint`, else parse it; `EndpointError` if it is no good."""
    return value if isinstance(value, Endpoint) else parse_endpoint(value)


def request_address(value: str) -> tuple[str, int]:
    """Return (host, port) of a checked `request` option."""
    host, _, port = value.rpartition(":")
    return host.strip("[]"), int(port)


def host_of(address: object) -> str:
    """Return the host of a socket's address, for an endpoint: a link-local one needs its zone."""
    if not isinstance(address, tuple):
        return str(address)
    host = str(address[0])
    if len(address) == 4 and address[3] and "%" not in host:
        return f"{host}%{address[3]}"
    return host


def is_key_text(text: object) -> bool:
    """Whether it is the text of a key: 43 characters of base64url."""
    return isinstance(text, str) and _KEY.fullmatch(text) is not None


def is_address(value: str) -> bool:
    """Whether `value` is an IP address."""
    text = value.partition("%")[0]
    return _IPV4.fullmatch(text) is not None or _ipv6(text) is not None


def _ipv6(text: str) -> "IPv6Address | None":
    if ":" not in text:
        return None
    from ipaddress import IPv6Address

    try:
        return IPv6Address(text)
    except ValueError:
        return None


def _refuse(endpoint: object, part: str, reason: str) -> NoReturn:
    if isinstance(endpoint, str):
        place, question, options = endpoint.partition("?")
        endpoint = place + question + "&".join(map(_shown, options.split("&")))
    raise EndpointError(endpoint, part, reason)


def _shown(option: str) -> str:
    """Return an option as errors show it: without a key, which may be a secret one by mistake."""
    name, equals, value = option.partition("=")
    if len(name) > _SHOWN_MAX:
        return "…"
    is_hidden = name.lower() == "key" or len(value) > _SHOWN_MAX
    return f"{name}{equals}{'…' if value and is_hidden else value}"


def _parse_tcp(text: str, rest: str) -> Endpoint:
    if any(character.isspace() for character in rest):
        _refuse(text, "endpoint", "white space inside the endpoint")
    match = _TCP.fullmatch(rest)
    if match is None:
        # A bracket out of place, or text after the closing one.
        _refuse(text, "host", f"malformed host and port {rest!r} (IPv6 is written [ADDRESS]:PORT)")
    host = _parse_host(text, match[1])
    if match[2] is None:
        _refuse(text, "port", f"missing port after host {match[1]!r}")
    return Endpoint("tcp", host=host, port=_parse_port(text, match[2]))


def _parse_host(text: str, host: str) -> str:
    if host in ("", "[]"):
        _refuse(text, "host", "empty host")
    if host == "*":
        return host
    if host.startswith("["):
        return _parse_ipv6(text, host)
    if _DIGITS_AND_DOTS.fullmatch(host):
        # Digits and dots are an address or a mistake: "10.0.0.256" must not reach DNS as a name.
        if _IPV4.fullmatch(host) is None:
            _refuse(text, "host", f"{host!r} is not an IPv4 address")
        return host
    labels = host.removesuffix(".").split(".")
    if len(host) > HOST_CHARACTERS_MAX or not all(map(_LABEL.fullmatch, labels)):
        _refuse(text, "host", f"{host!r} is not a host name")
    return host.lower()


def _parse_ipv6(text: str, host: str) -> str:
    found = _ipv6(host.removeprefix("[").removesuffix("]"))
    if found is None:
        _refuse(text, "host", f"{host!r} is not an IPv6 address")
    return str(found)


def _parse_port(text: str, port: str) -> int:
    if port == "*":
        return 0
    if port == "":
        _refuse(text, "port", "missing port")
    if not (port.isascii() and port.isdigit()):
        _refuse(text, "port", f"port {port!r} is not a number from 0 to {PORT_MAX}")
    # The length is looked at first: int() refuses very long digits with an error of its own.
    if len(port.lstrip("0")) > len(str(PORT_MAX)) or int(port) > PORT_MAX:
        _refuse(text, "port", f"port {port} is above {PORT_MAX}")
    return int(port)


def _parse_path(text: str, path: str) -> str:
    if path in ("", "@"):
        _refuse(text, "path", "empty path")
    if path == "*":
        _refuse(text, "path", "a path must be named: '*' is not one")
    if path.startswith("@") and not IS_LINUX:
        _refuse(text, "path", f"{path!r} is an abstract name, which needs Linux")
    size = _bytes_of(text, "path", path)
    if size > IPC_PATH_BYTES_MAX:
        _refuse(text, "path", f"path of {size} bytes is above {IPC_PATH_BYTES_MAX}")
    return path


def _parse_name(text: str, name: str) -> str:
    if name == "":
        _refuse(text, "name", "empty name")
    if any(character.isspace() for character in name):
        _refuse(text, "name", f"white space inside the name {name!r}")
    size = _bytes_of(text, "name", name)
    if size > NAME_BYTES_MAX:
        _refuse(text, "name", f"name of {size} bytes is above {NAME_BYTES_MAX}")
    return name


def _bytes_of(text: str, part: str, value: str) -> int:
    """Return the size of `value` in UTF-8, which is how ZeroMQ gets it."""
    if not all(character.isprintable() for character in value):
        # Control characters, and lone surrogates, which have no UTF-8 form.
        _refuse(text, part, f"unprintable character in {part} {value!r}")
    return len(value.encode())


def _parse_options(text: str, scheme: str, options: str) -> tuple[tuple[str, str], ...]:
    """Return the options of the endpoint `text`, checked."""
    found: list[tuple[str, str]] = []
    for piece in options.split("&"):
        name, equals, value = piece.partition("=")
        if not equals or not value:
            _refuse(text, "option", f"option {_shown(piece)!r} is not of the form NAME=VALUE")
        if name != "request" and any(name == known for known, _ in found):
            _refuse(text, "option", f"option {_shown(name)!r} is given twice")
        _check_option(text, scheme, name, value)
        found.append((name, value))
    return tuple(found)


def _check_option(text: str, scheme: str, name: str, value: str) -> None:
    known = _OPTIONS[scheme]
    if name not in known:
        _refuse(text, "option", f"unknown option {_shown(name)!r} (known: {', '.join(known)})")
    if name == "key":
        if not is_key_text(value):
            _refuse(text, "option", f"a key of {len(value)} characters is not {_A_KEY}")
        return
    pattern, wrong = _VALUES[name]
    is_good = re.fullmatch(pattern, value) is not None
    if not is_good or (name == "request" and request_address(value)[1] > PORT_MAX):
        _refuse(text, "option", f"{name} {value!r} {wrong}")
