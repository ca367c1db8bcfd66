"""The demo's Spark process: one-second bars of a market feed.

Each message's value is one JSON line. Standard output has
JSON lines only: `progress` now and then, and `result` at the end.

The same aggregation counts the messages, so that the count is part of Spark's exactly-once state: a
message that was read twice, or not at all, would show.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any, Final

import spark_bridge

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

EXIT_TIMEOUT: Final = 1
EXIT_MISSING: Final = 3
_VOLUME_PLACES: Final = 8
"""Spark adds the same doubles in another order than a loop; sums agree to so many places."""
_POLL_SECONDS: Final = 0.02
_PRICES: Final = ("symbol", "window_start_ns", "open", "high", "low", "close")
_FIELDS: Final = "symbol string, timestamp_ns long, price double, size double"


class Result:
    """The newest state of the aggregation; each batch sets it."""

    def __init__(self) -> None:
        self.rows = 0
        self.bars: list[list[Any]] = []

    def take(self, batch: "DataFrame", _batch_id: int) -> None:
        """Take the whole state: complete mode gives all of it with every batch."""
        collected = batch.collect()
        bars = sorted(
            [*(row[name] for name in _PRICES), round(row["volume"], _VOLUME_PLACES), row["trades"]]
            for row in collected
            if row["trades"]
        )
        # In this order: `follow` takes the bars when it sees all rows.
        self.bars = bars
        self.rows = sum(row["rows"] for row in collected)


def aggregate(messages: "DataFrame") -> "DataFrame":
    """Return the bars, and how many messages went into each group; quotes have no price."""
    from pyspark.sql import functions as sql

    event = sql.from_json(messages["value"].cast("string"), _FIELDS)
    rows = messages.select("topic", "offset", event.alias("event")).select(
        "topic", "offset", "event.*"
    )
    # The feed's times are in nanoseconds; Spark's timestamps and windows are coarser.
    window = rows["timestamp_ns"] - sql.pmod(rows["timestamp_ns"], sql.lit(1_000_000_000))
    order = sql.when(sql.col("price").isNotNull(), sql.struct("timestamp_ns", "offset"))
    return rows.groupBy("topic", "symbol", window.alias("window_start_ns")).agg(
        sql.count("*").alias("rows"),
        sql.count("price").alias("trades"),
        sql.min_by("price", order).alias("open"),
        sql.max("price").alias("high"),
        sql.min("price").alias("low"),
        sql.max_by("price", order).alias("close"),
        sql.sum("size").alias("volume"),
    )


def open_session() -> "SparkSession":
    """Return a small session that starts quickly."""
    from pyspark.sql import SparkSession

    # Workers run python3 from the PATH otherwise, which may be another installation.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = spark_bridge.configure(SparkSession.builder.appName("p2pmsg bars").master("local[2]"))
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.adaptive.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.log.level": "ERROR",
        # A short time: the second compiler and parallel collectors cost more than they give (the
        # demo took 21 s with this and 33 without, on four busy cores).
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.codegen.wholeStage": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark_bridge.register(spark)
    return spark


def start(
    spark: "SparkSession", arguments: argparse.Namespace, result: Result, checkpoint: str
) -> "StreamingQuery":
    """Start the query."""
    messages = (
        spark.readStream.format("p2pmsg")
        .option("peers", arguments.peers)
        .option("subscribe", arguments.topics)
        .option("startingOffsets", "earliest")
        .load()
    )
    return (
        aggregate(messages)
        .writeStream.outputMode("complete")
        .foreachBatch(result.take)
        .option("checkpointLocation", checkpoint)
        .start()
    )


def follow(query: "StreamingQuery", result: Result, arguments: argparse.Namespace) -> bool:
    """Report progress until all rows are there, or none come any more; return whether all are."""
    begun = came = time.monotonic()
    reported = None
    while result.rows < arguments.expected_rows:
        time.sleep(_POLL_SECONDS)
        if not query.isActive:
            _say(f"the query has ended: {query.exception()}")
            return False
        found = spark_bridge.lag_of(query.lastProgress or {})
        lag = None if found is None else sum(found.streams.values())
        if (result.rows, lag) != reported:
            reported, came = (result.rows, lag), time.monotonic()
            _emit(event="progress", rows=result.rows, lag=lag)
        if time.monotonic() - came > arguments.timeout:
            came_rows = f"{result.rows} of {arguments.expected_rows} rows came"
            _say(f"{came_rows}, and none for {arguments.timeout} s")
            break
    seconds = time.monotonic() - begun
    rows, bars = result.rows, result.bars
    # Last: after the result the parent waits for nothing more, and may end this process.
    _emit(event="result", rows=rows, seconds=round(seconds, 3), bars=bars)
    return rows >= arguments.expected_rows


def main() -> int:
    """Run; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", required=True, help="endpoints, separated by commas")
    parser.add_argument("--topics", default="trades", help="topics, separated by commas")
    parser.add_argument("--expected-rows", type=int, required=True, help="stop when so many came")
    parser.add_argument("--timeout", type=float, default=60.0, help="stop when so long none came")
    arguments = parser.parse_args()
    try:
        spark_bridge.require_spark()
    except ImportError as error:
        _say(str(error))
        return EXIT_MISSING
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as checkpoint:
        spark = open_session()
        result = Result()
        query = start(spark, arguments, result, checkpoint)
        is_whole = follow(query, result, arguments)
        query.stop()
        spark.stop()
    return 0 if is_whole else EXIT_TIMEOUT


def _emit(**fields: Any) -> None:
    print(json.dumps(fields, separators=(",", ":")), flush=True)


def _say(text: str) -> None:
    print(f"p2pmsg bars: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
