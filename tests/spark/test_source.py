import json
from datetime import UTC, datetime

import msgspec
import pytest

import p2pmsg
import spark_bridge
from tests.endpoints import lasting_endpoint
from tests.integration.peers import eventually
from tests.spark.streams import Collector, collect_now, publish_again_at, read_stream, sealed, start

ALL = None  # no limit
pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def test_offsets_are_the_sequences_each_once(spark, publisher, tmp_path):
    count = 250_000  # more than one task's worth
    publisher.publish_many("t", [b"%d" % number for number in range(count)])
    publisher.publish_many("other", [b"no"] * 10)
    frame = read_stream(spark, [publisher.endpoint], startingOffsets="earliest")
    offsets, wrong, parts = [], [], []

    def sink(batch, _id):
        rows = batch.select("offset", "value").collect()
        offsets.extend(row.offset for row in rows)
        wrong.extend(row for row in rows if bytes(row.value) != b"%d" % row.offset)
        parts.append(batch.rdd.getNumPartitions())

    start(frame, tmp_path, sink, availableNow=True).awaitTermination()

    assert offsets == list(range(count))
    assert not wrong
    assert max(parts) == 4


def test_types_of_columns(spark, publisher, tmp_path):
    moment = 1_723_161_600_123_456_789
    headers = {"s": "text", "b": b"bytes", "i": 7, "n": None, "l": [1, True], "x": b"\xff"}
    values = [b"\x00\xff", "text", 42, {"a": [1, 2.5]}, None, "grüße"]
    for value in values:
        publisher.publish("t", value, key="k", timestamp_ns=moment, headers=headers)
    publisher.publish("t", b"plain", timestamp_ns=-1500)
    sealed(publisher, "t", 7)
    frame = read_stream(spark, [publisher.endpoint], startingOffsets="earliest")
    rows = collect_now(frame, tmp_path).rows

    assert [(f.name, f.dataType.simpleString()) for f in frame.schema.fields] == [
        ("key", "string"),
        ("value", "binary"),
        ("topic", "string"),
        ("publisher", "string"),
        ("session", "bigint"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("headers", "map<string,string>"),
    ]
    pack = msgspec.msgpack.encode
    assert [row.value and bytes(row.value) for row in rows] == [
        b"\x00\xff", b"text", pack(42), pack({"a": [1, 2.5]}), None, "grüße".encode(), b"plain"
    ]  # fmt: skip
    first, last = rows[0], rows[-1]
    assert (first.key, first.topic, first.publisher) == ("k", "t", "feed")
    assert first.session % 2**64 == publisher.session
    assert first.headers == {
        "s": "text", "b": "bytes", "i": "7", "n": None, "l": "[1,true]", "x": "/w=="
    }  # fmt: skip
    (micros,) = {row.us for row in spark.createDataFrame([(first.timestamp,)], "t timestamp")
                 .selectExpr("unix_micros(t) us").collect()}  # fmt: skip
    assert micros == moment // 1000
    assert last.key is None
    assert last.headers is None
    assert last.timestamp.astimezone(UTC) == datetime(1969, 12, 31, 23, 59, 59, 999998, UTC)


def test_a_query_that_is_stopped_goes_on_where_it_was(spark, publisher, tmp_path):
    sink = Collector()
    total = 0
    for _ in range(3):
        publisher.publish_many("t", [b"x"] * 1000)
        total += 1000
        query = start(
            read_stream(spark, [publisher.endpoint], startingOffsets="earliest"), tmp_path, sink
        )
        sink.wait(total - 500, query)
        query.stop()
        publisher.publish_many("t", [b"y"] * 500)
        total += 500
    collect_now(
        read_stream(spark, [publisher.endpoint], startingOffsets="earliest"), tmp_path, sink
    )

    assert sink.offsets() == list(range(total))


@pytest.mark.long
def test_an_unreachable_peer_stops_nobody_and_joins_later(spark, publisher, tmp_path):
    endpoint = lasting_endpoint()
    publisher.publish_many("t", [b"x"] * 100)
    sink = Collector()
    query = start(
        read_stream(spark, [publisher.endpoint, endpoint], startingOffsets="earliest"),
        tmp_path,
        sink,
    )
    sink.wait(100, query)
    eventually(lambda: query.recentProgress)
    progress = query.recentProgress[0]
    assert endpoint in json.loads(progress["sources"][0]["latestOffset"])["away"]
    assert spark_bridge.lag_of(progress).away == (endpoint,)
    with publish_again_at(endpoint, "late") as late:
        late.publish_many("t", [b"x"] * 50)
        sink.wait(150, query)
        publisher.publish_many("t", [b"x"] * 10)
        sink.wait(160, query)
        query.stop()

    assert sink.offsets("t", "feed") == list(range(110))
    assert sink.offsets("t", "late") == list(range(50))


def reader_of(publisher, **options):
    from spark_bridge.options import parse_options
    from spark_bridge.schema import RawLayout
    from spark_bridge.source import P2pmsgStreamReader

    given = {"peers": publisher.endpoint, "subscribe": "t", **options}
    return P2pmsgStreamReader(parse_options(given), RawLayout(["value", "offset"]))


def test_what_a_session_owed_that_has_ended_is_lost_by_name(publisher):
    def offset(**positions):
        peers = {publisher.endpoint: {"00000000000000ab": positions}}
        return {"version": 1, "peers": peers, "cut": [4, 50_000, 4]}

    reader = reader_of(publisher)
    with pytest.raises(spark_bridge.DataLossError, match="publisher_gone") as failure:
        reader.partitions(offset(t=3), offset(t=7))
    reader.stop()
    assert "[3, 7) of topic 't'" in str(failure.value)

    reader = reader_of(publisher, failOnDataLoss="false")
    assert reader.partitions(offset(t=3), offset(t=7)) == []
    reader.stop()


def test_offsets_stay_as_they_are_while_nothing_comes(publisher):
    reader = reader_of(publisher)
    first = reader.initialOffset()
    publisher.publish_many("t", [1, 2, 3])
    assert reader.initialOffset() is first
    published = {f"{publisher.session:016x}": {"t": 3}}

    def look():
        found = reader.latestOffset(first, ALL)
        return found["peers"][publisher.endpoint] == published and found

    second = eventually(look)
    assert second["start"][publisher.endpoint] == {f"{publisher.session:016x}": {"t": 0}}
    assert reader.latestOffset(second, ALL) is second
    assert reader.partitions(second, second) == []
    reader.stop()

    # After a restart before the first batch was done: it is read from where it began.
    again = reader_of(publisher)
    later = again.initialOffset()
    assert later["peers"] == second["peers"]
    ((wanted,),) = (partition.ranges for partition in again.partitions(later, second))
    assert (wanted.start, wanted.stop) == (0, 3)
    assert again.latestOffset(second, ALL) is second
    again.stop()


def ranges_of(partitions):
    return [[(r.session, r.start, r.stop) for r in each.ranges] for each in partitions]


def knowing_all(reader):
    """The reader, once all of its peers have answered."""
    eventually(lambda: not reader.reportLatestOffset()["away"])
    return reader


def test_a_batch_that_is_taken_up_again_is_cut_as_before():
    """With other options, and without a publisher that has restarted meanwhile."""
    places = lasting_endpoint(), lasting_endpoint()
    given = {
        "peers": ",".join(places), "startingOffsets": "earliest", "failOnDataLoss": "false",
    }  # fmt: skip
    with p2pmsg.Publisher(places[1], name="second") as second:
        with p2pmsg.Publisher(places[0], name="first") as first:
            for each in (first, second):
                each.publish_many("t", [1] * 1000)
                sealed(each, "t", 1000)
            reader = knowing_all(reader_of(first, **given, minPartitions="3"))
            begin = reader.initialOffset()
            end = json.loads(json.dumps(reader.latestOffset(begin, ALL)))
            planned = ranges_of(reader.partitions(begin, end))
            reader.stop()
        again = reader_of(second, **given)
        assert ranges_of(again.partitions(again.initialOffset(), end)) == planned
        again.stop()
        with publish_again_at(places[0], "first"):
            again = knowing_all(reader_of(second, **given, minPartitions="2"))
            left = ranges_of(again.partitions(again.initialOffset(), end))
            again.stop()

    assert [sum(stop - start for _, start, stop in each) for each in planned] == [667, 667, 666]
    assert left == [[r for r in each if r[0] == second.session] for each in planned]
