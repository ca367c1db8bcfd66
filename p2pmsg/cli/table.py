"""The commands by name: the module of each, and its summary. `p2pmsg --help` imports no command."""

from importlib import import_module

TYPE_CHECKING = False  # typing's own would have to be imported
if TYPE_CHECKING:
    from collections.abc import Iterator

    from p2pmsg.cli.command import Command, CommandGroup

COMMANDS = {
    "demo": ("demo", "Play a market feed to two subscribers and into Spark"),
    "pub": ("pubsub", "Publish lines of standard input"),
    "sub": ("pubsub", "Print messages as they come"),
    "listen": ("listen", "Print what a multicast carries: its sessions, topics, rates and loss"),
    "relay": ("relay", "Receive streams and serve them on"),
    "bridge": ("bridge", "Pass messages on between p2pmsg and plain ZeroMQ programs"),
    "push": ("jobs", "Make a job of each line of standard input"),
    "pull": ("jobs", "Run a command for each job, with its value on standard input"),
    "request": ("request", "Ask one of several responders, or all, and print the answer"),
    "respond": (
        "respond", "Answer requests by running a command, with the value on its standard input",
    ),
    "run": ("run", "Run an app: its handlers for messages, jobs, requests and timers"),
    "dead-letters": ("jobs", "List, show, retry or purge dead letters"),
    "serve": (
        "serve", "Serve streams to browsers as Server-Sent Events, and publish what is posted",
    ),
    "hook": ("hook", "Post streams to webhooks, publish webhooks, list dead letters"),
    "statsd": (
        "statsd",
        "Receive metrics of StatsD and DogStatsD clients, aggregate them, and pass them on",
    ),
    "log": ("log", "Inspect a local log, check it, mend it, replay it, shorten it"),
    "key": ("key", "Make a peer's key, or show its public part"),
    "trust": ("key", "Say whom this machine's peers know, by their public keys"),
    "access": ("access", "Say what an access file allows, and which rule decides"),
    "capacity": (
        "capacity", "Say how long a window a disk holds, or how much disk a window needs",
    ),
    "completion": (
        "completion", "Print a script that completes commands and options in a shell",
    ),
    "help": ("help", "Print the help of a command"),
}  # fmt: skip
"""In the order of `p2pmsg --help`: the module in `p2pmsg.cli`, and the docstring's first line."""


def load(name: str) -> "Command | CommandGroup":
    """Import a command: in its module it has its own name, with _ for -."""
    module = import_module(f"p2pmsg.cli.{COMMANDS[name][0]}")
    found: Command | CommandGroup = getattr(module, name.replace("-", "_"))
    return found


def load_all() -> "Iterator[Command | CommandGroup]":
    """Import all commands, and yield each; those of a group come after it."""
    for name in COMMANDS:
        loaded = load(name)
        yield loaded
        yield from getattr(loaded, "commands", ())


def overview() -> str:
    """Return what `p2pmsg --help` prints."""
    width = max(map(len, COMMANDS))
    lines = [f"    {name:{width}}  {summary}" for name, (_, summary) in COMMANDS.items()]
    return _OVERVIEW.format(commands="\n".join(lines))


_OVERVIEW = """\
usage: p2pmsg [-h] [--version] COMMAND ...

Brokerless messaging in which nothing is lost silently.

For example, in two terminals:
  p2pmsg sub tcp://127.0.0.1:5556
  echo hello | p2pmsg pub tcp://127.0.0.1:5556 greetings

options:
  -h, --help  show this help message and exit
  --version   show program's version number and exit

commands (`p2pmsg help COMMAND` says more):
{commands}

Defaults of options and endpoints: `[sub] json = true` in p2pmsg.toml, or in the file that
P2PMSG_CONFIG names; P2PMSG_SUB_JSON=1 in the environment goes before it. `--no-json` undoes both.
"""
