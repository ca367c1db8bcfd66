"""Batches in real Spark, and writing batches and streams to subscribers."""

import json
import time

import pytest

import p2pmsg
import spark_bridge
from tests.endpoints import free_port, lasting_endpoint
from tests.integration.peers import eventually
from tests.integration.test_udp_multicast import GROUP
from tests.spark.streams import read_stream, sealed

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def read(spark, peers, topics="t", **options):
    reader = spark.read.format("p2pmsg").option("peers", ",".join(peers))
    reader = reader.option("subscribe", topics)
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader


def offsets(frame, topic="t"):
    return sorted(row.offset for row in frame.collect() if row.topic == topic)


def test_ranges_by_offset_and_by_time(spark, publisher):
    for number in range(100):
        publisher.publish("t", b"x", timestamp_ns=number * 1_000_000_000)
        publisher.publish("u", b"x", timestamp_ns=number * 1_000_000_000)
    sealed(publisher, "u", 100)

    def wanted(**options):
        return offsets(read(spark, [publisher.endpoint], "t,u", **options).load())

    assert wanted(startingOffsets='{"t": 90}') == list(range(90, 100))
    assert wanted(endingOffsets='{"t": {"feed": 5}}') == list(range(5))
    assert wanted(startingTimestamp="10000", endingTimestamp="1970-01-01T00:00:20Z") == list(
        range(10, 20)
    )
    assert wanted(startingOffsets='{"t": -1}') == []


def test_a_batch_of_many_rows_is_split_and_pruned_by_options(spark, publisher):
    publisher.publish_many("t", [b"%d" % number for number in range(200_000)])
    publisher.publish_many("u", [b"no"] * 10)
    sealed(publisher, "u", 10)
    frame = read(spark, [publisher.endpoint], minPartitions="4").load()

    assert frame.rdd.getNumPartitions() == 4
    row = frame.selectExpr("count(*) n", "count(distinct offset) d", "max(offset) m").first()
    assert (row.n, row.d, row.m) == (200_000, 200_000, 199_999)
    wrong = frame.where("cast(cast(value as string) as long) != offset").count()
    assert wrong == 0


def test_all_publishers_of_a_group_are_read(spark):
    place = GROUP.format(213, free_port())
    with p2pmsg.Publisher(place, name="a") as one, p2pmsg.Publisher(place, name="b") as other:
        one.publish_many("t", [b"x"] * 100)
        other.publish_many("t", [b"x"] * 50)

        def counts():
            rows = read(spark, [place]).load().groupBy("publisher").count().collect()
            return {row.publisher: row["count"] for row in rows}

        eventually(lambda: counts() == {"a": 100, "b": 50})


def subscribe(endpoints):
    return p2pmsg.Subscriber(endpoints, topics=["*"], start="earliest")


def gather(rows, count, seconds=300):
    found = []
    deadline = time.monotonic() + seconds
    while len(found) < count:
        found += rows.receive_many(timeout=max(0.1, deadline - time.monotonic()))
    return found


def test_a_batch_is_written_with_all_columns(spark):
    places = [lasting_endpoint() for _ in range(2)]
    frame = spark.range(0, 100, numPartitions=3).selectExpr(
        "cast(id as string) value",
        "concat('k', id) key",
        "if(id % 2 = 0, 'even', null) topic",
        "timestamp_seconds(id) timestamp",
        "if(id = 7, map('h', 'x'), null) headers",
    )
    with subscribe(places) as subscriber:
        rows = spark_bridge.CommittedRows(subscriber)
        writer = frame.write.format("p2pmsg").option("endpoint", ",".join(places))
        writer.option("topic", "odd").mode("append").save()
        found = gather(rows, 100)

    assert sorted(int(each.value) for each in found) == list(range(100))
    for each in found:
        number = int(each.value)
        assert each.topic == ("odd" if number % 2 else "even")
        assert each.key == f"k{number}"
        assert each.timestamp_ns == number * 1_000_000_000
        assert each.headers == ({"h": "x"} if number == 7 else None)
    assert len(rows.state()) == 1


def test_maps_arrive_as_dicts_and_are_read_back_with_their_schema(spark, publisher):
    place = lasting_endpoint()
    frame = spark.sql(
        "select named_struct('g', map('k', 1), 'n', array(map('x', named_struct('m', map()))))"
        " value, map('h', map(1, 'x')) headers"
    )
    with subscribe([place]) as subscriber:
        writer = frame.coalesce(1).write.format("p2pmsg").option("endpoint", place)
        writer.option("topic", "out").mode("append").save()
        (found,) = gather(spark_bridge.CommittedRows(subscriber), 1)
    assert found.value == {"g": {"k": 1}, "n": [{"x": {"m": {}}}]}
    assert found.headers == {"h": {1: "x"}}

    publisher.publish("t", found.value)
    sealed(publisher, "t", 1)
    schema = "g map<string,int>, n array<map<string,struct<m:map<string,int>>>>"
    row = read(spark, [publisher.endpoint]).schema(schema).load().first()
    assert row.asDict(recursive=True) == found.value


@pytest.mark.long
def test_rows_that_nobody_would_get_are_not_written(spark):
    rows = spark.range(0, 3, 1, numPartitions=1)  # others would wait for the endpoint, in vain
    writer = rows.selectExpr("id value").write.format("p2pmsg")
    writer = writer.options(endpoint=lasting_endpoint(), topic="t", timeoutMs="200")

    with pytest.raises(Exception, match="minSubscribers = 1"):
        writer.mode("append").save()
    writer.option("minSubscribers", "0").mode("append").save()


@pytest.mark.rounds(2, 4)
def test_a_stream_is_written_once_though_its_batches_come_again(spark, publisher, tmp_path, rounds):
    """Source to sink; the query is set back by one batch after each of its runs."""
    places = [lasting_endpoint() for _ in range(2)]
    total = 0
    with subscribe(places) as subscriber:
        rows = spark_bridge.CommittedRows(subscriber)
        found = []
        for _ in range(rounds):
            publisher.publish_many("t", [b"%d" % (total + at) for at in range(100)])
            total += 100
            sealed(publisher, "t", total)
            options = {"startingOffsets": "earliest", "minPartitions": "2"}
            frame = read_stream(spark, [publisher.endpoint], **options).select("value", "timestamp")
            writer = frame.writeStream.format("p2pmsg").option("endpoint", ",".join(places))
            writer = writer.option("topic", "out").option("checkpointLocation", str(tmp_path))
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()
            found += gather(rows, 100)
            commits = sorted(tmp_path.glob("commits/[0-9]*"), key=lambda path: int(path.name))
            for each in (commits[-1], commits[-1].with_name(f".{commits[-1].name}.crc")):
                each.unlink(missing_ok=True)  # as if it had died before the batch was committed
        state = json.loads(json.dumps(rows.state()))

    assert sorted(int(each.value) for each in found) == list(range(total))
    assert rows.duplicates >= rounds - 1
    (batches,) = state.values()
    assert sum(len(partitions) for partitions in batches.values()) == 2 * rounds
