"""`p2pmsg key` and `p2pmsg trust`: a peer's key, and the peers that it knows."""

import argparse

from p2pmsg.cli.command import CommandGroup, UsageError, cannot, command, flag, option
from p2pmsg.errors import AuthenticationError, ConfigError
from p2pmsg.security.keys import new_keys, read_key_file, write_key_file
from p2pmsg.security.settings import KEY_PATH, TRUST_PATH
from p2pmsg.security.trust import KnownPeers
from transports import fingerprint, key_text

_KEY = option("--key", "the key file", "FILE", default=KEY_PATH)
_TRUST = option("--trust", "the file of known peers", "FILE", default=TRUST_PATH)
_ERRORS = (ConfigError, AuthenticationError, OSError)
_NAME = option("name", "the name of a peer", "NAME")


def _refused(option: str, verb: str, path: str, error: Exception) -> UsageError:
    if isinstance(error, OSError):
        return UsageError(f"{option}: {cannot(verb, path, error)}")
    return UsageError(str(error))


@command("key new", _KEY)
def new(arguments: argparse.Namespace) -> int:
    """Make a key file, which only its owner can read, and print the public key.

    There must be no such file yet.

    For example:
      p2pmsg key new --key prices.key
    """
    keys = new_keys()
    try:
        write_key_file(arguments.key, keys)
    except _ERRORS as error:
        raise _refused("--key", "write", arguments.key, error) from error
    print(key_text(keys.public))
    return 0


@command("key show", _KEY)
def show(arguments: argparse.Namespace) -> int:
    """Print the public key of a key file, and its fingerprint.

    For example:
      p2pmsg key show --key prices.key
    """
    try:
        public = read_key_file(arguments.key).public
    except _ERRORS as error:
        raise _refused("--key", "read", arguments.key, error) from error
    print(f"{key_text(public)}  fingerprint {fingerprint(public)}")
    return 0


key = CommandGroup(
    "key",
    """\
Make a peer's key, or show its public part.

For example:
  p2pmsg key new
  p2pmsg key show
""",
    (new, show),
)


@command(
    "trust add",
    _NAME,
    option("public", "its public key, as `p2pmsg key show` prints it", "KEY"),
    option("endpoints", "where it binds; a port of * for all ports", "ENDPOINT", nargs="*"),
    flag("--replace", "replace another key that the name has"),
    _TRUST,
)
def add(arguments: argparse.Namespace) -> int:
    """Add a peer to the file of known peers, or endpoints to its line.

    A name that has another key is refused, unless --replace is given.

    For example:
      p2pmsg trust add prices KEY tcp://prices:5556
    """
    try:
        peer = KnownPeers(arguments.trust).add(
            arguments.name, arguments.public, arguments.endpoints, replace=arguments.replace
        )
    except _ERRORS as error:
        raise _refused("--trust", "use", arguments.trust, error) from error
    print(peer)
    return 0


@command("trust ls", _TRUST)
def ls(arguments: argparse.Namespace) -> int:
    """Print the known peers: name, key, endpoints.

    For example:
      p2pmsg trust ls
    """
    try:
        peers = list(KnownPeers(arguments.trust).peers())
    except _ERRORS as error:
        raise _refused("--trust", "read", arguments.trust, error) from error
    for peer in peers:
        print(peer)
    return 0


@command("trust remove", _NAME, _TRUST)
def remove(arguments: argparse.Namespace) -> int:
    """Remove a peer from the file of known peers; connections that it has stay.

    For example:
      p2pmsg trust remove prices
    """
    try:
        removed = KnownPeers(arguments.trust).remove(arguments.name)
    except _ERRORS as error:
        raise _refused("--trust", "use", arguments.trust, error) from error
    print(removed)
    return 0


trust = CommandGroup(
    "trust",
    """\
Say whom this machine's peers know, by their public keys.

For example:
  p2pmsg trust add prices KEY tcp://prices:5556
  p2pmsg trust ls
""",
    (add, ls, remove),
)
