"""What peers ask of a `Security`, or of None. Without one, nothing else is imported."""

import threading
from typing import TYPE_CHECKING, Final

import transports
from p2pmsg.errors import ConfigError
from transports.endpoint import is_address
from transports.own_log import own_log as _log

if TYPE_CHECKING:
    from p2pmsg.security.settings import Security
    from transports.curve import CurveClient, CurveServer

_LOOPBACK_NAMES: Final = ("localhost", "ip6-localhost", "lo")
_warned: Final[set[str]] = set()
_warned_lock: Final = threading.Lock()


def curve_server(security: "Security | None") -> "CurveServer | None":
    """Return what a socket needs that binds; None: it is open."""
    if security is None:
        return None
    from transports.curve import CurveServer

    return CurveServer(security.keys, security.admits, security.why_refused)


def curve_client(
    security: "Security | None", endpoint: transports.Endpoint
) -> "CurveClient | None":
    """Return what a socket needs that connects to an endpoint; None: it is open.

    Raises:
        AuthenticationError: as `Security.server_key`.
        ConfigError: a key is pinned, and there is no security.

    """
    if security is None:
        if endpoint.key:
            raise ConfigError("security", "given where an endpoint pins a key", endpoint.address)
        return None

    def server_key() -> bytes:
        return security.server_key(endpoint)

    from transports.curve import CurveClient

    return CurveClient(security.keys, server_key(), server_key)


def server_of(client: "transports.RecoveryClient") -> str:
    """Return the user id of who a connection leads to: the key that the other side has to hold."""
    curve = client.curve
    if curve is None:
        return ""
    from transports.curve import key_text

    return key_text(curve.server)


def curve_of_group(
    security: "Security", group: transports.Endpoint, recovery: transports.Endpoint
) -> "CurveClient":
    """Return what a recovery connection needs to the publisher of a sealed multicast.

    Its key is the one that is pinned for the group, else that of the known peer which binds there.
    Raises as `Security.server_key`.
    """

    def server_key() -> bytes:
        known = security.known
        is_pinned = group.key or known.of_endpoint(group) is not None
        by_recovery = not is_pinned and known.of_endpoint(recovery) is not None
        return security.server_key(recovery if by_recovery else group)

    from transports.curve import CurveClient

    return CurveClient(security.keys, server_key(), server_key)


def check_datagrams(security: "Security | None", endpoint: transports.Endpoint) -> None:
    """Raise `ConfigError` where datagrams would go without keys although there are some."""
    if security is not None and endpoint.scheme == "mold":
        raise ConfigError("endpoint", "udp://, tcp:// or ipc:// with security", str(endpoint))
    if security is None and endpoint.scheme == "udp" and endpoint.key:
        raise ConfigError("security", "given where an endpoint pins a key", endpoint.address)


def warn_if_open(
    security: "Security | None", endpoint: str, give: str = "security=Security(…), or --security"
) -> None:
    """Log a warning where other machines reach a socket that is bound without security.

    It is logged once for each endpoint and process; `give` says what to give.
    """
    if security is not None or not _is_public(transports.parse_endpoint(endpoint)):
        return
    with _warned_lock:
        if endpoint in _warned:
            return
        _warned.add(endpoint)
    _log.warning(
        "%s: other machines may connect without a key, and read and send what they like; give %s, "
        "or bind 127.0.0.1",
        endpoint,
        give,
    )


def _is_public(endpoint: transports.Endpoint) -> bool:
    if endpoint.scheme != "tcp":
        return False
    if endpoint.is_wildcard:
        return True
    if not is_address(endpoint.host):
        return endpoint.host not in _LOOPBACK_NAMES
    if endpoint.host.startswith("127."):
        return False
    from ipaddress import ip_address

    return not ip_address(endpoint.host.partition("%")[0]).is_loopback
