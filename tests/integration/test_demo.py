"""`p2pmsg demo` as a process, and its coordinator with a stand-in for the Spark child."""

import contextlib
import fcntl
import importlib.util
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import termios

import pytest

from examples.demo import run as demo_run
from examples.demo.bars import compute_bars
from examples.demo.feed import random_walk
from examples.demo.plan import Source
from examples.demo.processes import DemoError
from examples.demo.run import Progress, run_demo
from tests.data import read_bars
from tests.integration.commands import P2PMSG, command, run
from tests.integration.peers import eventually

HAS_SPARK = bool(
    importlib.util.find_spec("pyspark")
    and importlib.util.find_spec(demo_run.SPARK_MODULE)
    and (shutil.which("java") or "JAVA_HOME" in os.environ)
)
needs_spark = pytest.mark.skipif(not HAS_SPARK, reason="Java or PySpark is not there")
DEMO_TIMEOUT_S = 300.0
SHORT = ("--seconds", "2")
pytestmark = pytest.mark.timeout(DEMO_TIMEOUT_S + 30)


def assert_good(summary, published):
    assert summary["errors"] == []
    assert summary["published"] == published
    assert [subscriber["name"] for subscriber in summary["subscribers"]] == ["fast", "slow"]
    subscribers = summary["subscribers"]
    for subscriber in subscribers:
        assert subscriber["delivered"] == published
        assert subscriber["lost"] == subscriber["outstanding"] == subscriber["duplicates"] == 0
        assert subscriber["balanced"] is True
    assert summary["bars_equal"] is True
    assert all(one["kernel_drops"] > 0 and one["repaired"] > 0 for one in subscribers)


def test_the_demo_without_spark(tmp_path):
    bars_file = tmp_path / "bars.csv"
    ended = run(
        "demo", "--no-spark", "--trades", "20000", "--json", "--output", str(bars_file),
        *SHORT,
    )  # fmt: skip

    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == b""
    (line,) = ended.stdout.splitlines()
    summary = json.loads(line)
    assert_good(summary, 20_000)
    assert summary["spark_rows"] is None
    expected = compute_bars(random_walk(20_000))
    assert summary["bars"] == len(expected)
    assert read_bars(bars_file) == expected


@pytest.mark.long
def test_the_publisher_is_killed_and_goes_on_from_its_log(tmp_path):
    ended = run(
        "demo", "--no-spark", "--trades", "40000", "--json", "--log", str(tmp_path / "log"),
        *SHORT, timeout=DEMO_TIMEOUT_S,
    )  # fmt: skip

    assert ended.returncode == 0, ended.stderr
    summary = json.loads(ended.stdout)
    assert_good(summary, 40_000)
    assert summary["restarts"] == 1


@pytest.mark.long
def test_on_a_terminal_the_last_screen_is_the_result():
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    options = ("--no-spark", "--trades", "5000", *SHORT)
    with subprocess.Popen(
        [*P2PMSG, "demo", *options], stdin=its, stdout=its, stderr=its, start_new_session=True,
        env=os.environ | {"TERM": "xterm"},
    ) as demo:  # fmt: skip
        os.close(its)
        shown = b""
        with contextlib.suppress(OSError):  # at the end of the other side
            while data := os.read(ours, 65536):
                shown += data
        os.close(ours)
        assert demo.wait() == 0

    # Of what was drawn over, nothing comes after the last control sequence.
    lines = re.split(r"\x1b\[[?0-9;]*[A-Za-z]", shown.decode())[-1].strip().splitlines()
    assert len(lines) < 24
    assert max(map(len, lines)) <= 80
    assert sum(line.endswith("balances") for line in lines) == 2
    assert lines[-1] == "the bars are equal to those computed straight from the input"


@pytest.mark.long
@pytest.mark.spark
@needs_spark
def test_the_demo_of_a_random_walk_with_spark(tmp_path):
    bars_file = tmp_path / "bars.csv"
    ended = run(
        "demo", "--json", "--trades", "20000", "--output", str(bars_file), *SHORT,
        timeout=DEMO_TIMEOUT_S,
    )  # fmt: skip

    assert ended.returncode == 0, ended.stderr
    assert read_bars(bars_file) == compute_bars(random_walk(20_000))
    summary = json.loads(ended.stdout)
    assert_good(summary, 20_000)
    assert summary["spark_rows"] == 20_000


MOMENTS = {
    "at the very start": lambda demo: len(demo.processes()) > 1,
    "while the processes start": lambda demo: len(demo.processes()) == 4,
    "while it is published": lambda demo: b"dropped by the kernel" in demo.output(),
}


@pytest.mark.long
@pytest.mark.parametrize("moment", MOMENTS)
def test_ctrl_c_ends_all_processes(moment, tmp_path):
    with command(tmp_path, "demo", "--no-spark", "--trades", "100000") as demo:
        eventually(lambda: MOMENTS[moment](demo) or demo.process.poll() is not None)

        demo.interrupt()

        assert demo.wait(60) == 130  # at its own end it would be 0
        assert demo.errors() == ""
        assert not demo.processes()


WITH_SPARK = pytest.param(
    (), 6, marks=[pytest.mark.spark, needs_spark, pytest.mark.long], id="with Spark"
)


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "count"), [pytest.param(("--no-spark",), 4, id="without Spark"), WITH_SPARK]
)
def test_when_the_demo_is_killed_no_process_stays(options, count, tmp_path):
    with command(tmp_path, "demo", *options, "--trades", "20000") as demo:
        eventually(lambda: len(demo.processes()) >= count)

        demo.process.kill()

        eventually(lambda: not demo.processes(), 60)


# ------------------------------------------------------- with a stand-in for the Spark child

STAND_IN = """\
import json, sys, time
from examples.demo.bars import compute_bars
from examples.demo.feed import random_walk
from dataclasses import astuple

def report(**fields):
    print(json.dumps(fields), flush=True)

rows = int(sys.argv[sys.argv.index("--expected-rows") + 1])
bars = [list(astuple(bar)) for bar in compute_bars(random_walk(rows))]
print("chatter of a library")
report(event="ready")
report(event="progress", rows=rows // 2)
"""
RESULT = "report(event='result', rows=rows, seconds=1.5, bars=bars)\n"
ENDINGS = {
    "good": (RESULT, []),
    "another close": ("bars[0][5] += 1\n" + RESULT, ["the bars of Spark differ"]),
    "Java is missing": (
        "sys.exit('no Java') if 0 else (print('no Java', file=sys.stderr), sys.exit(3))\n",
        [],
    ),
}


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    def make(ending, progress=None):
        (tmp_path / "stand_in.py").write_text(STAND_IN + ending)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        return run_demo(
            Source(trades=2000), progress or Progress(), seconds=0.2, spark_module="stand_in"
        )

    return make


@pytest.mark.long
@pytest.mark.parametrize(
    ("ending", "errors"),
    ENDINGS.values(),
    ids=ENDINGS,
)
def test_what_spark_says_is_judged(ending, errors, stand_in):
    state = stand_in(ending)

    assert [
        error[: len(start)] for error, start in zip(state.errors, errors, strict=True)
    ] == errors
    assert state.bars_equal == (not any("bars" in error for error in errors))
    if "no Java" in ending:
        assert (state.spark, state.spark_rows) == ("left out: no Java", None)


@pytest.mark.long
def test_a_spark_that_fails_is_reported_by_its_last_words(stand_in):
    with pytest.raises(DemoError, match="Spark failed: ValueError: out of luck"):
        stand_in("raise ValueError('out of luck')\n")
