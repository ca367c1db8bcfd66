"""The keys of a query: which files, or which secret, its options name; and what they make.

Options hold names of files that the driver and each executor have, so no key is in a plan, an
offset or a checkpoint. Where that cannot be, `securitySecret` has the key itself: Spark's rule for
options (`spark.sql.redaction.options.regex`) hides what is named so in plans and in the UI.
"""

import base64
import os
import platform
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import p2pmsg
from spark_bridge.errors import OptionError

if TYPE_CHECKING:
    from spark_bridge.pinned import PinnedSecurity

NO_TRUST: Final = "/nonexistent/known_peers"
"""Where `trust` is not given, nobody is known but who is pinned in `peers`."""
Changed = tuple[int, ...] | None
_LIKE_A_KEY: Final = re.compile(r"[A-Za-z0-9_-]{40,46}={0,2}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """What the options say. It is pickled to the executors, and `repr` shows no secret."""

    key: str | None = None
    """The name of the key file; None where `secret` is given."""

    secret: str = field(default="", repr=False)
    """The text of the secret key; "" where `key` is given."""

    trust: str | None = None
    """The name of the file of known peers."""

    access: str | None = None
    """The name of the access file; of sinks only."""

    pins: tuple[tuple[str, str], ...] = ()
    """The keys that `peers` pins, by endpoint. They are kept apart, so that offsets name endpoints
    alone, and a key that is replaced changes no offset."""


def split_pin(peer: str) -> tuple[str, str]:
    """Return an endpoint without the key that it pins, and that key or ""."""
    place, found, key = peer.partition("?key=")
    return (place, key) if found else (peer, "")


def security_of(keys: Keys | None) -> "PinnedSecurity | None":
    """Return what `keys` says, read once in this process; None without keys.

    Raises:
        OptionError: a file cannot be used on this machine; it names the option, the file and the
            machine, and never what is in the file.

    """
    if keys is None:
        return None
    return _make(keys, _changed(keys))


def _changed(keys: Keys) -> Changed:
    """Return what changes with the key file, which workers that live on have to see."""
    if keys.key is None:
        return None
    try:
        found = os.stat(keys.key)
    except OSError as error:
        raise _unusable("security", keys.key, error) from None
    return found.st_mtime_ns, found.st_size, found.st_ino


@lru_cache(maxsize=64)
def _make(keys: Keys, changed: "Changed") -> "PinnedSecurity":
    from spark_bridge.pinned import PinnedSecurity  # few queries have keys

    files = {"security": keys.key, "trust": keys.trust, "access": keys.access}
    for name, path in files.items():
        if path is not None:
            _check_file(name, path)
    key: Any = keys.key
    if key is None:
        key = p2pmsg.security.KeyPair.of_secret(base64.urlsafe_b64decode(f"{keys.secret}="))
    try:
        return PinnedSecurity(
            dict(keys.pins), key, trust=keys.trust or NO_TRUST, access=keys.access
        )
    except (p2pmsg.ConfigError, OSError) as error:
        field = error.field.split()[-1] if isinstance(error, p2pmsg.ConfigError) else ""
        name = field if field in files else "security"
        raise _unusable(name, files[name], error) from None


def may_be_key(text: str) -> bool:
    """Whether it may be meant as a key, also one with a wrong character: then it is not shown."""
    return _LIKE_A_KEY.fullmatch(text) is not None


def _check_file(name: str, path: str) -> None:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError as error:
        raise _unusable(name, path, error) from None


def _unusable(name: str, file: str | None, error: Exception) -> OptionError:
    return OptionError(
        name,
        f"names the file {file!r}, which cannot be used on {platform.node()}: {error}. The driver "
        "and each executor need it under this name",
    )
