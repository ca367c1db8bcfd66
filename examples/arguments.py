"""What the examples' command lines share: `--help`, and at most one argument."""

import argparse
from collections.abc import Callable
from typing import Any


def parser(text: str | None) -> argparse.ArgumentParser:
    """Return a parser that shows an example's docstring as its help."""
    return argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def none(text: str | None) -> None:
    """Parse the command line of an example that takes no argument."""
    parser(text).parse_args()


def optional(
    text: str | None, name: str, default: Any = None, kind: Callable[..., Any] = str
) -> Any:
    """Return the one argument that an example takes, or `default`."""
    made = parser(text)
    shown = "" if default is None else f"default: {default}"
    made.add_argument("value", metavar=name, nargs="?", type=kind, default=default, help=shown)
    return made.parse_args().value
