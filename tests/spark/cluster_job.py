"""A job for a cluster: reads a stream and a batch. `… MASTER ENDPOINTS ROOT FOLDER`."""

import json
import os
import sys

from tests.spark.streams import small_session


def say_where(batches):
    """Count the rows of a task, and say which executor's Python it ran in."""
    import pyarrow as pa

    rows = sum(batch.num_rows for batch in batches)
    yield pa.RecordBatch.from_pydict({"executor": [os.getppid()], "rows": [rows]})


def main(master, endpoints, root, folder):
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.log.level": "OFF",
        "spark.sql.shuffle.partitions": "2",
        "spark.executorEnv.PYTHONPATH": root,
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.cores.max": "2",
        # Both executors are to take part, however late the second one comes.
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
        "spark.locality.wait": "0",
    }
    spark = small_session(SparkSession.builder.master(master).appName("cluster"), **settings)
    options = {"peers": endpoints, "subscribe": "t", "startingOffsets": "earliest"}
    found = {}

    def keep(batch, _batch_id):
        said = batch.mapInArrow(say_where, "executor long, rows long").collect()
        for row in said:
            if row.rows:
                found[row.executor] = found.get(row.executor, 0) + row.rows
        keep.rows += [tuple(row) for row in batch.select("publisher", "offset").collect()]

    keep.rows = []
    frame = spark.readStream.format("p2pmsg").options(**options, minPartitions="4").load()
    writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", folder)
    writer.trigger(availableNow=True).start().awaitTermination()
    batch = spark.read.format("p2pmsg").options(**options, minPartitions="4").load()
    counts = {"rows": len(keep.rows), "distinct": len(set(keep.rows)), "batch": batch.count()}
    print(json.dumps({"executors": found, **counts}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
