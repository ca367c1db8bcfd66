"""AccessRules of an access file that is written for a test: rules as in TOML, and users by name."""

import base64
import hashlib
import tempfile
from pathlib import Path

from p2pmsg.security.access_rules import AccessRules
from p2pmsg.security.trust import KnownPeers


def key_of(name):
    """A public key for a name."""
    return hashlib.sha256(name.encode()).digest()


def user_of(name):
    return base64.urlsafe_b64encode(key_of(name)).rstrip(b"=").decode()


def rule(who, deny=False, replay_max=None, **verbs):
    """One rule, as text."""
    lines = ["[[rule]]", f"who = {[who] if isinstance(who, str) else list(who)!r}"]
    lines += [f"{verb} = {list(patterns)!r}" for verb, patterns in verbs.items()]
    lines += ["deny = true"] * deny
    lines += [f"replay_max = {replay_max!r}"] * (replay_max is not None)
    return "\n".join(lines) + "\n"


def access_text(*rules, names=("ann", "bob", "carl", "dora", "eve")):
    peers = "".join(f'{name} = "{user_of(name)}"\n' for name in names)
    return f"[peers]\n{peers}" + "".join(rules)


def access_of(*rules):
    """AccessRules by a file that is gone again."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "access.toml"
        path.write_text(access_text(*rules), "utf-8")
        return AccessRules(KnownPeers(Path(folder) / "known_peers"), path)
