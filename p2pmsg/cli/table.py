"""The commands by name: the module of each, and its summary. `p2pmsg --help` imports no command."""

from importlib import import_module

TYPE_CHECKING = False  # typing's own would have to be imported
if TYPE_CHECKING:
    from collections.abc import Sequence

    from p2pmsg.cli.command import Command

COMMANDS = {
    "demo": ("demo", "Play a market feed to two subscribers and into Spark"),
    "pub": ("pubsub", "Publish lines of standard input"),
    "sub": ("pubsub", "Print messages as they come"),
    "listen": ("listen", "Print what a multicast carries: its sessions, topics, rates and loss"),
    "relay": ("relay", "Receive streams and serve them on"),
    "bridge": ("bridge", "Pass messages on between p2pmsg and plain ZeroMQ programs"),
    "push": ("jobs", "Make a job of each line of standard input"),
    "pull": ("jobs", "Run a command for each job, with its value on standard input"),
    "dead-letters": ("letters", "List, show, retry or purge dead letters of a queue"),
    "request": ("request", "Ask one of several responders, or all, and print the answer"),
    "respond": (
        "respond", "Answer requests by running a command, with the value on its standard input",
    ),
    "run": ("run", "Run an app: its handlers for messages, jobs, requests and timers"),
    "serve": (
        "serve", "Serve streams to browsers as Server-Sent Events, and publish what is posted",
    ),
    "hook out": ("hook", "Post the messages of streams to URLs: each at least once, and in order"),
    "hook in": ("hook", "Publish the webhooks that are posted here"),
    "hook dead-letters": ("letters", "List, show, retry or purge what no URL took"),
    "statsd": (
        "statsd",
        "Receive metrics of StatsD and DogStatsD clients, aggregate them, and pass them on",
    ),
    "log ls": ("log", "List the streams of a log"),
    "log dump": ("log", "Print messages of a log as JSON lines"),
    "log verify": ("log", "Check every record of a log by its checksum"),
    "log repair": ("log", "Keep what is intact in a damaged log, of messages or of a queue"),
    "log replay": ("log_replay", "Publish again what a log has"),
    "log truncate": ("log", "Delete the oldest messages of a log"),
    "key new": ("key", "Make a key file, which only its owner can read, and print the public key"),
    "key show": ("key", "Print the public key of a key file, and its fingerprint"),
    "trust add": ("key", "Add a peer to the file of known peers, or endpoints to its line"),
    "trust ls": ("key", "Print the known peers: name, key, endpoints"),
    "trust remove": (
        "key", "Remove a peer from the file of known peers; connections that it has stay",
    ),
    "access check": ("key", "Say whether a peer may do something, and which rule decides"),
    "completion": (
        "completion", "Print a script that completes commands and options in a shell",
    ),
}  # fmt: skip
"""In the order of `p2pmsg --help`: the module in `p2pmsg.cli`, and the docstring's first line."""


def split(words: "Sequence[str]") -> "tuple[str, list[str]]":
    """Return the command that the first word, or the first two, name, and the words after it.

    The name is that of a group, as `log`, where the second word is none of its commands; and that
    which was written where there is no such command.
    """
    for length in (2, 1):
        name = " ".join(words[:length])
        if name in COMMANDS:
            return name, list(words[length:])
    return " ".join(words[:1]), list(words[1:])


def members(group: str) -> list[str]:
    """Return the commands whose names begin with the word `group`."""
    return [name for name in COMMANDS if name.startswith(f"{group} ")]


def load(name: str) -> "Command":
    """Import a command."""
    from p2pmsg.cli.command import Command

    module = import_module(f"p2pmsg.cli.{COMMANDS[name][0]}")
    found = (each for each in vars(module).values() if isinstance(each, Command))
    return next(each for each in found if each.name == name)


def overview(group: str = "") -> str:
    """Return what `p2pmsg --help` prints; `group`: only the commands of that group."""
    names = members(group) if group else list(COMMANDS)
    width = max(map(len, names))
    commands = "\n".join(f"    {name:{width}}  {COMMANDS[name][1]}" for name in names)
    return _GROUP.format(group=group, commands=commands) if group else _ALL + commands + _DEFAULTS


_GROUP = """\
usage: p2pmsg {group} COMMAND ...

commands (`p2pmsg {group} COMMAND --help` says more):
{commands}
"""
_ALL = """\
usage: p2pmsg [-h] [--version] COMMAND ...

Brokerless messaging in which nothing is lost silently.

For example, in two terminals:
  p2pmsg sub tcp://127.0.0.1:5556
  echo hello | p2pmsg pub tcp://127.0.0.1:5556 greetings

options:
  -h, --help  show this help message and exit
  --version   show program's version number and exit

commands (`p2pmsg COMMAND --help` says more):
"""
_DEFAULTS = """

Defaults of options: `[sub] json = true` in p2pmsg.toml, or in the file that P2PMSG_CONFIG names;
P2PMSG_SUB_JSON=1 in the environment goes before it.
"""
