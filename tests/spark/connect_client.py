"""A program in Connect mode: reads a batch and a stream. `… ENDPOINT FOLDER`."""

import json
import sys
import time

from pyspark.sql import SparkSession

from tests.spark.streams import small_session


def main(endpoint, folder):
    spark = small_session(SparkSession.builder.remote("local[2]"))
    options = {"peers": endpoint, "subscribe": "t", "startingOffsets": "earliest"}
    count = spark.read.format("p2pmsg").options(**options).load().count()
    frame = spark.readStream.format("p2pmsg").options(**options).schema("n long").load()
    query = frame.writeStream.format("memory").queryName("rows")
    query = query.option("checkpointLocation", folder).trigger(availableNow=True).start()
    while query.isActive:
        time.sleep(0.1)
    total = spark.sql("SELECT sum(n) FROM rows").first()[0]
    print(json.dumps({"count": count, "sum": total, "kind": type(spark).__module__}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
