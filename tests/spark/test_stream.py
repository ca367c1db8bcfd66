"""Streams in real Spark: which, from where, how much at a time, and what goes wrong."""

import json
import time

import pytest

import p2pmsg
import spark_bridge
from tests.spark.streams import (
    Collector,
    collect_now,
    read_stream,
    sealed,
    small_buffer,
    start,
    wait_until,
)

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def read(spark, peers, **options):
    return spark.readStream.format("p2pmsg").options(peers=",".join(peers), **options)


@pytest.mark.long
def test_topics_by_pattern_and_those_that_come_later(spark, publisher, tmp_path):
    publisher.publish_many("trades.a", [b"x"] * 10)
    publisher.publish_many("quotes.a", [b"x"] * 10)
    sealed(publisher, "quotes.a", 10)
    frame = read(spark, [publisher.endpoint], subscribePattern=r"trades\..*").load()
    sink = Collector()
    query = start(frame, tmp_path, sink)
    while not query.recentProgress:
        time.sleep(0.02)
    publisher.publish_many("trades.b", [b"y"] * 5)  # new, so read from its beginning
    publisher.publish_many("trades.a", [b"y"] * 5)
    publisher.publish_many("quotes.b", [b"y"] * 5)
    sink.wait(10, query)
    query.stop()

    assert sink.offsets("trades.a") == list(range(10, 15))
    assert sink.offsets("trades.b") == list(range(5))
    assert {row.topic for row in sink.rows} == {"trades.a", "trades.b"}


def test_typed_columns_of_dicts(spark, publisher, tmp_path):
    for number in range(50):
        value = {"symbol": "BTC", "price": number / 2, "size": number}
        publisher.publish("t", value if number != 7 else {"symbol": 7}, key="k")
    sealed(publisher, "t", 50)
    reader = read(spark, [publisher.endpoint], subscribe="t", startingOffsets="earliest")
    frame = reader.schema("symbol string, price double, size double, _offset long, _corrupt binary")
    sink = collect_now(frame.load(), tmp_path / "kept")
    rows = sorted(sink.rows, key=lambda row: row["_offset"])

    assert [row.price for row in rows] == [n / 2 if n != 7 else None for n in range(50)]
    assert [row["_offset"] for row in rows if row["_corrupt"] is not None] == [7]
    with pytest.raises(Exception, match=r"message 7 of topic 't' from 'feed' does not fit"):
        collect_now(reader.schema("symbol string, price double").load(), tmp_path / "refused")


@pytest.mark.long
def test_a_file_of_peers_is_read_again(spark, publisher, tmp_path):
    path = tmp_path / "peers"
    path.write_text(publisher.endpoint)
    sink = Collector()
    publisher.publish_many("t", [b"x"] * 10)
    with p2pmsg.Publisher("tcp://127.0.0.1:0", name="second") as second:
        second.publish_many("t", [b"x"] * 7)
        frame = read(spark, [f"file:{path}"], subscribe="t", startingOffsets="earliest").load()
        query = start(frame, tmp_path / "checkpoint", sink)
        sink.wait(10, query)
        path.write_text("nonsense")  # changes nothing
        time.sleep(1.1)
        path.write_text(f"{publisher.endpoint}\n{second.endpoint}  # new")
        sink.wait(17, query)
        query.stop()

    assert sink.offsets("t", "second") == list(range(7))


@pytest.mark.long
def test_what_retention_takes_from_a_running_query_is_counted_exactly(spark, tmp_path):
    """The query is slower than the publisher, whose buffer holds little; the ledger balances."""
    lags = []
    listener = spark_bridge.LagListener(lags.append)
    spark.streams.addListener(listener)
    sink, total = Collector(), 0
    options = {"startingOffsets": "earliest", "failOnDataLoss": "false"}

    def slow(batch, batch_id):
        sink(batch, batch_id)
        time.sleep(0.3)

    try:
        with small_buffer(bytes_max=2**20) as publisher:
            frame = read_stream(spark, [publisher.endpoint], **options, maxOffsetsPerTrigger=300)
            query = start(frame, tmp_path, slow)
            deadline = time.monotonic() + 300
            while not any(lag.missing for lag in lags) or len(sink.rows) < 500:
                assert query.isActive, query.exception()
                assert time.monotonic() < deadline, lags[-1:]
                publisher.publish_many("t", [bytes(1000)] * 20)
                total += 20
                time.sleep(0.01)
            publisher.flush()
            wait_until(lambda: lags[-1].streams and not lags[-1].maxOffsetsBehindLatest, query)
            query.stop()
    finally:
        spark.streams.removeListener(listener)

    offsets = sink.offsets()
    assert offsets == sorted(set(offsets))
    assert offsets[-1] == total - 1
    pinned = json.loads((tmp_path / "offsets" / "0").read_text().splitlines()[-1])
    ((topics,),) = (sessions.values() for sessions in pinned["start"].values())
    assert len(offsets) + sum(lag.missing for lag in lags) == total - topics["t"]
