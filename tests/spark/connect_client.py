"""A program in Connect mode: reads a batch and a stream. `… ENDPOINT FOLDER`."""

import json
import sys
import time

from pyspark.sql import SparkSession

import spark_bridge


def main(endpoint, folder):
    builder = SparkSession.builder.remote("local[2]")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }.items():
        builder = builder.config(key, value)
    spark = spark_bridge.configure(builder).getOrCreate()
    spark_bridge.register(spark)
    reader = spark.read.format("p2pmsg").option("peers", endpoint).option("subscribe", "t")
    count = reader.load().count()
    frame = (
        spark.readStream.format("p2pmsg")
        .option("peers", endpoint)
        .option("subscribe", "t")
        .option("startingOffsets", "earliest")
        .schema("n long")
        .load()
    )
    query = frame.writeStream.format("memory").queryName("rows")
    query = query.option("checkpointLocation", folder).trigger(availableNow=True).start()
    while query.isActive:
        time.sleep(0.1)
    total = spark.sql("SELECT sum(n) FROM rows").first()[0]
    print(json.dumps({"count": count, "sum": total, "kind": type(spark).__module__}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
