"""Who is who, and who may what; see README.md.

Each name is imported when it is first used: a program without keys pays for none of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from p2pmsg.security.access import VERBS, load_access
    from p2pmsg.security.keys import new_keys, read_key_file, write_key_file
    from p2pmsg.security.settings import KEY_PATH, TRUST_PATH, Security
    from p2pmsg.security.trust import KnownPeer, KnownPeers
    from transports.curve import CurveKeys as KeyPair
    from transports.curve import fingerprint, key_text
    from transports.endpoint import is_key_text

__all__ = [
    "KEY_PATH",
    "TRUST_PATH",
    "VERBS",
    "KeyPair",
    "KnownPeer",
    "KnownPeers",
    "Security",
    "fingerprint",
    "is_key_text",
    "key_text",
    "load_access",
    "new_keys",
    "read_key_file",
    "write_key_file",
]

_HOMES = {
    "p2pmsg.security.keys": ("new_keys", "read_key_file", "write_key_file"),
    "p2pmsg.security.access": ("VERBS", "load_access"),
    "p2pmsg.security.settings": ("KEY_PATH", "TRUST_PATH", "Security"),
    "p2pmsg.security.trust": ("KnownPeer", "KnownPeers"),
    "transports.curve": ("fingerprint", "key_text"),
    "transports.endpoint": ("is_key_text",),
}  # fmt: skip
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import what is first named here; `AttributeError` where there is no such name."""
    if name == "KeyPair":
        value: Any = import_module("transports.curve").CurveKeys
    elif name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value
