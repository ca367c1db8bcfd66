"""`p2pmsg completion`: how shells complete commands and options."""

import argparse

from p2pmsg.cli.command import Command, command, option
from p2pmsg.cli.table import COMMANDS, load, members, split

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
    else:
        print(_SCRIPTS[arguments.shell], end="")
    return 0


def candidates(words: list[str]) -> list[str]:
    """Return what may stand for the last word; nothing where that is a file, or anything."""
    *before, typed = words or [""]
    name, _ = split(before)
    if not before:
        names = list(
            dict.fromkeys(["--help", "--version", *(each.split()[0] for each in COMMANDS)])
        )
    elif name in COMMANDS:
        names = _of_command(load(name), before[-1])
    else:
        names = [each.split()[1] for each in members(" ".join(before))]
    return [name for name in names if name.startswith(typed) and (typed or name[0] != "-")]


def _of_command(found: Command, last: str) -> list[str]:
    """Return options of a command and words for its arguments, or values of the last option."""
    options = {each.name: each for each in found.all_options()}
    if last in options and not options[last].is_flag:
        return list(options[last].settings.get("choices", ()))
    words = [word for name, each in options.items() if name[0] != "-"
             for word in each.settings.get("choices", ())]  # fmt: skip
    return ["--help", *(name for name in options if name[0] == "-"), *words]
