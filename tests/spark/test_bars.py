"""The demo's Spark part as a child process, against a straight computation."""

import json
import subprocess
import sys
import threading

import pytest

from examples.demo.bars import compute_bars
from examples.demo.feed import read_feed
from tests.data import shared_or_ours
from tests.spark.conftest import ROOT


def start_bars(publisher, expected_rows, *, environment=None):
    return subprocess.Popen(
        [
            sys.executable, "-m", "examples.demo.spark",
            "--peers", publisher.endpoint, "--topics", "trades,quotes",
            "--expected-rows", str(expected_rows), "--timeout", "600",
        ],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip


def publish(publisher, events):
    for event in events:
        publisher.publish(
            f"{event.kind}s", event.line, event.symbol, timestamp_ns=event.timestamp_ns
        )
    publisher.flush()


def as_rows(computed):
    return [
        [b.symbol, b.window_start_ns, b.open, b.high, b.low, b.close, b.volume, b.trades]
        for b in computed
    ]


@pytest.mark.spark
@pytest.mark.long
def test_bars_of_the_market_data_equal_a_straight_computation(publisher):
    events = list(read_feed(shared_or_ours("market.jsonl.gz")))
    thread = threading.Thread(target=publish, args=(publisher, events))
    child = start_bars(publisher, len(events))
    thread.start()
    output, errors = child.communicate(timeout=900)
    thread.join()
    said = [json.loads(line) for line in output.splitlines()]

    assert child.returncode == 0, errors
    assert {each["event"] for each in said[:-1]} == {"progress"}
    result = said[-1]
    assert result["event"] == "result"
    assert result["rows"] == len(events)
    assert result["bars"] == as_rows(compute_bars(events))
