"""Defaults of options: `P2PMSG_SUB_JSON=1`, or `[sub] json = true` in a file.

The file is named by P2PMSG_CONFIG, or is `p2pmsg.toml` in the current directory; with P2PMSG_CONFIG
empty there is none. The command line goes before the environment, and that before the file. A
default is one more word of the command line, which the parser checks as any other.
"""

import argparse
import os
import re
import tomllib
from collections.abc import Sequence
from typing import Any

from p2pmsg.cli.command import Command, OneOf, Option, UsageError, cannot, choice
from p2pmsg.cli.table import COMMANDS, members

FILE = "p2pmsg.toml"
_ON, _OFF = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
_KUBERNETES = re.compile(
    r"(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)"
)
"""What it sets for services named `p2pmsg-relay` and `p2pmsg-relay-eu`, after `P2PMSG_RELAY_`."""


def parse(found: Command, words: Sequence[str]) -> argparse.Namespace:
    """Return the values of a command's arguments; exit with status 2 if one is wrong."""
    parser = found.parser()
    if {"-h", "--help"} & set(words):
        parser.print_help()
        parser.exit()
    try:
        defaults = _defaults(found, words)
    except UsageError as error:
        parser.error(str(error))
    return parser.parse_intermixed_args([*words, *defaults])


def _defaults(command: Command, words: Sequence[str]) -> list[str]:
    """Return the words that file and environment add: of options that are not given or excluded."""
    options = {each.name[2:]: each for each in command.all_options() if each.name[:2] == "--"}
    if not options:
        return []
    found = {**_from_file(command, options), **_from_environment(command, options)}
    given = {word.partition("=")[0][2:] for word in words if word.startswith("--")}
    for each in command.options:
        if isinstance(each, OneOf):
            names = {option.name[2:] for option in each.options}
            given |= names if names & given else set()
    return [
        word
        for name, (value, where) in found.items()
        if name not in given
        for word in _words(options[name], value, where)
    ]


def _words(option: Option, value: Any, where: str) -> list[str]:
    """Return an option with its value as words of the command line."""
    if option.is_flag:
        text = str(value).lower()
        if text not in (*_ON, *_OFF):
            raise UsageError(f"{where}: must be true or false, not {value!r}")
        return [option.name] if text in _ON else []
    if isinstance(value, bool | dict):
        raise UsageError(f"{where}: must be a value as on the command line, not {value!r}")
    values = list(map(str, value)) if isinstance(value, list) else [str(value)]
    if option.settings.get("nargs") == "+":
        return [option.name, *values]
    return [f"{option.name}={each}" for each in values]


def _from_environment(command: Command, options: dict[str, Option]) -> dict[str, tuple[Any, str]]:
    prefix = f"P2PMSG_{_upper(command.name)}_"
    by_variable = {_upper(name): name for name in options}
    found = {}
    for variable, text in os.environ.items():
        rest = variable.removeprefix(prefix)
        if rest == variable or (rest not in by_variable and _KUBERNETES.fullmatch(rest)):
            continue
        if rest not in by_variable:
            raise UsageError(f"{variable}: {command.name} has no such option")
        settings = options[by_variable[rest]].settings
        is_list = settings.get("action") == "append" or settings.get("nargs") == "+"
        found[by_variable[rest]] = (text.split() if is_list else text, variable)
    return found


def _upper(name: str) -> str:
    return re.sub("[ -]", "_", name).upper()


def _from_file(command: Command, options: dict[str, Option]) -> dict[str, tuple[Any, str]]:
    path = os.environ.get("P2PMSG_CONFIG", FILE if os.path.exists(FILE) else "")
    if not path:
        return {}
    try:
        with open(path, "rb") as file:
            table: Any = tomllib.load(file)
    except OSError as error:
        raise UsageError(cannot("read", path, error)) from error
    except ValueError as error:  # of TOML, or of UTF-8
        raise UsageError(f"{path}: {error}") from error
    for name, section in table.items():
        of_group = [each.split()[1] for each in members(name)]
        wrong = "" if of_group or name in COMMANDS else choice(name, COMMANDS)
        for key in section if of_group and isinstance(section, dict) else ():
            wrong = wrong or ("" if key in of_group else choice(f"{name} {key}", members(name)))
        if wrong:
            raise UsageError(f"{path}: {wrong}")
    for word in command.name.split():
        table = table.get(word, {})
        if not isinstance(table, dict):
            raise UsageError(f"{path}, [{command.name}]: must be a section with options")
    where = f"{path}, [{command.name.replace(' ', '.')}]"
    found = {}
    for key, value in table.items():
        if key.replace("_", "-") not in options:
            raise UsageError(f"{where}: there is no option {key!r}")
        found[key.replace("_", "-")] = (value, f"{where}: {key}")
    return found
