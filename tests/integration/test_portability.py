"""What goes over TCP works without Linux; one module of each layer asks for what only it has."""

import re
import subprocess
import sys
from pathlib import Path

from tests.integration.without_linux import GONE

ROOT = Path(__file__).parents[2]
NAMES = "|".join(f"{at.__name__}.{name}" for at, names in GONE.items() for name in names.split())
ASKED = re.compile(rf"/proc/|CDLL|\b(?:{NAMES})\b")


def test_what_goes_over_tcp_works_without_linux_and_the_rest_is_refused_by_name(tmp_path):
    command = [sys.executable, "-m", "tests.integration.without_linux", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)

    assert (ended.stdout, ended.returncode) == ("done\n", 0), ended.stderr


def test_only_the_platform_modules_name_what_only_linux_has():
    """And StatsD's receiver, which has the C library's `recvmmsg` for itself."""
    naming = {
        str(path.relative_to(ROOT))
        for package in ("p2pmsg", "transports", "recovery", "spark_bridge")
        for path in (ROOT / package).rglob("*.py")
        if ASKED.search(path.read_text(encoding="utf-8"))
    }

    assert naming == {
        "recovery/platform.py", "transports/platform.py", "p2pmsg/statsd/sockets.py",
    }  # fmt: skip
