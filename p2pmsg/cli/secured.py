"""The options of a peer's key, the peers that it knows, and what they may do."""

import argparse
import os
from typing import TYPE_CHECKING, Final

from p2pmsg.cli.command import UsageError, cannot, option

if TYPE_CHECKING:
    from p2pmsg.security.settings import Security

_PREFIX: Final = "P2PMSG_SECURITY_"
_NAMES: Final = ("KEY", "TRUST", "ACCESS")
_OPTIONS: Final = {"key": "--security"}

SECURITY = (
    option("--security", "encrypt all connections and let only known peers connect: the file with "
           "this peer's key, which `p2pmsg key new` makes (default: $P2PMSG_SECURITY_KEY; "
           "~/.config/p2pmsg/id where --trust or --access is given)", "KEYFILE"),
    option("--trust", "the file of known peers (default: $P2PMSG_SECURITY_TRUST, or "
           "~/.config/p2pmsg/known_peers)", "FILE"),
    option("--access", "the file of rights by topic (default: $P2PMSG_SECURITY_ACCESS, or none: "
           "who is known may do everything)", "FILE"),
)  # fmt: skip


def security_words(arguments: argparse.Namespace) -> list[str]:
    """Return the options again, for a process that is started."""
    given = {"security": arguments.security, "trust": arguments.trust, "access": arguments.access}
    return [word for name, file in given.items() if file for word in (f"--{name}", file)]


def security_of(arguments: argparse.Namespace) -> "Security | None":
    """Return what options and environment say; None where none of them says anything.

    Raises:
        UsageError: a file cannot be used, or the environment has a variable that is none of these.

    """
    given = {"key": arguments.security, "trust": arguments.trust, "access": arguments.access}
    in_environment = [name for name in os.environ if name.startswith(_PREFIX)]
    if not in_environment and not any(given.values()):
        return None  # and nothing of it is imported
    for name in in_environment:  # a wrong name must not leave a peer open
        if name.removeprefix(_PREFIX) not in _NAMES:
            one_of = ", ".join(_PREFIX + each for each in _NAMES)
            raise UsageError(f"{name}: there is no such variable: {one_of}")
    from p2pmsg.errors import ConfigError
    from p2pmsg.security.settings import Security

    try:
        return Security.from_environment(**given)
    except ConfigError as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise UsageError(_unreadable(given, error)) from error


def _unreadable(given: "dict[str, str | None]", error: OSError) -> str:
    """Return which file cannot be read, who named it, and why."""
    found = str(error.filename)
    for name in ("key", "trust", "access"):
        variable = _PREFIX + name.upper()
        path = given[name] or os.environ.get(variable, "")
        if path and os.path.expanduser(path) == found:
            said = variable if not given[name] else _OPTIONS.get(name, f"--{name}")
            return f"{said}: {cannot('read', path, error)}"
    hint = "it has this peer's key unless --security names another file (`p2pmsg key new` makes it)"
    return f"{cannot('read', found, error)}; {hint}"
