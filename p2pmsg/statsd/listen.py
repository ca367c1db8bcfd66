"""Where a collector listens: endpoints, and the sockets made of them."""

import errno
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from p2pmsg.errors import BindError, ConfigError

SCHEMES = ("udp", "tcp", "unixgram", "unix", "unixstream")
_UNIX = ("unixgram", "unix", "unixstream")
_LIMIT = "udp://HOST:PORT, tcp://HOST:PORT, unixgram:///PATH, unix:///PATH or unixstream:///PATH"
_SO_RCVBUFFORCE = 33
_BACKLOG = 128


@dataclass(frozen=True, slots=True)
class ListenEndpoint:
    """One place: `host` and `port`, or `path`."""

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
        """Whether what arrives has bounds of its own."""
        return self.scheme in ("udp", "unixgram")


def parse_listen(text: str, field: str = "listen") -> ListenEndpoint:
    """Return an endpoint.

    Raises:
        ConfigError: it is none; the message names `field`.

    """
    try:
        parts = urlsplit(text)
        port = parts.port
    except (ValueError, AttributeError, TypeError):
        raise ConfigError(field, _LIMIT, text) from None
    if parts.scheme in _UNIX:
        if parts.netloc or not parts.path.startswith("/") or parts.path == "/":
            raise ConfigError(field, _LIMIT, text)
        return ListenEndpoint(parts.scheme, path=parts.path)
    bare = not (parts.path or parts.query or parts.fragment or parts.username)
    if parts.scheme not in SCHEMES or not parts.hostname or port is None or not bare:
        raise ConfigError(field, _LIMIT, text)
    return ListenEndpoint(parts.scheme, parts.hostname, port)


def open_socket(
    endpoint: ListenEndpoint, *, receive_buffer_bytes: int, reuse_port: bool
) -> socket.socket:
    """Return a bound socket that does not block; stream sockets listen.

    Raises:
        BindError: it cannot be bound.

    """
    kind = socket.SOCK_DGRAM if endpoint.is_datagram else socket.SOCK_STREAM
    try:
        if endpoint.path:
            return _open_unix(endpoint, kind, receive_buffer_bytes)
        family, _, _, _, address = socket.getaddrinfo(endpoint.host, endpoint.port, type=kind)[0]
        made = socket.socket(family, kind)
        try:
            if kind == socket.SOCK_STREAM:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if reuse_port:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            raise_receive_buffer(made, receive_buffer_bytes)
            made.bind(address)
            return _listening(made, kind)
        except BaseException:
            made.close()
            raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise BindError(f"cannot listen at {endpoint}: {reason}", error.errno) from error


def _open_unix(endpoint: ListenEndpoint, kind: int, buffer_bytes: int) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, kind)
    try:
        raise_receive_buffer(made, buffer_bytes)
        try:
            made.bind(endpoint.path)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not _is_abandoned(endpoint.path, kind):
                raise
            os.unlink(endpoint.path)  # a collector was killed there
            made.bind(endpoint.path)
        return _listening(made, kind)
    except BaseException:
        made.close()
        raise


def _listening(made: socket.socket, kind: int) -> socket.socket:
    if kind == socket.SOCK_STREAM:
        made.listen(_BACKLOG)
    made.setblocking(False)
    return made


def _is_abandoned(path: str, kind: int) -> bool:
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


def raise_receive_buffer(made: socket.socket, size: int) -> int:
    """Ask for a receive buffer; return what the kernel granted, in its own count."""
    try:
        made.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, size)  # beyond rmem_max, for root
    except OSError:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
    return made.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)


def bound_endpoint(endpoint: ListenEndpoint, made: socket.socket) -> ListenEndpoint:
    """Return where a socket is bound, with the port that was picked."""
    if endpoint.path:
        return endpoint
    return ListenEndpoint(endpoint.scheme, endpoint.host, made.getsockname()[1])


def kernel_drops(sockets: list[socket.socket]) -> int:
    """Return how many datagrams the kernel dropped since their buffers were full (Linux, UDP)."""
    inodes = {str(os.fstat(made.fileno()).st_ino) for made in sockets}
    drops = 0
    for name in ("udp", "udp6"):
        try:
            lines = Path(f"/proc/net/{name}").read_text(encoding="ascii").splitlines()
        except OSError:
            continue
        for line in lines[1:]:
            fields = line.split()
            if len(fields) >= 13 and fields[9] in inodes:
                drops += int(fields[12])
    return drops
