"""CURVE, ZeroMQ's encryption: keys, and what each side of a connection has to know.

A connection is encrypted and both sides prove that they hold their secret keys (RFC 26,
CurveZMQ). The side that connects has to know the public key of the side that binds; the side that
binds asks `CurveServer.admits` about the key of each that connects (`transports.zap`).

Keys are 32 bytes; their text is base64url without padding, 43 characters. Z85, ZeroMQ's own text,
contains `?`, `&`, `#` and `%`, which an endpoint cannot.
"""

import base64
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

import zmq
from zmq.utils import z85

from transports.endpoint import is_key_text
from transports.hiding import hiding

if TYPE_CHECKING:
    from transports.context import Socket

KEY_BYTES: Final = 32
"""Of a public key, and of a secret one (Curve25519)."""
_FINGERPRINT_CHARACTERS: Final = 16


def key_text(public: bytes) -> str:
    """Return the text of a public key: 43 characters of base64url."""
    return base64.urlsafe_b64encode(public).rstrip(b"=").decode("ascii")


def parse_key(text: str) -> bytes:
    """Return the 32 bytes of a key's text.

    Raises:
        ValueError: it is not 43 characters of base64url. The text is not shown: it may be secret.

    """
    if not is_key_text(text):
        raise ValueError("a key is 43 characters of base64url without padding")
    return base64.urlsafe_b64decode(text + "=")


def fingerprint(public: bytes) -> str:
    """Return what people compare: 16 characters of the hash of a public key."""
    digest = hashlib.sha256(public).digest()
    return base64.urlsafe_b64encode(digest)[:_FINGERPRINT_CHARACTERS].decode("ascii")


@dataclass(frozen=True, slots=True, repr=False)
class CurveKeys:
    """A key pair. `repr` and `str` show the fingerprint of the public key only."""

    public: bytes
    """32 bytes; what others know this peer by."""

    secret: bytes
    """32 bytes; nobody else may have it."""

    def __post_init__(self) -> None:
        for name, value in (("public", self.public), ("secret", self.secret)):
            if type(value) is not bytes or len(value) != KEY_BYTES:
                size = f"{len(value)} bytes" if isinstance(value, bytes) else type(value).__name__
                raise ValueError(f"the {name} key is {KEY_BYTES} bytes, not {size}")

    def __repr__(self) -> str:
        return f"CurveKeys({fingerprint(self.public)})"

    @property
    def public_text(self) -> str:
        """The public key as others write it down: 43 characters of base64url."""
        return key_text(self.public)

    @classmethod
    def new(cls) -> Self:
        """Return a new pair, by libsodium's random numbers."""
        public, secret = zmq.curve_keypair()
        return cls(z85.decode(public), z85.decode(secret))

    @classmethod
    @hiding
    def of_secret(cls, secret: bytes) -> Self:
        """Return the pair of a secret key; `ValueError` where it is not 32 bytes."""
        if len(secret) != KEY_BYTES:
            raise ValueError(f"the secret key is {KEY_BYTES} bytes, not {len(secret)}")
        return cls(z85.decode(zmq.curve_public(z85.encode(secret))), secret)


CurveKeys.__init__ = hiding(CurveKeys.__init__)  # type: ignore[method-assign]


def _unknown(public: bytes) -> str:
    return "not among the known peers"


@dataclass(frozen=True, slots=True)
class CurveServer:
    """What a socket that binds needs."""

    keys: CurveKeys
    """Its own."""

    admits: Callable[[bytes], str | None]
    """Returns the user id of a public key (its text, usually), or None: refused. It is called in
    a thread of its own, for each connection, and must not wait long; where it raises, the
    connection is refused, and the reason logged."""

    why: Callable[[bytes], str] = field(default=_unknown, repr=False, compare=False)
    """Returns why a public key was not admitted, for the log; called in the same way. Default: that
    it is not known."""


@dataclass(frozen=True, slots=True)
class CurveClient:
    """What a socket that connects needs."""

    keys: CurveKeys
    """Its own."""

    server: bytes
    """The public key that the other side has to hold, 32 bytes."""

    find: Callable[[], bytes] | None = field(default=None, repr=False, compare=False)
    """Returns that key as it is now; asked before a refused connection is tried again. It may
    raise: then the last one is used. Default None: it does not change."""

    def __post_init__(self) -> None:
        if type(self.server) is not bytes or len(self.server) != KEY_BYTES:
            raise ValueError(f"the server's key is {KEY_BYTES} bytes")

    def set_options(self, socket: "Socket") -> None:
        """Have a socket connect so."""
        socket.set(zmq.CURVE_SERVERKEY, self.server)
        socket.set(zmq.CURVE_PUBLICKEY, self.keys.public)
        socket.set(zmq.CURVE_SECRETKEY, self.keys.secret)
