"""The options of a peer's key, the peers that it knows, and what they may do."""

import argparse
import os
from typing import TYPE_CHECKING, Final

from p2pmsg.cli.command import UsageError, cannot, option

if TYPE_CHECKING:
    from p2pmsg.security import Security

_PREFIX: Final = "P2PMSG_SECURITY_"
_NAMES: Final = ("KEY", "TRUST", "ACCESS")

SECURITY = (
    option("--security", "encrypt all connections and let only known peers connect: the file with "
           "this peer's key, which `p2pmsg key new` makes (default: $P2PMSG_SECURITY_KEY; "
           "~/.config/p2pmsg/id where --trust or --access is given)", "KEYFILE"),
    option("--trust", "the file of known peers (default: $P2PMSG_SECURITY_TRUST, or "
           "~/.config/p2pmsg/known_peers)", "FILE"),
    option("--access", "the file of rights by topic (default: $P2PMSG_SECURITY_ACCESS, or none: "
           "who is known may do everything)", "FILE"),
)  # fmt: skip


def security_of(arguments: argparse.Namespace) -> "Security | None":
    """Return what options and environment say; None where none of them says anything.

    Raises:
        ConfigError: what a file has is wrong.
        UsageError: a file cannot be read, or the environment has a variable that is none of these.

    """
    given = {"key": arguments.security, "trust": arguments.trust, "access": arguments.access}
    in_environment = [name for name in os.environ if name.startswith(_PREFIX)]
    if not in_environment and not any(given.values()):
        return None  # and nothing of it is imported
    for name in in_environment:  # a wrong name must not leave a peer open
        if name.removeprefix(_PREFIX) not in _NAMES:
            one_of = ", ".join(_PREFIX + each for each in _NAMES)
            raise UsageError(f"{name}: there is no such variable: {one_of}")
    from p2pmsg.security import Security

    try:
        return Security.from_environment(**given)
    except OSError as error:
        hint = "--security, --trust and --access, or the environment, name other files"
        raise UsageError(f"{cannot('use', str(error.filename), error)}; {hint}") from error
