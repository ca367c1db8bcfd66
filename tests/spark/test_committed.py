"""The receiver's side of the sink, over real sockets and without Spark."""

import json
import pickle

import pytest

import p2pmsg
import spark_bridge
from spark_bridge.committed import Delivered, Mark
from tests.endpoints import lasting_endpoint


def record(state, query="q", batch=0, partition=0, attempt=1, **more):
    return {
        "state": state, "query": query, "batch": batch, "partition": partition,
        "attempt": attempt, **more,
    }  # fmt: skip


def attempt(endpoint, values, *, topic="rows", commit=True, crash_after=None, **which):
    """Do as a task of the sink does; with `crash_after`, end in the middle of it."""
    with p2pmsg.Publisher(endpoint) as publisher:
        publisher.wait_for_subscribers(1, timeout=60)
        publisher.publish("spark.commits", record("begin", **which))
        taken = values if crash_after is None else values[:crash_after]
        if taken:
            publisher.publish_many(topic, taken)
        if commit and crash_after is None:
            publisher.publish("spark.commits", record("commit", rows=len(values), **which))
        publisher.close(60)
        assert publisher.stats().undelivered == 0


@pytest.fixture
def place():
    endpoint = lasting_endpoint()
    with p2pmsg.Subscriber([endpoint], topics=["*"], start="earliest") as subscriber:
        yield endpoint, subscriber


def values_of(rows, count):
    found = []
    while len(found) < count:
        found += rows.receive_many(timeout=60).values
    with pytest.raises(TimeoutError):
        rows.receive_many(timeout=0.1)
    return found


def test_a_batch_that_comes_twice_is_delivered_once(place):
    endpoint, subscriber = place
    rows = spark_bridge.CommittedRows(subscriber)
    attempt(endpoint, [1, 2, 3])
    attempt(endpoint, [1, 2, 3], attempt=2)
    attempt(endpoint, [4, 5], batch=1)

    assert values_of(rows, 5) == [1, 2, 3, 4, 5]
    assert rows.duplicates == 1


def test_an_attempt_that_died_leaves_nothing(place):
    endpoint, subscriber = place
    rows = spark_bridge.CommittedRows(subscriber)
    attempt(endpoint, [1, 2, 3], crash_after=2)
    attempt(endpoint, [1, 2, 3], attempt=2)
    attempt(endpoint, [4], batch=1, crash_after=1)
    attempt(endpoint, [5], batch=2)

    assert values_of(rows, 4) == [1, 2, 3, 5]
    assert rows.abandoned == 2


def test_what_was_delivered_is_known_after_a_restart(place):
    endpoint, subscriber = place
    rows = spark_bridge.CommittedRows(subscriber)
    attempt(endpoint, [1, 2])
    assert values_of(rows, 2) == [1, 2]
    again = spark_bridge.CommittedRows(subscriber, delivered=rows.state())
    attempt(endpoint, [1, 2], attempt=2)
    attempt(endpoint, [3], partition=1)

    assert values_of(again, 1) == [3]
    assert again.duplicates == 1


def test_a_partition_that_comes_again_with_other_rows_is_an_error_that_has_them(place):
    endpoint, subscriber = place
    rows = spark_bridge.CommittedRows(subscriber)
    attempt(endpoint, [1, 2])
    assert values_of(rows, 2) == [1, 2]
    # As after a restart of the receiver: what it keeps is JSON.
    rows = spark_bridge.CommittedRows(subscriber, delivered=json.loads(json.dumps(rows.state())))
    attempt(endpoint, [1, 2], attempt=2)
    attempt(endpoint, [3, 4, 5], attempt=3)
    with pytest.raises(spark_bridge.ChangedBatchError, match=r"3 rows, and .*with 2") as changed:
        values_of(rows, 1)
    attempt(endpoint, [6], partition=1)

    assert values_of(rows, 1) == [6]
    assert (rows.duplicates, rows.changed) == (1, 1)
    error = pickle.loads(pickle.dumps(changed.value))
    assert (error.query, error.batch, error.partition) == ("q", 0, 0)
    assert [value for batch in error.batches for value in batch.values] == [3, 4, 5]


def test_as_many_rows_of_other_topics_are_other_rows(place):
    endpoint, subscriber = place
    rows = spark_bridge.CommittedRows(subscriber)
    attempt(endpoint, [1, 2])
    attempt(endpoint, [1, 2], topic="others", attempt=2)
    assert rows.receive_many(timeout=60).values == [1, 2]
    with pytest.raises(spark_bridge.ChangedBatchError, match="of other topics"):
        rows.receive_many(timeout=60)


def test_rows_that_wait_are_bounded(place):
    endpoint, subscriber = place
    rows = spark_bridge.CommittedRows(subscriber, rows_max=10)
    attempt(endpoint, list(range(11)), commit=False)

    with pytest.raises(spark_bridge.BridgeError, match="rows_max = 10"):
        rows.receive_many(timeout=60)


def test_what_is_delivered_is_bounded_and_comes_back():
    delivered, mark = Delivered(), Mark(7, 9)
    for batch in range(100):
        assert delivered.add("q", batch, 0, mark) is None
        assert delivered.add("q", batch, 0, Mark(8, 9)) == mark
    copy = Delivered(delivered.state())

    assert len(delivered.state()["q"]) == 16
    assert all(copy.add("q", batch, 0, mark) == mark for batch in range(100))
    assert copy.add("q", 99, 1, mark) is copy.add("q", 100, 0, mark) is None
    for number in range(1100):
        copy.add(f"r{number}", 0, 0, mark)
    assert len(copy.state()) == 1000
