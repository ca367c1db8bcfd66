"""Where a collector listens: endpoints, and the sockets made of them."""

import errno
import os
import socket
import stat
import struct
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from p2pmsg.errors import BindError, ConfigError
from p2pmsg.toolkit import check, raise_receive_buffer

SCHEMES = ("udp", "tcp", "unixgram", "unix", "unixstream")
_UNIX = ("unixgram", "unix", "unixstream")
_LIMIT = "udp://HOST:PORT, tcp://HOST:PORT, unixgram:///PATH, unix:///PATH or unixstream:///PATH"
_BACKLOG = 128
_SO_MEMINFO = 55
_DROPS = 8
"""The place of the drops among the numbers of that option; sock_diag(7)."""


@dataclass(frozen=True, slots=True)
class ListenEndpoint:
    """Where to listen: `host` and `port`, or `path`."""

    scheme: str
    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return f"{self.scheme}://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    @property
    def is_datagram(self) -> bool:
        """Whether datagrams arrive, and no stream."""
        return self.scheme in ("udp", "unixgram")


def parse_listen(text: str, field: str = "listen") -> ListenEndpoint:
    """Parse an endpoint; raises a `ConfigError` that names `field`."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except (ValueError, AttributeError, TypeError):
        raise ConfigError(field, _LIMIT, text) from None
    if parts.scheme in _UNIX:
        named = parts.path.startswith("/") and parts.path != "/"
        check(field, text, named and not parts.netloc, _LIMIT)
        return ListenEndpoint(parts.scheme, path=parts.path)
    bare = not (parts.path or parts.query or parts.fragment or parts.username)
    host = parts.hostname or ""
    check(field, text, parts.scheme in SCHEMES and bool(host) and port is not None and bare, _LIMIT)
    return ListenEndpoint(parts.scheme, host, port or 0)


def open_socket(
    endpoint: ListenEndpoint, *, receive_buffer_bytes: int, reuse_port: bool
) -> tuple[socket.socket, ListenEndpoint]:
    """Return a bound socket that does not block, and where it is bound; stream sockets listen.

    Raises:
        BindError: it cannot be bound.

    """
    kind = socket.SOCK_DGRAM if endpoint.is_datagram else socket.SOCK_STREAM
    address: Any
    try:
        if endpoint.path:
            family, address = socket.AF_UNIX, endpoint.path
        else:
            found = socket.getaddrinfo(endpoint.host, endpoint.port, type=kind)[0]
            family, address = found[0], found[4]
        made = socket.socket(family, kind)
        try:
            if kind == socket.SOCK_STREAM and not endpoint.path:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if reuse_port and not endpoint.path:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            raise_receive_buffer(made, receive_buffer_bytes)
            try:
                made.bind(address)
            except OSError as error:
                if error.errno != errno.EADDRINUSE or not _is_abandoned(endpoint.path, kind):
                    raise
                os.unlink(endpoint.path)  # the socket of a collector that was killed
                made.bind(address)
            if kind == socket.SOCK_STREAM:
                made.listen(_BACKLOG)
            made.setblocking(False)
        except BaseException:
            made.close()
            raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise BindError(f"cannot listen at {endpoint}: {reason}", error.errno) from error
    if endpoint.path:
        return made, endpoint
    return made, replace(endpoint, port=made.getsockname()[1])


def _is_abandoned(path: str, kind: int) -> bool:
    """Whether a path is a socket at which nobody listens; False for no path."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return False
        with socket.socket(socket.AF_UNIX, kind) as probe:
            probe.connect(path)
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


def kernel_drops(sockets: list[socket.socket]) -> int:
    """Return how many datagrams the kernel dropped because a buffer was full."""
    found = (made.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, 4 * _DROPS + 4) for made in sockets)
    return sum(struct.unpack_from("=I", counters, 4 * _DROPS)[0] for counters in found)
