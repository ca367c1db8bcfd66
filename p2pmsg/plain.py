"""Sockets of programs that know nothing of p2pmsg: plain ZeroMQ, and nanomsg's or nng's.

`p2pmsg.bridge` is made of them.
"""

from typing import TYPE_CHECKING, Any, Union

from p2pmsg.driver.lifecycle import zmq_context
from p2pmsg.errors import MissingExtraError
from p2pmsg.security.use import curve_client, curve_server, warn_if_open
from transports import ClosedError as SocketClosedError
from transports import Endpoint, EndpointError, parse_endpoint
from transports.diagnosis import describe_peer

if TYPE_CHECKING:
    from p2pmsg.security.settings import Security
    from transports.sp_plain import SpPlainSocket as SpPlainSocket
    from transports.zmq_plain import ZmqPlainSocket as ZmqPlainSocket

__all__ = [
    "Endpoint",
    "EndpointError",
    "PlainSocket",
    "SocketClosedError",
    "describe_peer",
    "parse_endpoint",
    "sp_socket",
    "zmq_socket",
]

PlainSocket = Union["ZmqPlainSocket", "SpPlainSocket"]
"""What `zmq_socket` and `sp_socket` return; `open` binds or connects it."""


def zmq_socket(
    kind: str,
    endpoint: Endpoint,
    *,
    binds: bool,
    queue_messages: int,
    message_bytes_max: int,
    is_keyed: bool = False,
    security: "Security | None" = None,
) -> "ZmqPlainSocket":
    """Return a socket of ZeroMQ, which is not open yet; it warns where others could connect.

    Args:
        kind: `sub`, `pub`, `pull` or `push`.
        endpoint: where it binds or connects.
        binds: whether it binds.
        queue_messages: messages that wait for each peer.
        message_bytes_max: the largest part that is received, in bytes.
        is_keyed: whether it has keys, those of `security`. Default False.
        security: keys. Default None.

    Raises:
        AuthenticationError: as `Security.server_key`.

    """
    from transports.zmq_plain import ZmqPlainSocket

    curve: Any = None
    if is_keyed:
        curve = curve_server(security) if binds else curve_client(security, endpoint)
    elif binds:
        _warn(endpoint)
    return ZmqPlainSocket(
        kind, endpoint, binds=binds, context=zmq_context(), queue_messages=queue_messages,
        message_bytes_max=message_bytes_max, curve=curve,
    )  # fmt: skip


def sp_socket(
    kind: str,
    endpoint: Endpoint,
    *,
    binds: bool,
    queue_messages: int,
    message_bytes_max: int,
    survey_ms: int,
) -> "SpPlainSocket":
    """Return a socket of nanomsg or nng; see `zmq_socket`.

    Args:
        kind: `sub`, `pub`, `pull`, `push`, `req`, `rep`, `surveyor` or `respondent`.
        endpoint: where it binds or connects.
        binds: whether it binds.
        queue_messages: messages that wait.
        message_bytes_max: the largest message that is received, in bytes.
        survey_ms: for how long answers to a survey are taken, in milliseconds.

    Raises:
        MissingExtraError: the package pynng is not installed.

    """
    if binds:
        _warn(endpoint)
    try:
        from transports.sp_plain import SpPlainSocket
    except ImportError:
        raise MissingExtraError("source or target", "pynng", "nng", f"sp+{kind}") from None
    return SpPlainSocket(
        kind, endpoint, binds=binds, queue_messages=queue_messages,
        message_bytes_max=message_bytes_max, survey_ms=survey_ms,
    )  # fmt: skip


def _warn(endpoint: Endpoint) -> None:
    warn_if_open(None, str(endpoint), "?curve=1 with security=")
