"""What is at an endpoint that does not answer: nothing, another ZeroMQ socket, another server.

One connection of our own is made and the peer's first bytes are read; libzmq does not report its
handshakes. ZMTP 3.0 (RFC 23): both sides send a greeting of 64 bytes at once, then a READY command
with the type of the socket. Ours is not sent, so the peer never counts this as a connection.
"""

import os
import socket
from typing import Final

from transports.endpoint import Endpoint

_CONNECT_S: float = 1.0
READ_S: float = 0.5
_GREETING_BYTES: Final = 64
_VERSION_BYTES: Final = 12
"""Of the greeting: the signature, and the version."""
_SHOWN_BYTES: Final = 24
_GREETING: Final = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
_SOCKET_TYPE: Final = b"Socket-Type"
NEEDS_KEYS: Final = "a ZeroMQ socket that needs keys is there"


def describe_peer(endpoint: Endpoint) -> str:
    """Return what is found at an endpoint, for people; "" where nothing can be said.

    It takes 1 s where nobody takes the connection, and 0.5 s where a server takes it and is silent.

    Args:
        endpoint: tcp or ipc; nothing is said of others.

    """
    if endpoint.scheme not in ("tcp", "ipc"):
        return ""
    try:
        with _connect(endpoint) as stream:
            return _describe(stream)
    except socket.gaierror as error:
        return f"its host is unknown ({error.strerror})"
    except TimeoutError:
        return "nobody takes the connection"
    except OSError as error:
        return f"nobody is there ({_reason(error)})"


def _connect(endpoint: Endpoint) -> socket.socket:
    if endpoint.scheme == "tcp":
        stream = socket.create_connection((endpoint.host, endpoint.port), _CONNECT_S)
        stream.settimeout(READ_S)
        return stream
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        stream.settimeout(READ_S)
        # Linux's abstract names begin with a zero byte, which endpoints write as "@".
        path = endpoint.path
        stream.connect("\0" + path[1:] if endpoint.is_abstract else path)
    except BaseException:
        stream.close()
        raise
    return stream


def _describe(stream: socket.socket) -> str:
    """Return what speaks there."""
    try:
        # The mechanism is said by both sides at once, and one that needs keys hangs up at ours.
        stream.sendall(_GREETING[:_VERSION_BYTES])
        greeting = _read(stream, _GREETING_BYTES)
        if not greeting:
            return (
                "somebody takes the connection and says nothing: no ZeroMQ socket (a web server "
                "does so), or its process hangs or is stopped"
            )
        if greeting.startswith(b"\0SP\0"):
            return "a nanomsg or nng socket is there"
        if not greeting.startswith(b"\xff") or greeting[9:10] != b"\x7f":
            return f"somebody is there who speaks another protocol: {greeting[:_SHOWN_BYTES]!r}"
        mechanism = greeting[12:32].rstrip(b"\0")
        if len(greeting) == _GREETING_BYTES and mechanism != b"NULL":
            if mechanism == b"CURVE":
                return f"{NEEDS_KEYS}: give security= (or --security)"
            return f"a ZeroMQ socket with {mechanism.decode('ascii', 'replace')} security is there"
        stream.sendall(_GREETING[_VERSION_BYTES:])
        command = _read(stream, 256, whole=False)
    except OSError as error:
        return f"somebody takes the connection and breaks it ({_reason(error)})"
    at = command.find(_SOCKET_TYPE)
    if at < 0:
        return "a ZeroMQ socket is there"
    at += len(_SOCKET_TYPE)
    size = int.from_bytes(command[at : at + 4], "big")
    kind = command[at + 4 : at + 4 + min(size, 16)].decode("ascii", "replace")
    return f"a ZeroMQ {kind} socket is there"


def _reason(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else str(error)


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
