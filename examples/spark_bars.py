"""One-second bars of a market feed, computed by Spark straight from the publisher.

Needs Java 17 and `pip install 'p2pmsg[spark]'`. It ends by itself after 20,000 trades.
"""

import os
import sys
import threading

from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

import p2pmsg
import spark_bridge
from p2pmsg.demo.feed import random_walk

TRADES = 20_000


def publish(publisher: p2pmsg.Publisher) -> None:
    """Publish a feed: one JSON line a trade, its symbol as the key."""
    for event in random_walk(TRADES):
        publisher.publish("trades", event.line, event.symbol, timestamp_ns=event.timestamp_ns)
    publisher.flush()


def open_session() -> SparkSession:
    """Return a Spark session that knows the format p2pmsg."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # or workers run another python3
    builder = spark_bridge.configure(SparkSession.builder).master("local[2]")
    builder = builder.config("spark.sql.shuffle.partitions", "1")
    builder = builder.config("spark.ui.enabled", "false").config("spark.log.level", "ERROR")
    spark = builder.getOrCreate()
    spark_bridge.register(spark)
    return spark


def main() -> None:
    """Publish, aggregate, print."""
    spark = open_session()
    with p2pmsg.Publisher("tcp://127.0.0.1:0", name="walk") as publisher:
        trades = (
            spark.readStream.format("p2pmsg")
            .option("peers", publisher.endpoint)
            .option("subscribe", "trades")
            .option("startingOffsets", "earliest")
            .load()
        )
        price = sql.get_json_object(trades["value"].cast("string"), "$.price").cast("double")
        at = sql.struct("timestamp", "offset")
        bars = trades.groupBy("key", sql.window("timestamp", "1 second")).agg(
            sql.min_by(price, at).alias("open"),
            sql.max(price).alias("high"),
            sql.min(price).alias("low"),
            sql.max_by(price, at).alias("close"),
            sql.count("*").alias("trades"),
        )
        query = bars.writeStream.outputMode("complete").format("memory").queryName("bars").start()
        threading.Thread(target=publish, args=(publisher,)).start()
        while spark.sql("SELECT coalesce(sum(trades), 0) FROM bars").first()[0] < TRADES:
            query.awaitTermination(0.2)
        query.stop()
    table = "SELECT key, window.start, open, high, low, close, trades FROM bars ORDER BY 2, 1"
    spark.sql(table).show(18, truncate=False)
    spark.stop()


if __name__ == "__main__":
    main()
