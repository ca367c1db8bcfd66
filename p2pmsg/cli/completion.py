"""`p2pmsg completion`: scripts by which shells complete commands and options."""

import argparse

from p2pmsg.cli.command import Command, CommandGroup, UsageError, command, option
from p2pmsg.cli.table import COMMANDS, load

_SCRIPTS = {
    "bash": """\
# source <(p2pmsg completion bash)
_p2pmsg() {
  COMPREPLY=($(p2pmsg completion words -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _p2pmsg p2pmsg
""",
    "zsh": """\
#compdef p2pmsg
_p2pmsg() {
  local -a found
  found=(${(f)"$(p2pmsg completion words -- "${(@)words[2,CURRENT]}" 2>/dev/null)"})
  if (( $#found )); then compadd -a found; else _files; fi
}
if [[ "$funcstack[1]" == _p2pmsg ]]; then _p2pmsg "$@"; else compdef _p2pmsg p2pmsg; fi
""",
    "fish": """\
# p2pmsg completion fish > ~/.config/fish/completions/p2pmsg.fish
complete -c p2pmsg \\
  -a '(p2pmsg completion words -- (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null)'
""",
}


@command(
    "completion",
    option("shell", "bash, zsh or fish; or words: print what may stand for the last of the words "
           "after --, as the scripts do", "SHELL", choices=(*_SCRIPTS, "words")),
    usage="p2pmsg completion [-h] SHELL",
)  # fmt: skip
def completion(arguments: argparse.Namespace) -> int:
    """Print a script that completes commands and options in a shell.

    For example:
      source <(p2pmsg completion bash)                     (in ~/.bashrc)
      p2pmsg completion zsh > "${fpath[1]}/_p2pmsg"
      p2pmsg completion fish > ~/.config/fish/completions/p2pmsg.fish
    """
    if arguments.shell == "words":
        print(*candidates(arguments.rest), sep="\n")
    elif arguments.rest:
        raise UsageError(f"unknown arguments: {' '.join(arguments.rest)}")
    else:
        print(_SCRIPTS[arguments.shell], end="")
    return 0


def candidates(words: list[str]) -> list[str]:
    """Return what may stand for the last word; nothing where that is a file, or anything."""
    *before, typed = words or [""]
    names = [] if before else ["--help", "--version", *COMMANDS]
    found = load(before[0]) if before and before[0] in COMMANDS else None
    if isinstance(found, CommandGroup):
        parts = {each.name.split()[-1]: each for each in found.commands}
        names = ["--help", *parts] if len(before) == 1 else []
        found = parts.get(before[1]) if len(before) > 1 else None
    if found is not None:
        names = _of_command(found, before[-1])
    return [name for name in names if name.startswith(typed) and (typed or name[0] != "-")]


def _of_command(found: Command, last: str) -> list[str]:
    """Return options of a command and words for its arguments, or values of the last option."""
    options = {each.name: each for each in found.all_options()}
    if last in options and not options[last].is_flag:
        return list(options[last].settings.get("choices", ()))
    words = [word for name, each in options.items() if name[0] != "-"
             for word in each.settings.get("choices", ())]  # fmt: skip
    if found.name == "help":
        words = list(COMMANDS)
    return ["--help", *(name for name in options if name[0] == "-"), *words]
