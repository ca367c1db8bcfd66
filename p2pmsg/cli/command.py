"""Commands as data: each command and each option is declared once, and the parser is built from it.

A new command is a function, and a line in `p2pmsg.cli.COMMANDS`. The docstring is its help::

    @command("echo", TOPIC, option("--count", "end after N messages", "N", count(1)))
    def echo(arguments: argparse.Namespace) -> int:
        (docstring) Print a summary in one line.
"""

import argparse
import inspect
import os
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, NoReturn

Run = Callable[[argparse.Namespace], int]
"""What a command does; returns the exit status."""


UsageError = argparse.ArgumentTypeError
"""An argument is wrong, or arguments that are right one by one do not go together."""


@dataclass(frozen=True, slots=True)
class Option:
    """An option, or a positional argument, as `ArgumentParser.add_argument` takes it."""

    name: str
    settings: dict[str, Any]

    @property
    def is_flag(self) -> bool:
        """Whether it takes no value."""
        return self.settings.get("action") == "store_true"


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

    @property
    def summary(self) -> str:
        """The first line of the description, without its full stop."""
        return self.description.partition("\n")[0].rstrip(".")

    def all_options(self) -> Iterator[Option]:
        """Yield each option, also of those that exclude one another."""
        for each in self.options:
            yield from each.options if isinstance(each, OneOf) else (each,)

    def parser(self) -> "Parser":
        """Return the parser of what stands after the command's name."""
        parser = Parser(
            prog=f"p2pmsg {self.name}",
            description=self.description,
            usage=self.usage,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        parser.set_defaults(command=self, prog=parser.prog)
        for each in self.options:
            if isinstance(each, OneOf):
                group = parser.add_mutually_exclusive_group(required=each.required)
                for option in each.options:
                    group.add_argument(option.name, **option.settings)
            else:
                parser.add_argument(each.name, **each.settings)
        return parser

    def runs_until_stopped(self, arguments: argparse.Namespace) -> bool:
        """Whether, with these arguments, only a signal ends the command."""
        return self.ended_by is not None and all(
            getattr(arguments, option) is None for option in self.ended_by
        )


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
    """An argument parser that reports an error in one line."""

    def error(self, message: str) -> NoReturn:
        """Print one line and exit with status 2."""
        print(f"{self.prog}: {one_line(message)}", file=sys.stderr)
        sys.exit(2)


def choice(word: str, names: Collection[str]) -> str:
    """Return that a command is missing, or which one may have been meant, and which there are."""
    if not word:
        return f"name a command: {', '.join(names)}"
    near = get_close_matches(word, names, 1)
    meant = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
    return f"there is no command {word!r}; {meant}"


def one_line(text: str) -> str:
    """Return `text` without line breaks and other control characters."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def reason_of(error: BaseException) -> str:
    """Return what an error says, for people: without the system's numbers, and what is no UTF-8."""
    if isinstance(error, UnicodeError):
        return "it is no text in UTF-8"
    if not isinstance(error, OSError) or not str(error).startswith("[Errno "):
        return str(error) or type(error).__name__
    reason = str(error.strerror)
    return reason if error.filename is None else f"{os.fsdecode(error.filename)!r}: {reason}"


def cannot(verb: str, path: str, error: BaseException) -> str:
    """Return that a file cannot be read, written or used, and why: `cannot read '/x': REASON`."""
    known = isinstance(error, OSError) and error.strerror
    return f"cannot {verb} {path!r}: {known or reason_of(error)}"


def note(command: str, text: str) -> None:
    """Print a line on standard error: what happened, after the name of the command."""
    # As one piece: `print` writes the end of a line by itself, and another line may come before it.
    sys.stderr.write(f"p2pmsg {command}: {one_line(text)}\n")
    sys.stderr.flush()
