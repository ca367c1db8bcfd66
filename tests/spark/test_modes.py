"""Triggers, output modes and SQL in real Spark: what works, and what is refused and says why."""

import pytest

import p2pmsg
import spark_bridge
from tests.endpoints import lasting_endpoint
from tests.spark.streams import Collector, collect_now, read_stream, sealed

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture
def feed(publisher):
    publisher.publish_many("t", [b"x"] * 100)
    sealed(publisher, "t", 100)
    return publisher


def test_a_first_batch_that_failed_is_read_again_from_where_it_began(spark, feed, tmp_path):
    """Spark asks for the start again, and the query says `latest`, which is somewhere else then."""
    sink = Collector()
    frame = read_stream(spark, [feed.endpoint], startingOffsets='{"t": 90}')

    def fail(*_):
        raise RuntimeError("on purpose")

    with pytest.raises(Exception, match="on purpose"):
        collect_now(frame, tmp_path, fail)
    feed.publish_many("t", [b"x"] * 10)
    sealed(feed, "t", 110)
    collect_now(read_stream(spark, [feed.endpoint]), tmp_path, sink)

    assert [row.offset for row in sink.batches[0]] == list(range(90, 100))
    assert sink.offsets() == list(range(90, 110))


def test_a_view_reads_what_there_was_when_it_was_made(spark, feed):
    options = f"peers '{feed.endpoint}', subscribe 't'"
    create = f"TEMPORARY VIEW trades_now USING p2pmsg OPTIONS ({options})"
    spark.sql(f"CREATE {create}")
    try:
        feed.publish_many("t", [b"x"] * 50)
        sealed(feed, "t", 150)
        assert spark.sql("SELECT count(*) FROM trades_now WHERE offset >= 90").first()[0] == 10
        assert spark.read.table("trades_now").count() == 100
        spark.sql(f"CREATE OR REPLACE {create}")
        assert spark.table("trades_now").count() == 150
    finally:
        spark.catalog.dropTempView("trades_now")


def test_a_table_is_refused_with_what_to_do_instead(spark, feed):
    """Spark asks a source without options when a table is read, and not at all where the columns
    are given when it is made."""
    options = f"OPTIONS (peers '{feed.endpoint}', subscribe 't')"
    why = r"no tables, since Spark keeps the options.*CREATE TEMPORARY VIEW"
    with pytest.raises(Exception, match=why):
        spark.sql(f"CREATE TABLE quotes USING p2pmsg {options}")
    spark.sql(f"CREATE TABLE quotes (value binary, offset bigint) USING p2pmsg {options}")
    try:
        with pytest.raises(Exception, match=why):
            spark.sql("SELECT count(*) FROM quotes").collect()
    finally:
        spark.sql("DROP TABLE quotes")


def counts(spark, feed):
    frame = read_stream(spark, [feed.endpoint], startingOffsets="earliest")
    return frame.groupBy("topic").count().selectExpr("topic key", "cast(count as string) value")


def sink_options(endpoint, **more):
    return {"endpoint": endpoint, "topic": "counts", **more}


@pytest.mark.long
def test_update_mode_is_refused_and_complete_publishes_all(spark, feed, tmp_path):
    place = lasting_endpoint()
    writer = counts(spark, feed).writeStream.format("p2pmsg").options(**sink_options(place))
    writer = writer.trigger(availableNow=True)
    with pytest.raises(Exception, match="p2pmsg does not support Update mode"):
        writer.outputMode("update").option("checkpointLocation", str(tmp_path / "1")).start(
        ).awaitTermination()  # fmt: skip
    with p2pmsg.Subscriber([place], topics=["counts"], start="earliest") as subscriber:
        writer = writer.outputMode("complete").option("checkpointLocation", str(tmp_path / "2"))
        query = writer.start()
        message = subscriber.receive(timeout=300)
        query.awaitTermination()

    assert (message.key, message.value) == ("t", "100")


def test_update_mode_by_foreach_batch_is_received_once(spark, feed, tmp_path):
    place = lasting_endpoint()

    def write(batch, number):
        more = {"writeId": "counts", "writeBatch": str(number)}
        for _ in range(2):  # as when the batch is done again after a failure
            batch.write.format("p2pmsg").options(**sink_options(place, **more)).mode(
                "append"
            ).save()

    with p2pmsg.Subscriber([place], topics=["*"], start="earliest") as subscriber:
        rows = spark_bridge.CommittedRows(subscriber)
        writer = counts(spark, feed).writeStream.outputMode("update").foreachBatch(write)
        writer = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
        query = writer.start()
        found = [*rows.receive_many(timeout=300)]
        query.awaitTermination()
        with pytest.raises(TimeoutError):
            rows.receive_many(timeout=0.5)

    assert [(each.key, each.value) for each in found] == [("t", "100")]
    assert rows.duplicates == 1


def test_overwriting_is_refused(spark, tmp_path):
    writer = spark.range(3).selectExpr("cast(id as string) value").write.format("p2pmsg")
    writer = writer.options(**sink_options(lasting_endpoint(), minSubscribers="0"))
    with pytest.raises(Exception, match=r"mode\('overwrite'\) cannot be"):
        writer.mode("overwrite").save()
    with pytest.raises(Exception, match=r"'writeId'.* is for batches"):
        rates = spark.readStream.format("rate").load().selectExpr("cast(value as string) value")
        stream = rates.writeStream.format("p2pmsg").options(
            **sink_options(lasting_endpoint(), writeId="w", writeBatch="1")
        )
        stream.option("checkpointLocation", str(tmp_path)).start().awaitTermination()
