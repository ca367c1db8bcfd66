"""A driver killed at random moments: what it read before and after makes one whole."""

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.spark.conftest import ROOT
from tests.spark.crash_driver import start_query

KILLS = int(os.environ.get("SPARK_KILLS", "2"))
"""A start of Spark takes seconds; `SPARK_KILLS=25` for a long run."""
pytestmark = [pytest.mark.spark, pytest.mark.timeout(170 + 20 * KILLS)]
WORKER_KILLS = 25


def rows_in(folder):
    """What the sink holds: (batch, offset, value), whole batches only."""
    found = []
    for path in sorted(Path(folder).glob("*.json"), key=lambda path: int(path.stem)):
        found += [tuple(row) for row in json.loads(path.read_text())]
    return found


def start_driver(endpoint, checkpoint, folder):
    return subprocess.Popen(
        [sys.executable, "-m", "tests.spark.crash_driver", endpoint, checkpoint, folder],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def kill(driver):
    """Kill Python, the JVM and its workers at once, as a machine that loses power."""
    try:
        os.killpg(driver.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it has ended by itself, which is for the test to judge
    driver.wait()


def wait_for_rows(folder, count, runs, seconds=60):
    deadline = time.monotonic() + seconds
    while len(rows_in(folder)) < count:
        assert runs(), "the driver has ended"
        assert time.monotonic() < deadline, f"{len(rows_in(folder))} of {count} rows"
        time.sleep(0.05)


def test_a_driver_killed_again_and_again_misses_nothing_and_repeats_nothing(
    spark, publisher, tmp_path
):
    rng = random.Random(7)
    checkpoint, folder = str(tmp_path / "checkpoint"), tmp_path / "rows"
    folder.mkdir()
    ended = threading.Event()

    def publish():
        for number in itertools.count():
            publisher.publish("t", b"%d" % number)
            if number % 20 == 0 and ended.wait(0.005):
                break

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        for _ in range(KILLS):
            driver = start_driver(publisher.endpoint, checkpoint, str(folder))
            try:
                wait_for_rows(
                    folder, len(rows_in(folder)) + 1, lambda driver=driver: driver.poll() is None
                )
                time.sleep(rng.uniform(0, 1.5))
            finally:
                kill(driver)
    finally:
        ended.set()
        thread.join()
    publisher.flush()
    _, published = publisher.stats().streams["t"]
    query = start_query(spark, publisher.endpoint, checkpoint, str(folder))
    wait_for_rows(folder, published, lambda: query.isActive)
    query.processAllAvailable()
    query.stop()

    assert rows_in(folder) == [(number, number) for number in range(published)]


def workers_of(driver):
    """The Python workers of tasks below a driver: daemons fork them."""
    found = []
    waiting = [driver.pid]
    while waiting:
        parent = waiting.pop()
        try:
            path = Path(f"/proc/{parent}/task")
            children = [
                int(child)
                for task in path.iterdir()
                for child in (task / "children").read_text().split()
            ]
            command = Path(f"/proc/{parent}/cmdline").read_bytes().split(b"\0")
            is_daemon = b"pyspark.daemon" in command and b"pyspark.worker" in command
        except OSError:
            continue  # it has just ended
        waiting += children
        if is_daemon:
            found += children
    return found


def test_workers_that_are_killed_cost_nothing(publisher, tmp_path):
    rng = random.Random(11)
    folder, checkpoint = tmp_path / "rows", str(tmp_path / "checkpoint")
    folder.mkdir()
    driver = start_driver(publisher.endpoint, checkpoint, str(folder))
    published = killed = 0
    try:
        deadline = time.monotonic() + 120
        while killed < WORKER_KILLS and time.monotonic() < deadline and driver.poll() is None:
            publisher.publish_many("t", [b"%d" % (published + at) for at in range(2000)])
            published += 2000
            time.sleep(rng.uniform(0.02, 0.2))
            for worker in workers_of(driver)[:1] if len(rows_in(folder)) else []:
                os.kill(worker, signal.SIGKILL)
                killed += 1
        publisher.flush()
        wait_for_rows(folder, published, lambda: driver.poll() is None)
    finally:
        kill(driver)

    assert killed == WORKER_KILLS
    assert sorted(rows_in(folder)) == [(number, number) for number in range(published)]
