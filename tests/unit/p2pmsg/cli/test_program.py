"""Commands that `pull` and `respond` run: no process of theirs is left over."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from p2pmsg.cli import program
from p2pmsg.cli.program import run_program, stop


@pytest.mark.long
def test_ctrl_c_while_it_starts_leaves_no_process(tmp_path):
    script = f'echo $$ > {tmp_path}/"$(date +%N)"; kill -INT $PPID; exec sleep 100'
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            run_program(["sh", "-c", script], "value", timeout=60)
    started = [int(path.read_text()) for path in Path(tmp_path).iterdir()]
    assert len(started) == 3
    for process in started:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_the_status_the_output_and_a_time_out_are_returned():
    counts = ["sh", "-c", "read text; echo got $text; exit 3"]
    found = run_program(counts, "it\n", timeout=60, output=subprocess.PIPE)
    assert found == ("exit status 3", 3, b"got it\n")
    wrong, status, output = run_program(["sleep", "100"], b"", timeout=0.05)
    assert (wrong, status, output) == ("killed after 0.05 s", -signal.SIGKILL, b"")


@pytest.mark.long
def test_one_that_does_not_end_when_it_is_asked_to_is_killed(monkeypatch):
    monkeypatch.setattr(program, "_TERMINATE_S", 0.1)
    script = "trap '' TERM; echo begun; while :; do sleep 0.05; done"
    stubborn = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE)
    assert stubborn.stdout.readline() == b"begun\n"
    stop(stubborn)
    stubborn.stdout.close()
    assert stubborn.returncode == -signal.SIGKILL
