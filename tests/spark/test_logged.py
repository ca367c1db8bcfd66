"""A publisher with a log, killed again and again while Spark reads from it."""

import random
import signal
import subprocess
import sys
import time

import pytest

import p2pmsg
from tests.endpoints import lasting_endpoint
from tests.spark.conftest import ROOT
from tests.spark.streams import Collector, read_stream, start

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(600),
]


@pytest.mark.rounds(1, 20)
def test_a_publisher_with_a_log_is_killed_and_spark_misses_nothing(spark, tmp_path, rounds):
    rng = random.Random(3)
    endpoint = lasting_endpoint()
    log = str(tmp_path / "log")
    command = [sys.executable, "-m", "tests.spark.logged_publisher", endpoint, log]
    sink = Collector()
    stream = read_stream(spark, [endpoint], startingOffsets="earliest")
    query = start(stream, tmp_path / "checkpoint", sink)
    child = None
    try:
        for _ in range(rounds):
            child = subprocess.Popen(command, cwd=ROOT)
            seen = len(sink.rows)
            sink.wait(seen + 1, query)
            time.sleep(rng.uniform(0.0, 0.7))
            child.send_signal(signal.SIGKILL)
            child.wait()
        child = subprocess.Popen(command, cwd=ROOT)
        with p2pmsg.reader.RangeReader(endpoint, timeout=60) as reader:
            stop = reader.heads().streams["t"].next
        sink.wait(stop, query)
        query.stop()
    finally:
        if child is not None:
            child.kill()
            child.wait()

    rows = [(row.offset, int(row.value)) for row in sink.rows]
    assert rows == [(number, number) for number in range(len(rows))]
    assert len({row.session for row in sink.rows}) == 1
