"""`Security`: a peer's key, the peers that it knows, and what they may do."""

import logging
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Self

import transports
from p2pmsg.errors import AuthenticationError, ConfigError, KeyChangedError, translated
from p2pmsg.security.keys import read_key_file
from p2pmsg.security.trust import KnownPeers
from transports import CurveClient, CurveKeys, CurveServer, fingerprint, key_text, parse_key

if TYPE_CHECKING:
    from p2pmsg.security.rights import Rights

KEY_PATH: Final = "~/.config/p2pmsg/id"
TRUST_PATH: Final = "~/.config/p2pmsg/known_peers"
_ENVIRONMENT: Final = "P2PMSG_SECURITY_"
_LOOPBACK_NAMES: Final = ("localhost", "ip6-localhost")
_log = logging.getLogger("p2pmsg")
_warned: Final[set[str]] = set()
_warned_lock: Final = threading.Lock()


class Security:
    """Keys for all connections of a peer: encrypted, and both ends known to each other.

    It is read when it is made; `trust` and `access` are read again when they change. One object may
    be given to all peers of a process.

    Args:
        key: the file with this peer's secret key, which `p2pmsg key new` makes; mode 0600. Or a
            pair of keys. Default `~/.config/p2pmsg/id`.
        trust: the file of known peers, one line for each: NAME KEY [ENDPOINT ...]; see
            `p2pmsg trust`. Only they may connect. One that is not there is empty. Default
            `~/.config/p2pmsg/known_peers`.
        access: the file of rights by topic; see `p2pmsg access`. Default None: a peer that is known
            may do everything.

    Attributes:
        keys: this peer's pair.
        known: the file of known peers.
        rights: what peers may do, by the access file; None without one.

    Raises:
        ConfigError: a file is not as it has to be; it names the file and what is wrong.
        OSError: a file cannot be read.

    """

    __slots__ = ("_access", "keys", "known", "rights")

    def __init__(
        self,
        key: "str | os.PathLike[str] | CurveKeys" = KEY_PATH,
        trust: "str | os.PathLike[str]" = TRUST_PATH,
        access: "str | os.PathLike[str] | None" = None,
    ) -> None:
        self.keys = key if isinstance(key, CurveKeys) else read_key_file(key)
        self.known = KnownPeers(trust)
        self._access = access
        self.rights = None if access is None else _rights(access, self._known_name)

    def __repr__(self) -> str:
        access = "" if self._access is None else f", access={os.fspath(self._access)!r}"
        return f"Security(key={self.fingerprint}, trust={str(self.known.path)!r}{access})"

    @classmethod
    def from_environment(cls) -> Self | None:
        """Return what P2PMSG_SECURITY_KEY, …_TRUST and …_ACCESS, names of files, say.

        None where none of them is set. Raises as `Security`.
        """
        names = ("KEY", "TRUST", "ACCESS")
        given = {
            name.lower(): value
            for name in names
            if (value := os.environ.get(f"{_ENVIRONMENT}{name}", ""))
        }
        return cls(**given) if given else None

    @property
    def fingerprint(self) -> str:
        """What people compare of this peer's public key: 16 characters."""
        return fingerprint(self.keys.public)

    def name_of(self, user: str) -> str | None:
        """Return the name of a peer; None: it has none.

        Args:
            user: its user id, which is the text of its public key.

        """
        return self._known_name(user) if self.rights is None else self.rights.name_of(user)

    def admits(self, public: bytes) -> str | None:
        """Return the user id of who may connect with a public key; None: it is refused.

        A key is admitted that the file of known peers or the access file names, or that is this
        peer's own, unless it was revoked.

        Args:
            public: 32 bytes.

        """
        user = key_text(public)
        if self.rights is not None and self.rights.is_revoked(user):
            return None
        if public != self.keys.public and self.name_of(user) is None:
            return None
        return user

    def server_key(self, endpoint: "str | transports.Endpoint") -> bytes:
        """Return the public key that the peer at an endpoint has to hold.

        Args:
            endpoint: where one connects; its option `key` goes before the file of known peers.

        Raises:
            AuthenticationError: none is pinned; it says how to do it.
            KeyChangedError: the endpoint pins another key than the file of known peers has.

        """
        with translated():
            place = transports.as_endpoint(endpoint)
        known = self.known.of_endpoint(place)
        if place.key:
            pinned = parse_key(place.key)
            if known is not None and known.public != pinned:
                where = f"{known.name} at {place.address}"
                raise KeyChangedError(where, fingerprint(known.public), fingerprint(pinned))
            return pinned
        if known is None:
            how = (
                "no key is pinned: write its public key after the endpoint, as "
                f"{place.address}?key=KEY, or `p2pmsg trust add NAME KEY {place.address}`"
            )
            raise AuthenticationError(place.address, how)
        return known.public

    def _known_name(self, user: str) -> str | None:
        try:
            known = self.known.of_key(parse_key(user))
        except ValueError:
            return None
        return None if known is None else known.name


def _rights(access: "str | os.PathLike[str]", name_of: Callable[[str], str | None]) -> "Rights":
    from p2pmsg.security.rights import Rights

    return Rights(os.path.expanduser(access), name_of)


def curve_server(security: Security | None) -> CurveServer | None:
    """Return what a socket needs that binds; None: it is open."""
    return None if security is None else CurveServer(security.keys, security.admits)


def curve_client(security: Security | None, endpoint: transports.Endpoint) -> CurveClient | None:
    """Return what a socket needs that connects to an endpoint; None: it is open.

    Raises:
        AuthenticationError, KeyChangedError: as `Security.server_key`.
        ConfigError: a key is pinned, and there is no security.

    """
    if security is None:
        if endpoint.key:
            raise ConfigError("security", "given where an endpoint pins a key", endpoint.address)
        return None

    def server_key() -> bytes:
        return security.server_key(endpoint)

    return CurveClient(security.keys, server_key(), server_key)


def check_security(security: Security | None) -> Security | None:
    """Return `security`, or raise `ConfigError`."""
    if security is not None and not isinstance(security, Security):
        raise ConfigError("security", "a Security or None", type(security).__name__)
    return security


def warn_if_open(security: Security | None, endpoint: str) -> None:
    """Log a warning where other machines reach a socket that is bound without security.

    It is logged once for each endpoint and process.
    """
    if security is not None or not _is_public(transports.parse_endpoint(endpoint)):
        return
    with _warned_lock:
        if endpoint in _warned:
            return
        _warned.add(endpoint)
    _log.warning(
        "%s: other machines may connect without a key, and read and send what they like; give "
        "security=Security(…), or --security, or bind 127.0.0.1",
        endpoint,
    )


def _is_public(endpoint: transports.Endpoint) -> bool:
    import ipaddress

    if endpoint.scheme != "tcp":
        return False
    if endpoint.is_wildcard:
        return True
    try:
        return not ipaddress.ip_address(endpoint.host.partition("%")[0]).is_loopback
    except ValueError:
        return endpoint.host not in (*_LOOPBACK_NAMES, "lo")
