"""What is at an endpoint that does not answer: nobody, another kind of ZeroMQ socket, a stranger.

One connection of our own is made and the peer's first bytes are read; libzmq tells nobody of its
handshakes. ZMTP 3.0 (RFC 23): both sides send a greeting of 64 bytes at once, then a READY command
with the type of the socket. Ours is not sent, so the peer never counts this as a connection.
"""

import os
import socket
from typing import Final

from transports.endpoint import Endpoint

_TIMEOUT_S: Final = 1.0
_GREETING_BYTES: Final = 64
_SHOWN_BYTES: Final = 24
_GREETING: Final = (
    b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
)
_SOCKET_TYPE: Final = b"Socket-Type"


def describe_peer(endpoint: Endpoint, timeout_s: float = _TIMEOUT_S) -> str:
    """Return what is found at an endpoint, for people; "" where nothing can be told.

    Args:
        endpoint: tcp or ipc; of others nothing is told.
        timeout_s: how long connecting may take, and how long the first bytes, in seconds.

    """
    if endpoint.scheme not in ("tcp", "ipc"):
        return ""
    try:
        with _connect(endpoint, timeout_s) as stream:
            stream.settimeout(timeout_s)
            return _describe(stream)
    except socket.gaierror as error:
        return f"its host is unknown ({error.strerror})"
    except TimeoutError:
        return "nobody takes the connection"
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        return f"nobody is there ({reason})"


def _connect(endpoint: Endpoint, timeout_s: float) -> socket.socket:
    if endpoint.scheme == "tcp":
        return socket.create_connection((endpoint.host, endpoint.port), timeout_s)
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        stream.settimeout(timeout_s)
        # Linux's abstract names begin with a zero byte, which endpoints write as "@".
        path = endpoint.path
        stream.connect("\0" + path[1:] if endpoint.is_abstract else path)
    except BaseException:
        stream.close()
        raise
    return stream


def _describe(stream: socket.socket) -> str:
    try:
        stream.sendall(_GREETING)
        greeting = _read(stream, _GREETING_BYTES)
        if not greeting.startswith(b"\xff") or greeting[9:10] != b"\x7f":
            return _describe_stranger(greeting)
        mechanism = greeting[12:32].rstrip(b"\0")
        if len(greeting) == _GREETING_BYTES and mechanism != b"NULL":
            return f"a ZeroMQ socket with {mechanism.decode('ascii', 'replace')} security is there"
        command = _read(stream, 256, whole=False)
        at = command.find(_SOCKET_TYPE)
        if at < 0:
            return "a ZeroMQ socket is there"
        at += len(_SOCKET_TYPE)
        size = int.from_bytes(command[at : at + 4], "big")
        kind = command[at + 4 : at + 4 + min(size, 16)].decode("ascii", "replace")
        return f"a ZeroMQ {kind} socket is there"
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        return f"somebody takes the connection and breaks it ({reason})"


def _describe_stranger(first: bytes) -> str:
    if not first:
        return "somebody takes the connection and says nothing: no ZeroMQ socket"
    if first[:4] == b"\0SP\0":
        return "a nanomsg or nng socket is there"
    return f"somebody is there who speaks another protocol: {first[:_SHOWN_BYTES]!r}"


def _read(stream: socket.socket, size: int, *, whole: bool = True) -> bytes:
    """Read so many bytes, or what comes in time; not `whole`: what comes first."""
    data = b""
    while len(data) < size:
        try:
            part = stream.recv(size - len(data))
        except TimeoutError:
            break
        data += part
        if not part or not whole or (data[:1] != b"\xff"):
            break
    return data
