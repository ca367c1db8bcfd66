"""Count a stream's messages by key with Spark, and print the counts every few seconds.

Run it: `python count_trades.py ENDPOINT TOPIC`
"""

import argparse

from pyspark.sql import SparkSession

import spark_bridge


def main() -> None:
    """Run the query until it is stopped."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("endpoint", help="of a publisher or a relay: tcp://HOST:PORT")
    parser.add_argument("topic", help="whose messages are counted")
    arguments = parser.parse_args()
    builder = SparkSession.builder.master("local[2]").appName("p2pmsg")
    spark = spark_bridge.configure(builder).getOrCreate()
    spark_bridge.register(spark)
    messages = (
        spark.readStream.format("p2pmsg")
        .option("peers", arguments.endpoint)
        .option("subscribe", arguments.topic)
        .option("startingOffsets", "earliest")
        .load()
    )
    counts = messages.groupBy("key").count()
    query = counts.writeStream.outputMode("complete").format("console").start()
    query.awaitTermination()


if __name__ == "__main__":
    main()
