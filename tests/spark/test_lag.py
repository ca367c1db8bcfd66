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


def test_a_batch_that_is_taken_up_again_says_what_it_misses():
    """Spark finds it planned in its log when the query is started, and reports no heads with it."""
    lag = lag_of({"id": "q", "batchId": 1, "sources": [{**source(20), "latestOffset": None}]})

    assert (lag.batch, lag.missing, lag.heads_known) == (1, 7, False)
    assert (lag.streams, lag.away) == ({}, ())
    assert str(lag) == ("spark q batch 1: taken up again, how far behind is not known, 7 missing")


def test_the_first_batch_taken_up_again_is_counted_from_its_own_start():
    end = json.dumps(to_json(END, start=START))
    found = {**source(20), "startOffset": None, "endOffset": end, "latestOffset": None}

    assert lag_of({"id": "q", "sources": [found]}).missing == 7


@pytest.mark.parametrize(
    "sources",
    [[], [{}], [{"endOffset": None}], [{"endOffset": "7", "latestOffset": "{"}]],
)
def test_other_sources_have_no_lag(sources):
    assert lag_of({"sources": sources}) is None
