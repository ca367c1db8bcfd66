"""Spark reads from a relay, whose publisher may go away for good."""

import time

import pytest

import p2pmsg
from tests.spark.streams import Collector, read_stream, start

pytestmark = [pytest.mark.spark, pytest.mark.timeout(90)]


@pytest.fixture
def relay(publisher):
    with p2pmsg.Relay(publisher.endpoint, "tcp://127.0.0.1:0", name="relay") as made:
        yield made


def has(relay, following):
    deadline = time.monotonic() + 20
    while [head[1] for head in relay.stats().streams.values()] != [following]:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_batch_from_a_relay(spark, publisher, relay):
    publisher.publish_many("t", [b"%d" % number for number in range(5000)])
    has(relay, 5000)
    publisher.close(timeout=0.0)
    frame = spark.read.format("p2pmsg").option("peers", relay.endpoint).option("subscribe", "t")
    rows = frame.load().collect()
    assert sorted(row.offset for row in rows) == list(range(5000))
    assert {row.publisher for row in rows} == {"feed"}


def test_a_stream_goes_on_when_the_publisher_is_gone(spark, publisher, relay, tmp_path):
    publisher.publish_many("t", [b"x"] * 1000)
    has(relay, 1000)
    sink = Collector()
    stream = read_stream(spark, [relay.endpoint], startingOffsets="earliest")
    query = start(stream, tmp_path, sink)
    try:
        sink.wait(1000, query)
        publisher.publish_many("t", [b"x"] * 1000)
        has(relay, 2000)
        publisher.close(timeout=0.0)
        sink.wait(2000, query)
    finally:
        query.stop()
    assert sorted(sink.offsets()) == list(range(2000))
