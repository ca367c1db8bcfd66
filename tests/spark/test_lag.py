"""How far a query is behind, out of Spark's progress reports; pure."""

import json

import pytest

from spark_bridge.lag import lag_of
from spark_bridge.offsets import to_json

A, B = "tcp://a:1", "tcp://b:1"
START = {A: {1: {"t": 10}}, B: {2: {"t": 0, "u": 5}}}
END = {A: {1: {"t": 30}}, B: {2: {"t": 7, "u": 5}}}
LATEST = {A: {1: {"t": 1030}}, B: {2: {"t": 7, "u": 5}, 3: {"t": 4}}}


def source(rows, **more):
    def text(positions, **more):
        return json.dumps({**to_json(positions), **more})

    return {
        "startOffset": text(START),
        "endOffset": text(END),
        "latestOffset": text(LATEST, **more),
        "numInputRows": rows,
    }


def test_each_stream_has_its_lag():
    lag = lag_of({"name": "bars", "batchId": 7, "sources": [source(27)]})

    assert lag.streams == {(A, 1, "t"): 1000, (B, 2, "t"): 0, (B, 2, "u"): 0, (B, 3, "t"): 4}
    assert (lag.minOffsetsBehindLatest, lag.maxOffsetsBehindLatest) == (0, 1000)
    assert lag.avgOffsetsBehindLatest == 251
    assert str(lag) == f"spark bars batch 7: 1,004 behind in 4 streams, 1,000 in 't' at {A}"


def test_the_lag_of_what_is_denied_is_not_known():
    lag = lag_of({"id": "x", "sources": [source(27, denied={B: ["t"]})]})

    assert lag.streams == {(A, 1, "t"): 1000, (B, 2, "u"): 0}
    assert str(lag).endswith(f"; not known of 't' at {B}, denied")


@pytest.mark.parametrize(("rows", "missing"), [(27, 0), (20, 7), (0, 27), (54, 0), (None, 0)])
def test_what_no_task_has_read_is_missing(rows, missing):
    """27 messages lie between the two offsets; each further action reads them once more."""
    lag = lag_of({"id": "x", "sources": [source(rows)]})

    assert lag.missing == missing
    assert (f"{missing} missing" in str(lag)) == bool(missing)


TAKEN_UP = """
{
  "id": "269229ba-46ba-400f-8a96-ca003bee6c89",
  "runId": "c158d5a1-5aae-4625-b686-48f07df0821b",
  "name": null,
  "batchId": 1,
  "numInputRows": 1036,
  "durationMs": {"addBatch": 1278, "commitOffsets": 14, "getBatch": 0, "queryPlanning": 11},
  "stateOperators": [],
  "sources": [
    {
      "description": "PythonMicroBatchStreamWithTriggerAvailableNow@7e4f8f88",
      "startOffset": {
        "peers": {"tcp://127.0.0.1:37671": {"a6876ffacc3477fb": {"t": 100}}},
        "start": {"tcp://127.0.0.1:37671": {"a6876ffacc3477fb": {"t": 0}}},
        "version": 1
      },
      "endOffset": {
        "peers": {"tcp://127.0.0.1:37671": {"a6876ffacc3477fb": {"t": 5100}}},
        "version": 1
      },
      "latestOffset": null,
      "numInputRows": 1036,
      "inputRowsPerSecond": 0.0,
      "processedRowsPerSecond": 791.0
    }
  ],
  "sink": {"description": "ForeachBatchSink", "numOutputRows": -1}
}
"""
"""As Spark 4.3 reports a batch that it found planned in its log when the query started."""


def test_a_batch_that_is_taken_up_again_says_what_it_misses():
    lag = lag_of(json.loads(TAKEN_UP))

    assert (lag.batch, lag.missing, lag.heads_known) == (1, 3964, False)
    assert (lag.streams, lag.away) == ({}, ())
    assert str(lag) == (
        "spark 269229ba-46ba-400f-8a96-ca003bee6c89 batch 1: taken up again, how far behind is "
        "not known, 3,964 missing"
    )


def test_the_first_batch_taken_up_again_is_counted_from_its_own_start():
    progress = json.loads(TAKEN_UP)
    (found,) = progress["sources"]
    found["startOffset"], found["endOffset"]["start"] = None, found["startOffset"]["start"]

    assert lag_of(progress).missing == 5100 - 1036


@pytest.mark.parametrize(
    "sources",
    [[], [{}], [{"endOffset": None}], [{"endOffset": "7", "latestOffset": "{"}]],
)
def test_other_sources_have_no_lag(sources):
    assert lag_of({"sources": sources}) is None
