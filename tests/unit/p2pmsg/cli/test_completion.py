"""What completes commands and options, and the scripts that ask for it."""

import subprocess
import sys

import pytest

from p2pmsg.cli import main

TYPED = {
    "": "demo", "su": "sub", "sub --js": "--json", "sub tcp://a:1 --ti": "--timeout",
    "log ": "ls", "log ls --js": "--json", "push --acknowledge b": "batch",
    "dead-letters r": "retry",
    "completion f": "fish", "--v": "--version",
    "pub --sec": "--security", "log truncate --k": "--keep",
}  # fmt: skip


NOTHING = [
    "pub --log ", "sub ", "sub --count ", "nonsense ", "log nonsense --", "sub --nothing-like",
]  # fmt: skip


@pytest.mark.parametrize(("typed", "wanted"), TYPED.items(), ids=TYPED)
def test_what_was_typed_is_completed(typed, wanted, capsys):
    assert main(["completion", "words", "--", *typed.split(" ")]) == 0
    assert wanted in capsys.readouterr().out.split()


@pytest.mark.parametrize("typed", NOTHING)
def test_what_is_a_file_or_unknown_is_left_to_the_shell(typed, capsys):
    assert main(["completion", "words", "--", *typed.split(" ")]) == 0
    assert capsys.readouterr().out.strip() == ""


def test_bash_completes_what_was_typed(capsys):
    assert main(["completion", "bash"]) == 0
    script = (
        capsys.readouterr().out
        + f"""
p2pmsg() {{ {sys.executable} -m p2pmsg "$@"; }}
COMP_WORDS=(p2pmsg log ls --js); COMP_CWORD=3
_p2pmsg; echo "${{COMPREPLY[*]}}"
"""
    )
    done = subprocess.run(["bash", "-eu", "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("--json\n", "")
