"""`Security`: a peer's key, the peers that it knows, and what they may do."""

import os
from typing import Final, Self

import transports
from p2pmsg.checks import checked
from p2pmsg.errors import AuthenticationError, translated
from p2pmsg.security.access_rules import AccessRules
from p2pmsg.security.keys import OWN_FOLDER, read_key_file
from p2pmsg.security.trust import KnownPeers, changed_key
from transports.curve import CurveKeys, fingerprint, key_text, parse_key

KEY_PATH: Final = f"{OWN_FOLDER}/id"
TRUST_PATH: Final = f"{OWN_FOLDER}/known_peers"
_ENVIRONMENT: Final = "P2PMSG_SECURITY_"


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
        access_rules: what peers may do, by the access file; None without one.
        grants: the same, and without an access file that everybody who is known may do everything.

    Raises:
        ConfigError: a file is not as it has to be; it names the file and what is wrong.
        OSError: a file cannot be read.

    """

    __slots__ = ("_access", "access_rules", "grants", "keys", "known")

    @checked()
    def __init__(
        self,
        key: "str | os.PathLike[str] | CurveKeys" = KEY_PATH,
        trust: "str | os.PathLike[str]" = TRUST_PATH,
        access: "str | os.PathLike[str] | None" = None,
    ) -> None:
        self.keys = key if isinstance(key, CurveKeys) else read_key_file(key)
        self.known = KnownPeers(trust)
        self._access = access
        path = None if access is None else os.path.expanduser(access)
        self.grants = AccessRules(self.known, path, self.keys.public_text)
        self.access_rules = None if access is None else self.grants

    def __repr__(self) -> str:
        if not hasattr(self, "_access"):
            return "Security(a file could not be read)"
        access = "" if self._access is None else f", access={os.fspath(self._access)!r}"
        return f"Security(key={self.fingerprint}, trust={str(self.known.path)!r}{access})"

    @classmethod
    def from_environment(
        cls, key: str | None = None, trust: str | None = None, access: str | None = None
    ) -> Self | None:
        """Return what P2PMSG_SECURITY_KEY, …_TRUST and …_ACCESS, names of files, say.

        None where none of them is set, or given here.

        Args:
            key: instead of what the environment says. Default None: what that says.
            trust: likewise.
            access: likewise.

        Raises:
            ConfigError, OSError: as `Security`.

        """
        given = {
            name: value
            for name, argument in (("key", key), ("trust", trust), ("access", access))
            if (value := argument or os.environ.get(f"{_ENVIRONMENT}{name.upper()}", ""))
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
        return self.grants.name_of(user)

    def admits(self, public: bytes) -> str | None:
        """Return the user id of who may connect with a public key; None: it is refused.

        A key is admitted that the file of known peers or the access file names, or that is this
        peer's own, unless it was revoked.

        Args:
            public: 32 bytes.

        """
        user = key_text(public)
        return user if self.grants.admits(user) else None

    def why_refused(self, public: bytes) -> str:
        """Return why `admits` refuses a key, for the log.

        Args:
            public: 32 bytes.

        """
        return self.grants.why_refused(key_text(public))

    def revoke(self, who: str) -> list[str]:
        """Admit a peer no more, and deny it everything; returns the user ids that it has.

        It holds while the process runs, for all peers that this object was given to: each of them
        ends its connections within a second; `Publisher.revoke` does so at once. A name that gets
        another key in the file is admitted again.

        Args:
            who: a name, or a public key as text.

        Raises:
            ConfigError: there is no such peer.

        """
        return self.grants.revoke(who)

    def server_key(self, endpoint: "str | transports.Endpoint") -> bytes:
        """Return the public key that the peer at an endpoint has to hold.

        Args:
            endpoint: where one connects; its option `key` goes before the file of known peers.

        Raises:
            AuthenticationError: none is pinned; it says how to do it. Or the endpoint pins another
                key than the file of known peers has.

        """
        with translated():
            place = transports.as_endpoint(endpoint)
        known = self.known.of_endpoint(place)
        if place.key:
            pinned = parse_key(place.key)
            if known is not None and known.public != pinned:
                where = f"{known.name} at {place.address}"
                raise AuthenticationError(where, changed_key(known.public, pinned))
            return pinned
        if known is None:
            how = (
                "no key is pinned: write its public key after the endpoint, as "
                f"{place.address}?key=KEY, or `p2pmsg trust add NAME KEY {place.address}`"
            )
            raise AuthenticationError(place.address, how)
        return known.public
