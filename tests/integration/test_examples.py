"""The examples run and end by themselves."""

import subprocess
import sys
from pathlib import Path

from tests.integration.test_udp_multicast import free_port

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


def test_market_feed():
    ended = subprocess.run(
        [
            sys.executable,
            EXAMPLES / "market_feed.py",
            f"udp://239.255.1.1:{free_port()}?interface=127.0.0.1",
        ],
        capture_output=True,
        timeout=60,
        text=True,
    )

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("20000 of 20000 delivered, 0 lost") == 2
