"""`p2pmsg completion`: scripts by which shells complete commands and options."""

import argparse
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from p2pmsg.cli.command import Command, OneOf, Option, command, option
from p2pmsg.cli.table import COMMANDS, load_all

_HELP = Option("--help", {"help": "show this help message and exit", "action": "help"})
_VERSION = Option("--version", {"help": "show the version and exit", "action": "version"})


@command(
    "completion",
    option("shell", "bash, zsh or fish", "SHELL", choices=("bash", "zsh", "fish")),
)  # fmt: skip
def completion(arguments: argparse.Namespace) -> int:
    """Print a script that completes commands and options in a shell.

    For example:
      source <(p2pmsg completion bash)                     (in ~/.bashrc)
      p2pmsg completion zsh > "${fpath[1]}/_p2pmsg"
      p2pmsg completion fish > ~/.config/fish/completions/p2pmsg.fish
    """
    print({"bash": _bash, "zsh": _zsh, "fish": _fish}[arguments.shell](), end="")
    return 0


@dataclass(frozen=True, slots=True)
class _Place:
    """What may stand after a command's name.

    Attributes:
        name: of the command, or of a group; empty for `p2pmsg` itself.
        words: commands, or values of a positional argument, with their help.
        options: what begins with dashes.

    """

    name: str
    words: dict[str, str]
    options: tuple[Option, ...]

    def values(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield each option that takes a value, and the values if they are known."""
        for each in self.options:
            if not each.is_flag and each.settings.get("action") not in ("help", "version"):
                yield each.name, each.settings.get("choices", ())


def _places() -> Iterator[_Place]:
    summaries = {name: summary for name, (_, summary) in COMMANDS.items()}
    yield _Place("", summaries, (_HELP, _VERSION))
    for each in load_all():
        if isinstance(each, Command):
            options = [
                option for either in each.options
                for option in (either.options if isinstance(either, OneOf) else (either,))
            ]  # fmt: skip
            choices = [o.settings["choices"] for o in options if o.name[0] != "-" and "choices" in
                       o.settings]  # fmt: skip
            words = summaries if each.name == "help" else dict.fromkeys(sum(choices, ()), "")
            dashed = (_HELP, *(option for option in options if option.name[0] == "-"))
            yield _Place(each.name, words, dashed)
        else:
            parts = {part.name.split()[-1]: part.summary for part in each.commands}
            yield _Place(each.name, parts, (_HELP,))


def _text(option: Option) -> str:
    """Return the beginning of an option's help."""
    return str(option.settings["help"]).partition(" (")[0].partition(";")[0]


def _bash() -> str:
    values, places = [], []
    for place in _places():
        for name, choices in place.values():
            values.append(f'    "{place.name} {name}") words="{" ".join(choices)}" options= ;;')
        options = " ".join(each.name for each in place.options)
        places.append(f'    "{place.name}") words="{" ".join(place.words)}" options="{options}" ;;')
    return _BASH.format(values="\n".join(values), places="\n".join(places), groups=_groups())


def _zsh() -> str:
    values, places = [], []
    for place in _places():
        for name, choices in place.values():
            values.append(f'    "{place.name} {name}") names=({" ".join(choices)}) ;;')
        names = [shlex.quote(f"{name}:{text}") for name, text in place.words.items()]
        options = [shlex.quote(f"{each.name}:{_text(each)}") for each in place.options]
        places.append(f'    "{place.name}") names=({" ".join(names)})\n'
                      f"      options=({' '.join(options)}) ;;")  # fmt: skip
    return _ZSH.format(values="\n".join(values), places="\n".join(places), groups=_groups())


def _groups() -> str:
    return "|".join(each.name for each in load_all() if not isinstance(each, Command))


def _fish() -> str:
    lines = ["# p2pmsg completion fish > ~/.config/fish/completions/p2pmsg.fish"]
    for place in _places():
        seen = [f"__fish_seen_subcommand_from {word}" for word in place.name.split()]
        condition = "; and ".join(seen) or "__fish_use_subcommand"
        start = f"complete -c p2pmsg -n {_fish_quote(condition)}"
        unseen = f"{condition}; and not __fish_seen_subcommand_from {' '.join(place.words)}"
        first = f"complete -c p2pmsg -f -n {_fish_quote(unseen if place.name else condition)}"
        lines += [f"{first} -a {word} -d {_fish_quote(text)}" for word, text in place.words.items()]
        values = dict(place.values())
        for each in place.options:
            choices = " ".join(values.get(each.name, ()))
            takes = f" -x -a {_fish_quote(choices)}" if choices else " -r" * (each.name in values)
            lines.append(f"{start} -l {each.name[2:]}{takes} -d {_fish_quote(_text(each))}")
    return "\n".join([*lines, ""])


def _fish_quote(text: str) -> str:
    quoted = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{quoted}'"


_BASH = """\
# source <(p2pmsg completion bash)
_p2pmsg() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}"
  local place="${{COMP_WORDS[1]}}" words options
  [[ $COMP_CWORD == 1 ]] && place=""
  case "$place" in
    {groups}) [[ $COMP_CWORD -gt 2 ]] && place="$place ${{COMP_WORDS[2]}}" ;;
  esac
  case "$place" in
{places}
  esac
  case "$place $previous" in
{values}
  esac
  [[ $current == -* ]] && words="$options"
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _p2pmsg p2pmsg
"""
_ZSH = """\
#compdef p2pmsg
_p2pmsg() {{
  local place="$words[2]" previous="$words[CURRENT-1]"
  local -a names options
  (( CURRENT == 2 )) && place=""
  case "$place" in
    {groups}) (( CURRENT > 3 )) && place="$place $words[3]" ;;
  esac
  case "$place" in
{places}
  esac
  case "$place $previous" in
{values}
  esac
  if [[ "$words[CURRENT]" == -* ]]; then
    _describe -o option options
  elif (( $#names )); then
    _describe value names
  else
    _files
  fi
}}
if [[ "$funcstack[1]" == _p2pmsg ]]; then _p2pmsg "$@"; else compdef _p2pmsg p2pmsg; fi
"""
