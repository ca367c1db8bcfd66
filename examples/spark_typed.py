"""Typed columns straight from the publishers' own dicts: no decoding in Spark, only a schema.

Needs Java 17 and `pip install 'p2pmsg[spark]'`. It ends by itself.
"""

import ctrl_c

from arguments import none
from pyspark.sql import SparkSession

import p2pmsg
import spark_bridge

COUNT = 10_000
SCHEMA = "symbol string, price double, size double, _offset long, _corrupt binary"


def main() -> None:
    """Publish dicts, and one value that does not fit; read them as columns."""
    builder = spark_bridge.configure(SparkSession.builder.master("local[2]"))
    builder = builder.config("spark.ui.enabled", "false").config("spark.log.level", "ERROR")
    spark = ctrl_c.call(builder.getOrCreate)
    spark_bridge.register(spark)
    with p2pmsg.Publisher("tcp://127.0.0.1:0", name="trades") as publisher:
        for number in range(COUNT):
            symbol = ("BTCUSDT", "ETHUSDT")[number % 2]
            publisher.publish("trades", {"symbol": symbol, "price": 1.5 * number, "size": 0.25})
        publisher.publish("trades", {"symbol": "BTCUSDT", "price": "a lot"})
        publisher.flush()
        trades = (
            spark.readStream.format("p2pmsg")
            .option("peers", publisher.endpoint)
            .option("subscribe", "trades")
            .option("startingOffsets", "earliest")
            .schema(SCHEMA)
            .load()
        )
        query = trades.writeStream.format("memory").queryName("trades").start()
        query.processAllAvailable()
        query.stop()
    spark.sql(
        "SELECT symbol, count(*) trades, max(price) high, sum(size) volume FROM trades "
        "WHERE _corrupt IS NULL GROUP BY symbol ORDER BY symbol"
    ).show()
    spark.sql("SELECT _offset, _corrupt FROM trades WHERE _corrupt IS NOT NULL").show()
    spark.stop()


if __name__ == "__main__":
    none(__doc__)
    ctrl_c.run(main)
