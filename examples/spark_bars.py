"""Bars of a market feed by Spark: event-time windows with a watermark, straight from the publisher.

    python examples/spark_bars.py [FEED.jsonl.gz]

Without a file it plays a random walk of 20,000 trades. A bar is final, and is given once, when the
watermark has passed it. Needs Java 17 and `pip install 'p2pmsg[spark]'`.
"""

import ctrl_c

import contextlib
import threading
import time

from arguments import optional
from demo.feed import random_walk, read_feed
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

import p2pmsg
import spark_bridge

TRADES = 20_000
FIELDS = "kind string, symbol string, price double, size double, _timestamp timestamp, _offset long"


def publish(publisher: p2pmsg.Publisher, path: str | None) -> None:
    """Publish a feed: one JSON line a trade, its symbol as the key, and when it happened."""
    with contextlib.suppress(p2pmsg.ClosedError):  # Ctrl-C: the publisher is closed meanwhile
        publish_all(publisher, path)


def publish_all(publisher: p2pmsg.Publisher, path: str | None) -> None:
    """Do that."""
    for event in random_walk(TRADES) if path is None else read_feed(path):
        if event.kind == "trade":
            publisher.publish("trades", event.line, event.symbol, timestamp_ns=event.timestamp_ns)
    # A later event moves the watermark on, so that the last bars are final, too. Its own is not.
    publisher.publish("trades", b"{}", timestamp_ns=event.timestamp_ns + 60 * 10**9)
    publisher.flush()


def make_bars(trades: DataFrame) -> DataFrame:
    """Return one-second bars; trades that come more than 5 s late are left out."""
    return (
        trades.withColumn("at", sql.struct("_timestamp", "_offset"))
        .withWatermark("_timestamp", "5 seconds")
        .groupBy(sql.window("_timestamp", "1 second"), "symbol")
        .agg(
            sql.min_by("price", "at").alias("open"),
            sql.max("price").alias("high"),
            sql.min("price").alias("low"),
            sql.max_by("price", "at").alias("close"),
            sql.sum("size").alias("volume"),
            sql.count("price").alias("trades"),
        )
    )


def open_session() -> SparkSession:
    """Return a Spark session that knows the format p2pmsg."""
    builder = spark_bridge.configure(SparkSession.builder.master("local[2]"))
    builder = builder.config("spark.ui.enabled", "false").config("spark.log.level", "ERROR")
    spark = ctrl_c.call(builder.config("spark.sql.session.timeZone", "UTC").getOrCreate)
    spark_bridge.register(spark)
    return spark


def main(path: str | None) -> None:
    """Publish, aggregate, print."""
    spark = open_session()
    with p2pmsg.Publisher("tcp://127.0.0.1:0", name="feed") as publisher:
        trades = (
            spark.readStream.format("p2pmsg")
            .option("peers", publisher.endpoint)
            .option("subscribe", "trades")
            .option("startingOffsets", "earliest")
            .option("valueFormat", "json")
            .schema(FIELDS)
            .load()
        )
        bars = make_bars(trades)
        query = bars.writeStream.outputMode("append").format("memory").queryName("bars").start()
        thread = threading.Thread(target=publish, args=(publisher, path), daemon=True)
        thread.start()
        while thread.is_alive():
            query.awaitTermination(0.2)  # raises what the query has failed with
        time.sleep(1.0)  # until the query has heard of the last one
        query.processAllAvailable()
        query.stop()
    table = spark.sql(
        "SELECT symbol, window.start, open, high, low, close, volume, trades FROM bars "
        "ORDER BY window.start, symbol"
    )
    table.show(18, truncate=False)
    print(f"{table.count()} bars of {table.agg(sql.sum('trades')).first()[0]} trades")
    spark.stop()


if __name__ == "__main__":
    ctrl_c.run(main, optional(__doc__, "FEED"))
