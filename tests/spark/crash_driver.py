"""A driver that is killed: reads one stream into files named by batch, which makes it idempotent.

Run as `python -m tests.spark.crash_driver ENDPOINT CHECKPOINT FOLDER`.
"""

import json
import os
import sys
from pathlib import Path

from tests.spark.streams import small_session


def start_query(spark, endpoint, checkpoint, folder):
    """Start the query that reads from `endpoint` into `folder`."""
    frame = spark.readStream.format("p2pmsg").option("peers", endpoint).option("subscribe", "t")
    frame = frame.option("minPartitions", "2")

    def sink(batch, batch_id):
        rows = [(row.offset, int(row.value)) for row in batch.select("offset", "value").collect()]
        part = Path(folder, f".{batch_id}")
        part.write_text(json.dumps(rows))
        part.rename(Path(folder, f"{batch_id}.json"))

    query = frame.option("startingOffsets", "earliest").load().writeStream.foreachBatch(sink)
    return query.option("checkpointLocation", checkpoint).start()


def main(endpoint, checkpoint, folder):
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]")
    spark = small_session(builder, **{"spark.log.level": "OFF"})
    start_query(spark, endpoint, checkpoint, folder).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
