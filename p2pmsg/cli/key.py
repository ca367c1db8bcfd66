"""`p2pmsg key`, `trust` and `access check`: a peer's key, the peers that it knows, their rights."""

import argparse

from p2pmsg.cli.command import command, flag, note, option
from p2pmsg.security import (
    KEY_PATH,
    TRUST_PATH,
    VERBS,
    KnownPeers,
    fingerprint,
    key_text,
    load_access,
    new_keys,
    read_key_file,
    write_key_file,
)

_KEY = option("--key", "the key file", "FILE", default=KEY_PATH)
_TRUST = option("--trust", "the file of known peers", "FILE", default=TRUST_PATH)
_NAME = option("name", "the name of a peer", "NAME")


@command("key new", _KEY)
def new(arguments: argparse.Namespace) -> int:
    """Make a key file, which only its owner can read, and print the public key.

    There must be no such file yet.

    For example:
      p2pmsg key new --key prices.key
    """
    keys = new_keys()
    write_key_file(arguments.key, keys)
    print(key_text(keys.public))
    return 0


@command("key show", _KEY)
def show(arguments: argparse.Namespace) -> int:
    """Print the public key of a key file, and its fingerprint.

    For example:
      p2pmsg key show --key prices.key
    """
    public = read_key_file(arguments.key).public
    print(f"{key_text(public)}  fingerprint {fingerprint(public)}")
    return 0


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
    known = KnownPeers(arguments.trust)
    print(
        known.add(arguments.name, arguments.public, arguments.endpoints, replace=arguments.replace)
    )
    return 0


@command("trust ls", _TRUST)
def ls(arguments: argparse.Namespace) -> int:
    """Print the known peers: name, key, endpoints.

    For example:
      p2pmsg trust ls
    """
    for peer in list(KnownPeers(arguments.trust).peers()):
        print(peer)
    return 0


@command("trust remove", _NAME, _TRUST)
def remove(arguments: argparse.Namespace) -> int:
    """Remove a peer from the file of known peers; connections that it has stay.

    For example:
      p2pmsg trust remove prices
    """
    print(KnownPeers(arguments.trust).remove(arguments.name))
    return 0


@command(
    "access check",
    option("file", "the access file", "FILE"),
    option("who", "the name of a peer, as in [peers] or known_peers", "WHO"),
    option("verb", "what is to be done", choices=VERBS),
    option("topic", "a topic, or a prefix and * for all topics that begin so; for push, pull and "
           "admin the name of a queue, for request and respond that of a method", "TOPIC"),
)  # fmt: skip
def check(arguments: argparse.Namespace) -> int:
    """Say whether a peer may do something, and which rule decides.

    The exit status is 0 where it is allowed, 1 where it is denied, and 2 where the file or another
    argument is wrong. What no rule gives is denied. A rule with deny = true goes before all others.
    Rules that give add up: the one with the longest replay_max decides, and one without it sets
    no limit. A prefix is allowed only where one pattern covers all of it, and nothing of it is
    denied. The order of the rules does not matter.

    For example:
      p2pmsg access check access.toml bars-1 subscribe trades
      p2pmsg access check access.toml bars-1 subscribe 'quotes*'
    """
    access = load_access(arguments.file)
    if arguments.who not in access.peers:
        known = f"{arguments.who!r} is not in [peers] of this file; known_peers may name it"
        note("access check", known)
    decision = access.decide(arguments.who, arguments.verb, arguments.topic)
    print(f"{arguments.who!r} {arguments.verb} {arguments.topic!r}: {decision}")
    return 0 if decision else 1
