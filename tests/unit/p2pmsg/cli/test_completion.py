"""The scripts that complete commands and options."""

import shutil
import subprocess

import pytest

from p2pmsg.cli import COMMANDS, main

TYPED = {
    "": "demo", "su": "sub", "sub --js": "--json", "sub tcp://a:1 --ti": "--timestamps",
    "log ": "ls", "log ls --js": "--json", "push --admin al": "always", "dead-letters r": "retry",
    "help dead": "dead-letters", "completion f": "fish", "--v": "--version",
    "pub --sec": "--security",
}  # fmt: skip


def script_of(shell, capsys):
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


def test_bash_completes_what_was_typed(capsys):
    script = script_of("bash", capsys)
    for typed in TYPED:
        words = typed.split(" ")
        script += f"\nCOMP_WORDS=(p2pmsg {' '.join(words[:-1])} '{words[-1]}')"
        script += f'\nCOMP_CWORD={len(words)}; _p2pmsg; echo "${{COMPREPLY[*]}}"'
    for files in ("pub --log", "sub"):  # the shell's own completion of files
        script += f"\nCOMP_WORDS=(p2pmsg {files} ''); COMP_CWORD={len(files.split()) + 1}"
        script += '\n_p2pmsg; echo "${COMPREPLY[*]}"'
    done = subprocess.run(
        ["bash", "-eu", "-c", f"set +e\n{script}"], capture_output=True, text=True
    )
    assert done.stderr == ""
    *found, log, sub = done.stdout.split("\n")[:-1]
    assert {typed: wanted in line.split() for (typed, wanted), line in
            zip(TYPED.items(), found, strict=True)} == dict.fromkeys(TYPED, True)  # fmt: skip
    assert (log, sub) == ("", "")


@pytest.mark.long
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_script_has_all_commands_and_is_right_to_its_shell(shell, capsys):
    script = script_of(shell, capsys)
    assert [name for name in (*COMMANDS, "truncate") if name not in script] == []
    if shutil.which(shell):
        checked = subprocess.run([shell, "-n"], input=script, capture_output=True, text=True)
        assert (checked.returncode, checked.stderr) == (0, "")
