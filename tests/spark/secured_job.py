"""A Spark program with keys, that says all it can: `python -m tests.spark.secured_job …`.

Arguments: the publisher's endpoint with its key, an endpoint for the sink, the secret key, the file
of known peers, a folder. It logs at level INFO, and writes an event log, which the UI shows.
"""

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from tests.spark.streams import small_session


def main() -> None:
    peer, sink, secret, trust, given = sys.argv[1:]
    folder = Path(given)
    (folder / "events").mkdir()
    spark = small_session(
        SparkSession.builder.master("local[1]").appName("secured"),
        **{
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": (folder / "events").as_uri(),
            "spark.log.level": "INFO",
            "spark.sql.shuffle.partitions": "1",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
        },
    )
    keys = {"securitySecret": secret, "trust": trust}
    source = {"peers": peer, "subscribe": "t", **keys}

    frame = spark.read.format("p2pmsg").options(**source).load()
    frame.explain(True)
    frame.explain("formatted")
    print("batch", frame.count())

    options = ", ".join(f"{name} '{value}'" for name, value in source.items())
    spark.sql(f"CREATE TEMPORARY VIEW secured USING p2pmsg OPTIONS ({options})")
    spark.sql("EXPLAIN EXTENDED SELECT count(*) FROM secured").show(truncate=False)
    spark.sql("DESCRIBE EXTENDED secured").show(truncate=False)
    print("view", spark.table("secured").count())

    stream = spark.readStream.format("p2pmsg").options(**source, startingOffsets="earliest").load()
    query = (
        stream.select("value").writeStream.format("p2pmsg").queryName("secured")
        .options(endpoint=sink, topic="out", checkpointLocation=str(folder / "checkpoint"), **keys)
        .trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    query.explain(True)
    print("progress", json.dumps(query.lastProgress, default=str))
    print("progress", [str(each) for each in query.recentProgress])

    for wrong in ({"minPartitions": "0"}, {"securitySecret": f"{secret}!"}, {"security": secret}):
        try:
            spark.read.format("p2pmsg").options(**{**source, **wrong}).load()
        except Exception as error:  # what the user sees
            print("refused", error)
    spark.stop()


main()
