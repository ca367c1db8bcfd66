"""The examples run and end by themselves."""

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_quickstart(tmp_path):
    ended = subprocess.run(
        [sys.executable, EXAMPLES / "quickstart.py", f"ipc://{tmp_path}/feed"],
        capture_output=True,
        timeout=30,
        text=True,
    )

    assert ended.returncode == 0, ended.stderr
    # Two processes print at once, so a line of one may stand within a line of the other.
    assert ended.stdout.count("published ") == 5
    assert ended.stdout.count("received  ") == 5
    assert "delivered 5 of 5, lost 0" in ended.stdout


def test_quickstart_is_short():
    lines = (EXAMPLES / "quickstart.py").read_text().splitlines()

    assert len(lines) <= 50
