"""Commands as data: each command and each option is declared once, and the parser is built from it.

A new command is a function, and its name in `p2pmsg.cli.COMMANDS`. The docstring is its help::

    @command("echo", TOPIC, option("--count", "end after N messages", "N", count(1)))
    def echo(arguments: argparse.Namespace) -> int:
        (docstring) Print a summary in one line.
"""

import argparse
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from p2pmsg.cli.text import one_line
from p2pmsg.errors import P2PError

Run = Callable[[argparse.Namespace], int]
"""What a command does; returns the exit status."""


class UsageError(P2PError):
    """Arguments that are right one by one do not go together."""


@dataclass(frozen=True, slots=True)
class Option:
    """An option, or a positional argument, as `ArgumentParser.add_argument` takes it."""

    name: str
    settings: dict[str, Any]


@dataclass(frozen=True, slots=True)
class OneOf:
    """Options that exclude one another."""

    options: tuple[Option, ...]
    required: bool = False
    """Whether one of them must be given."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command of the command line.

    Attributes:
        name: as users write it: `pub`, `log ls`.
        description: what `--help` prints before the options; the first line is the summary.
        options: in the order of the help.
        run: what it does.
        ended_by: options that end the command. Without all of them it runs until it is stopped.
            None: it always ends by itself.
        usage: instead of the usage line that argparse makes.

    """

    name: str
    description: str
    options: tuple[Option | OneOf, ...]
    run: Run
    ended_by: tuple[str, ...] | None
    usage: str | None

    def add_to(self, commands: Any) -> None:
        """Add the command's parser to argparse's sub-parsers."""
        parser = _add_parser(commands, self.name, self.description, usage=self.usage)
        parser.set_defaults(command=self)
        for each in self.options:
            if isinstance(each, OneOf):
                group = parser.add_mutually_exclusive_group(required=each.required)
                for option in each.options:
                    group.add_argument(option.name, **option.settings)
            else:
                parser.add_argument(each.name, **each.settings)

    def runs_until_stopped(self, arguments: argparse.Namespace) -> bool:
        """Whether, with these arguments, only a signal ends the command."""
        return self.ended_by is not None and all(
            getattr(arguments, option) is None for option in self.ended_by
        )


@dataclass(frozen=True, slots=True)
class CommandGroup:
    """Commands that share the first word of their names, as `p2pmsg log ls` does."""

    name: str
    description: str
    commands: "tuple[Command | CommandGroup, ...]"

    def add_to(self, commands: Any) -> None:
        """Add the group's parser to argparse's sub-parsers."""
        add_commands(_add_parser(commands, self.name, self.description), self.commands)


def option(
    name: str,
    help: str,  # noqa: A002 - argparse's word
    metavar: str | None = None,
    kind: Callable[[str], Any] | None = None,
    **more: Any,
) -> Option:
    """Declare an option, or a positional argument where `name` has no dashes.

    Args:
        name: `--count`, or `topics`.
        help: what it is for, with its unit and default.
        metavar: what stands for its value in the help.
        kind: checks a value; see `p2pmsg.cli.arguments`.
        more: what else `ArgumentParser.add_argument` takes.

    """
    given = {"metavar": metavar, "type": kind}
    settings = {key: value for key, value in given.items() if value is not None}
    return Option(name, {"help": help, **settings, **more})


def flag(name: str, help: str) -> Option:  # noqa: A002 - argparse's word
    """Declare an option without a value."""
    return option(name, help, action="store_true")


def command(
    name: str,
    *options: Option | OneOf,
    ended_by: tuple[str, ...] | None = None,
    usage: str | None = None,
) -> Callable[[Run], Command]:
    """Make a command of a function, with its docstring as description; see `Command`."""

    def declare(run: Run) -> Command:
        description = inspect.cleandoc(run.__doc__ or "")
        return Command(name, description + "\n", options, run, ended_by, usage)

    return declare


class Parser(argparse.ArgumentParser):
    """An argument parser that reports errors in one line, and takes options anywhere."""

    def __init__(self, prog: str, description: str, **rest: Any) -> None:
        super().__init__(
            prog=prog,
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            **rest,
        )
        self._intermixing = False

    def error(self, message: str) -> NoReturn:
        """Print one line and exit with status 2."""
        print(f"{self.prog}: {one_line(message)}", file=sys.stderr)
        sys.exit(2)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Allow options between a command's positional arguments, too."""
        if self._intermixing:
            return super().parse_known_args(args, namespace)
        if self._subparsers is not None:
            found, unknown = super().parse_known_args(args, namespace)
        else:
            self._intermixing = True
            try:
                found, unknown = self.parse_known_intermixed_args(args, namespace)
            finally:
                self._intermixing = False
        if unknown:
            self.error(f"unknown arguments: {' '.join(unknown)}")
        return found, unknown


def add_commands(parser: Parser, commands: Sequence[Command | CommandGroup]) -> None:
    """Add commands to a parser; the user must name one of them."""
    parsers = parser.add_subparsers(metavar="COMMAND", title="commands")
    for each in commands:
        each.add_to(parsers)
    *most, last = parsers.choices
    text = f"name a command: {', '.join(most)} or {last} ({parser.prog} --help tells more)"
    parser.set_defaults(command=None, prog=parser.prog, refuse=lambda: parser.error(text))


def _add_parser(commands: Any, name: str, description: str, **rest: Any) -> Parser:
    summary = description.partition("\n")[0].rstrip(".")
    prog = f"p2pmsg {name}"
    parser: Parser = commands.add_parser(
        name.split()[-1], prog=prog, description=description, help=summary, **rest
    )
    parser.set_defaults(prog=prog)
    return parser


def note(command: str, text: str) -> None:
    """Print a line on standard error: what happened, after the name of the command."""
    print(f"p2pmsg {command}: {one_line(text)}", file=sys.stderr, flush=True)
