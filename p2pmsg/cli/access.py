"""`p2pmsg access`: what an access file allows."""

import argparse

from p2pmsg.cli.command import CommandGroup, UsageError, cannot, command, note, option
from p2pmsg.security.access import VERBS, load_access


def _verb(text: str) -> str:
    if text not in VERBS:
        raise argparse.ArgumentTypeError(f"must be one of {', '.join(VERBS)}, not {text!r}")
    return text


def _topic(text: str) -> str:
    if not text or "*" in text[:-1] or "\0" in text:
        raise argparse.ArgumentTypeError(f"must be a topic, or a prefix and one *, not {text!r}")
    return text


@command(
    "access check",
    option("file", "the access file", "FILE"),
    option("who", "the name of a peer, as in [peers] or known_peers", "WHO"),
    option("verb", "one of " + ", ".join(VERBS), "VERB", _verb),
    option("topic", "a topic, or a prefix and * for all topics that begin so; for push, pull and "
           "admin the name of a queue, for request and respond that of a method", "TOPIC", _topic),
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
    try:
        access = load_access(arguments.file)
    except OSError as error:
        raise UsageError(cannot("read", arguments.file, error)) from error
    if arguments.who not in access.peers:
        known = f"{arguments.who!r} is not in [peers] of this file; known_peers may name it"
        note("access check", known)
    decision = access.decide(arguments.who, arguments.verb, arguments.topic)
    print(decision)
    return 0 if decision else 1


access = CommandGroup(
    "access",
    """\
Say what an access file allows, and which rule decides.

For example:
  p2pmsg access check access.toml bars-1 subscribe trades
""",
    (check,),
)
