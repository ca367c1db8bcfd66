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
from functools import cache
from pathlib import Path

import pytest

from tests.spark.conftest import ROOT
from tests.spark.crash_driver import start_query

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]
PATIENCE_S = 600
"""How long a test waits for what must come: a start of Spark takes a minute on a busy machine."""


def rows_in(folder):
    """What the sink holds: (batch, offset, value), whole batches only."""
    found = []
    for path in sorted(Path(folder).glob("*.json"), key=lambda path: int(path.stem)):
        found += [tuple(row) for row in json.loads(path.read_text())]
    return found


@cache
def row_count_of(path):
    """A file is there when it is whole; a batch that comes again has as many rows as before."""
    return len(json.loads(path.read_text()))


def row_count(folder):
    return sum(row_count_of(path) for path in Path(folder).glob("*.json"))


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


def wait_for_rows(folder, count, runs):
    deadline = time.monotonic() + PATIENCE_S
    while (found := row_count(folder)) < count:
        assert runs(), "the driver has ended"
        assert time.monotonic() < deadline, f"{found} of {count} rows"
        time.sleep(0.05)


@pytest.mark.long
@pytest.mark.rounds(1, 10)
def test_a_driver_killed_again_and_again_misses_nothing_and_repeats_nothing(
    spark, publisher, tmp_path, rounds
):
    rng = random.Random(7)
    checkpoint, folder = str(tmp_path / "checkpoint"), tmp_path / "rows"
    folder.mkdir()
    ended = threading.Event()

    def publish():
        for number in itertools.count():
            publisher.publish("t", b"%d" % number)
            if number % 20 == 0 and ended.wait(0.02):
                break

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        for _ in range(rounds):
            driver = start_driver(publisher.endpoint, checkpoint, str(folder))
            try:
                wait_for_rows(
                    folder, row_count(folder) + 1, lambda each=driver: each.poll() is None
                )
                time.sleep(rng.uniform(0, 1.0))
            finally:
                kill(driver)
    finally:
        ended.set()
        thread.join()
    publisher.flush()
    _, published = publisher.stats().streams["t"]
    query = start_query(spark, publisher.endpoint, checkpoint, str(folder))
    try:
        wait_for_rows(folder, published, lambda: query.isActive)
        query.processAllAvailable()
    finally:
        query.stop()

    assert rows_in(folder) == [(number, number) for number in range(published)]
