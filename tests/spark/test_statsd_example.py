"""The example that reads the collector's stream in Spark."""

import subprocess
import sys

import pytest

from tests.spark.conftest import ROOT


@pytest.mark.spark
@pytest.mark.long
def test_the_example_runs_and_ends_by_itself():
    pytest.importorskip("statsd", reason="the example's client is not here")
    done = subprocess.run(
        [sys.executable, "examples/statsd_metrics.py", "4"],
        cwd=ROOT, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    windows = done.stdout.partition("median_max")[2]
    assert "machine.load" in windows
    assert "machine.network.lo.received_bytes" in windows
