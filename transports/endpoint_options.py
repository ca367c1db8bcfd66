"""The options of datagram endpoints, behind the `?` of their text.

=============  =========================  ======================================================
option         value                      meaning
=============  =========================  ======================================================
``interface``  name or address            where a group is joined, and where datagrams leave
``ttl``        0 to 255, default 1        how many routers they may pass; 1: none
``loopback``   0 or 1, default 1          whether processes on this machine get them, too
``request``    HOST:PORT, several times   mold only: where what was missed is asked for
``topic``      name, default "mold"       mold only: the topic that its messages get
=============  =========================  ======================================================
"""

import ipaddress
import re
from typing import Final, NoReturn

from transports.errors import EndpointError

TTL_MAX: Final = 255
_INTERFACE: Final = re.compile(r"[A-Za-z0-9_.:@%\-]{1,64}")
_REQUEST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.\-]+):([0-9]{1,5})")
_TOPIC: Final = re.compile(r"[A-Za-z0-9_.\-]{1,64}")
_FLAGS: Final = {"0": "0", "false": "0", "no": "0", "1": "1", "true": "1", "yes": "1"}


def parse_options(text: str, scheme: str, host: str, options: str) -> tuple[tuple[str, str], ...]:
    """Return the options of the endpoint `text`, checked.

    Raises:
        EndpointError: an option is unknown, given twice, or its value does not fit.

    """
    found: list[tuple[str, str]] = []
    for piece in options.split("&"):
        name, equals, value = piece.partition("=")
        if not equals or not value:
            _refuse(text, f"option {piece!r} is not of the form NAME=VALUE")
        if name != "request" and any(name == known for known, _ in found):
            _refuse(text, f"option {name!r} is given twice")
        found.append((name, _check(text, scheme, host, name, value)))
    return tuple(found)


def _check(text: str, scheme: str, host: str, name: str, value: str) -> str:
    if name == "interface":
        if not _INTERFACE.fullmatch(value):
            _refuse(text, f"interface {value!r} is neither a name nor an address")
        return value
    if name == "ttl":
        if not (value.isascii() and value.isdigit() and len(value) < 4 and int(value) <= TTL_MAX):
            _refuse(text, f"ttl {value!r} is not a number from 0 to {TTL_MAX}")
        return str(int(value))
    if name == "loopback":
        if value.lower() not in _FLAGS:
            _refuse(text, f"loopback {value!r} is neither 0 nor 1")
        return _FLAGS[value.lower()]
    if name == "request" and scheme == "mold":
        match = _REQUEST.fullmatch(value)
        if match is None or int(match[2]) > 65535:
            _refuse(text, f"request {value!r} is not of the form HOST:PORT")
        return value
    if name == "topic" and scheme == "mold":
        if not _TOPIC.fullmatch(value):
            _refuse(text, f"topic {value!r} is not of 1 to 64 letters, digits, '.', '_' or '-'")
        return value
    known = "interface, ttl, loopback" + (", request, topic" if scheme == "mold" else "")
    _refuse(text, f"unknown option {name!r} (known: {known})")


def request_address(value: str) -> tuple[str, int]:
    """Return (host, port) of a checked `request` option."""
    host, _, port = value.rpartition(":")
    return host.strip("[]"), int(port)


def is_address(value: str) -> bool:
    """Whether `value` is an IP address."""
    try:
        ipaddress.ip_address(value.partition("%")[0])
    except ValueError:
        return False
    return True


def _refuse(text: str, reason: str) -> NoReturn:
    raise EndpointError(text, "option", reason)
