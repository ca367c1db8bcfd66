"""Defaults of options and endpoints: `P2PMSG_SUB_JSON=1`, or `[sub] json = true` in a file.

The file is named by P2PMSG_CONFIG, or is `p2pmsg.toml` in the current directory; with P2PMSG_CONFIG
empty there is none. The command line goes before the environment, and that before the file.
"""

import argparse
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from p2pmsg.cli.command import Command, CommandGroup, OneOf, Option, UsageError, choice
from p2pmsg.cli.table import COMMANDS

FILE = "p2pmsg.toml"
_WORDS = {"1": True, "true": True, "yes": True, "on": True,
          "0": False, "false": False, "no": False, "off": False}  # fmt: skip
_ENDPOINTS = ("endpoint", "endpoints")
"""Positional arguments that may have defaults."""
_KUBERNETES = re.compile(
    r"(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)"
)
"""What it sets for services named `p2pmsg-relay` and `p2pmsg-relay-eu`, after `P2PMSG_RELAY_`."""


def parse(found: Command | CommandGroup, words: Sequence[str]) -> argparse.Namespace:
    """Return the values of a command's arguments; exit with status 2 if one is wrong.

    Args:
        found: the command, or the group in which the first word names one.
        words: what stands after its name.

    """
    group: CommandGroup | None = None
    if isinstance(found, CommandGroup):
        group = found
        found, words = group.find(words), words[1:]
    try:
        found = _with_defaults(found, group, words, os.environ)
    except UsageError as error:
        found.parser().error(str(error))
    return found.parser().parse_args(words)


def _with_defaults(
    command: Command,
    group: CommandGroup | None,
    words: Sequence[str],
    environment: Mapping[str, str],
) -> Command:
    """Return the command with the defaults that file and environment give to its options.

    An option that the words give, or exclude, gets none.
    """
    known = {
        option.name.removeprefix("--"): option
        for option in command.all_options()
        if option.name.startswith("--") or option.name in _ENDPOINTS
    }  # fmt: skip
    if not (known or group) or {"-h", "--help"} & set(words):
        return command
    from_file = _from_file(command, group, known, environment)
    from_environment = _from_environment(command, known, environment)
    given = {word.partition("=")[0][2:] for word in words if word.startswith("--")}
    given |= {name for name in _ENDPOINTS if name in known and _has(words, name, known)}
    options: list[Option | OneOf] = []
    for each in command.options:
        members = each.options if isinstance(each, OneOf) else (each,)
        names = {option.name.removeprefix("--") for option in members}
        chosen = {name: value for name, value in from_file.items() if name in names}
        nearer = {name: value for name, value in from_environment.items() if name in names}
        chosen = nearer if _effective(nearer) else chosen | nearer
        if names & given:
            chosen = {}
        elif len(both := _effective(chosen)) > 1:
            raise UsageError(f"the defaults of {' and '.join(both)} exclude one another")
        changed = tuple(_with_default(option, chosen) for option in members)
        is_missing = isinstance(each, OneOf) and each.required and not chosen
        options.append(OneOf(changed, is_missing) if isinstance(each, OneOf) else changed[0])
    return replace(command, options=tuple(options))


def _effective(chosen: Mapping[str, Any]) -> list[str]:
    """Return the options that a default turns on, or gives a value."""
    return [f"--{name}" for name, value in chosen.items() if value is not False]


def _with_default(option: Option, chosen: Mapping[str, Any]) -> Option:
    """Return it with its default. Endpoints become an option, so that topics may stand alone."""
    name = option.name.removeprefix("--")
    if name not in chosen:
        return option
    left_out = ("required",) if option.name.startswith("--") else ("nargs", "help")
    settings = {key: value for key, value in option.settings.items() if key not in left_out}
    return Option(f"--{name}", settings | {"default": chosen[name]})


def _has(words: Sequence[str], name: str, known: Mapping[str, Option]) -> bool:
    """Whether a word, other than the value of an option, can be the endpoints of that name."""
    for before, word in zip(("", *words), words, strict=False):
        option = known.get(before[2:]) if before.startswith("--") else None
        if word.startswith("-") or (option is not None and not option.is_flag):
            continue
        try:
            _check_one(known[name].settings, word, name)
        except UsageError:
            continue
        return True
    return False


def _from_environment(
    command: Command, known: Mapping[str, Option], environment: Mapping[str, str]
) -> dict[str, Any]:
    prefix = f"P2PMSG_{_upper(command.name)}_"
    by_variable = {f"{prefix}{_upper(name)}": name for name in known}
    found = {}
    for variable, text in environment.items():
        rest = variable.removeprefix(prefix)
        if rest == variable or (variable not in by_variable and _KUBERNETES.fullmatch(rest)):
            continue
        if variable not in by_variable:
            raise UsageError(f"{variable}: {command.name} has no such option")
        name = by_variable[variable]
        value: Any = text.split() if _is_list(known[name]) else text
        if known[name].is_flag:
            value = _WORDS.get(text.lower(), text)
        found[name] = _checked(known[name], value, variable)
    return found


def _upper(name: str) -> str:
    return re.sub("[ -]", "_", name).upper()


def _from_file(
    command: Command,
    group: CommandGroup | None,
    known: Mapping[str, Option],
    environment: Mapping[str, str],
) -> dict[str, Any]:
    path = environment.get("P2PMSG_CONFIG", FILE if os.path.exists(FILE) else "")
    if not path:
        return {}
    import tomllib

    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        table: Any = tomllib.loads(text)
    except OSError as error:
        raise UsageError(f"cannot read {path!r}: {error.strerror}") from error
    except ValueError as error:  # of TOML, or of UTF-8
        raise UsageError(f"{path}: {error}") from error
    names: Collection[str] = COMMANDS
    where, words = path, command.name.split()
    for word in words:
        for name in table:
            if name not in names:
                raise UsageError(f"{where}: {choice(name, names)}")
        names = [] if group is None else [each.name.split()[-1] for each in group.commands]
        table = table.get(word, {})
        where = f"{path}, [{word if word == words[0] else '.'.join(words)}]"
        if not isinstance(table, dict):
            raise UsageError(f"{where}: must be a section with options")
    found = {}
    for key, value in table.items():
        name = key.replace("_", "-")
        if name not in known:
            raise UsageError(f"{where}: there is no option {key!r}")
        found[name] = _checked(known[name], value, f"{where}: {key}")
    return found


def _checked(option: Option, value: Any, where: str) -> Any:
    """Return a value as the option's own check makes it of the command line's text."""
    if option.is_flag:
        if isinstance(value, bool):
            return value
        raise UsageError(f"{where}: must be true or false, not {value!r}")
    if option.name in _ENDPOINTS and isinstance(value, list):
        value = ",".join(map(str, value))
    if not _is_list(option):
        return _check_one(option.settings, value, where)
    several = value if isinstance(value, list) else [value]
    return [_check_one(option.settings, each, where) for each in several]


def _is_list(option: Option) -> bool:
    return option.settings.get("action") == "append" or option.settings.get("nargs") in ("*", "+")


def _check_one(settings: Mapping[str, Any], value: Any, where: str) -> Any:
    if isinstance(value, bool | list | dict):
        raise UsageError(f"{where}: must be a value as on the command line, not {value!r}")
    text = value.isoformat() if hasattr(value, "isoformat") else str(value)
    check: Callable[[str], Any] = settings.get("type", str)
    try:
        checked = check(text)
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"{where}: {error}") from error
    choices = settings.get("choices")
    if choices and checked not in choices:
        raise UsageError(f"{where}: must be {' or '.join(map(str, choices))}, not {text!r}")
    return checked
