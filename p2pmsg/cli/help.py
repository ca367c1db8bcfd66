"""`p2pmsg help`: the help of each command."""

import argparse

from p2pmsg.cli.command import CommandGroup, UsageError, choice, command, option
from p2pmsg.cli.table import COMMANDS, load, overview


@command(
    "help",
    option("words", "a command, or two words such as `log ls` (default: list the commands)",
           "COMMAND", nargs="*", default=[]),
)  # fmt: skip
def help(arguments: argparse.Namespace) -> int:  # noqa: A001 - the command's name
    """Print the help of a command.

    For example:
      p2pmsg help
      p2pmsg help sub
      p2pmsg help log ls
    """
    words: list[str] = arguments.words
    if not words:
        print(overview(), end="")
        return 0
    loaded = load(words[0]) if words[0] in COMMANDS else None
    of_group = loaded.commands if isinstance(loaded, CommandGroup) else ()
    found = {each.name: each for each in (loaded, *of_group) if each is not None}
    name = " ".join(words)
    if name not in found:
        raise UsageError(f"{choice(name, [*COMMANDS, *found])} (p2pmsg help lists them)")
    found[name].parser().print_help()
    return 0
