"""`p2pmsg help`: the help of each command."""

import argparse

from p2pmsg.cli.command import CommandGroup, UsageError, command, option
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
    found = load(words[0]) if words[0] in COMMANDS else None
    for word in words[1:]:
        among = found.commands if isinstance(found, CommandGroup) else ()
        found = next((each for each in among if each.name.split()[-1] == word), None)
    if found is None:
        raise UsageError(f"there is no command {' '.join(words)!r} (p2pmsg help lists them)")
    found.parser().print_help()
    return 0
