"""Who is who, and who may what; see README.md."""

from p2pmsg.errors import (
    AccessDeniedError,
    AuthenticationError,
    KeyChangedError,
    SecurityError,
)
from p2pmsg.security.keys import new_keys, read_key_file, write_key_file
from p2pmsg.security.settings import Security
from p2pmsg.security.trust import KnownPeer, KnownPeers
from transports import CurveKeys as KeyPair

__all__ = [
    "AccessDeniedError",
    "AuthenticationError",
    "KeyChangedError",
    "KeyPair",
    "KnownPeer",
    "KnownPeers",
    "Security",
    "SecurityError",
    "new_keys",
    "read_key_file",
    "write_key_file",
]
