"""The examples as a new user runs them."""

import runpy
import subprocess
import sys

import pytest

from tests.integration.test_guide import SHOWN, pages, programs, recipes
from tests.spark.conftest import ROOT


def run(name, *arguments):
    done = subprocess.run(
        [sys.executable, f"examples/{name}", *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("spark_bars.py", "bars of 20000 trades"),
        ("spark_typed.py", "|  10000|"),
        ("spark_sink.py", "500 rows in committed batches"),
        ("log_analytics.py", "|BTCUSDT|"),
    ],
)
def test_an_example_starts_and_stops_a_session_of_its_own(name, says):
    assert says in run(name)


@pytest.mark.spark
@pytest.mark.long
def test_the_collectors_stream_in_spark():
    pytest.importorskip("statsd", reason="the example's client is not here")
    windows = run("statsd_metrics.py", "4").partition("median_max")[2]

    assert "machine.load" in windows
    assert "machine.readings" in windows


@pytest.mark.internal
@pytest.mark.spark
@pytest.mark.parametrize(
    "program", [each for found in (recipes(), pages()) for each in programs(found, spark=True)]
)
def test_what_the_readme_and_the_guide_show(program, spark, monkeypatch, tmp_path, capfd):
    monkeypatch.setattr(type(spark), "stop", lambda _: None)
    path = tmp_path / "program.py"
    path.write_text(program)

    runpy.run_path(str(path), run_name="__main__")

    assert capfd.readouterr().out.split() == SHOWN.findall(program)
