"""SQL over a local log: what a publisher has logged is a table, with no process serving it.

Needs Java 17 and `pip install 'p2pmsg[all]'`. It ends by itself.
"""

import ctrl_c

import tempfile

from arguments import none
from demo.feed import random_walk
from pyspark.sql import SparkSession

import p2pmsg
import spark_bridge

TRADES = 50_000
SCHEMA = "symbol string, price double, size double, _timestamp timestamp, _offset long"


def write_log(directory: str) -> None:
    """Publish a feed with a log; nobody has to listen."""
    log = p2pmsg.LogConfig(directory)
    with p2pmsg.Publisher("tcp://127.0.0.1:0", name="walk", log=log) as publisher:
        for event in random_walk(TRADES):
            publisher.publish("trades", event.line, event.symbol, timestamp_ns=event.timestamp_ns)


def main() -> None:
    """Write a log, and ask it questions."""
    builder = spark_bridge.configure(SparkSession.builder.master("local[2]"))
    builder = builder.config("spark.ui.enabled", "false").config("spark.log.level", "ERROR")
    spark = ctrl_c.call(builder.getOrCreate)
    spark_bridge.register(spark)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        write_log(directory)
        reader = spark.read.format("p2pmsg").option("path", directory)
        trades = reader.option("subscribe", "trades").option("valueFormat", "json").schema(SCHEMA)
        trades.load().createOrReplaceTempView("trades")
        spark.sql(
            "SELECT symbol, count(*) trades, min(price) low, max(price) high, "
            "sum(price * size) / sum(size) vwap FROM trades GROUP BY symbol ORDER BY symbol"
        ).show()
        spark.sql(
            "SELECT date_trunc('minute', _timestamp) minute, count(*) trades, sum(size) volume "
            "FROM trades GROUP BY 1 ORDER BY 1"
        ).show(truncate=False)
    spark.stop()


if __name__ == "__main__":
    none(__doc__)
    ctrl_c.run(main)
