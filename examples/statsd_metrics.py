"""A machine's load and memory: a StatsD client, a live table, and Spark.

The client of PyPI's `statsd` sends figures from /proc four times a second. A collector adds them
up every half second, shows them as a table, and publishes them; Spark reads that stream and
aggregates it over windows of event time, with a watermark. It ends by itself.

Needs Java 17 and `pip install 'p2pmsg[spark,statsd]' statsd`. One argument, if any: seconds to run.
"""

import ctrl_c

import os
import sys
import threading
import time
from pathlib import Path

import statsd
from arguments import optional
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

import p2pmsg.statsd
import spark_bridge

FIELDS = "name STRING, type STRING, count DOUBLE, rate DOUBLE, value DOUBLE, median DOUBLE"


def read_figures() -> tuple[float, float]:
    """Return the load, and the memory in use in MB."""
    load = float(Path("/proc/loadavg").read_text().split()[0])
    lines = Path("/proc/meminfo").read_text().splitlines()
    memory = {line.split(":")[0]: int(line.split()[1]) / 1024 for line in lines}
    return load, memory["MemTotal"] - memory["MemAvailable"]


def send_figures(host: str, port: int, stop: threading.Event) -> None:
    """Send them until it is stopped."""
    client = statsd.StatsClient(host, port, prefix="machine")
    while not stop.wait(0.25):
        with client.timer("proc.read"):
            load, memory = read_figures()
        client.gauge("load", load)
        client.gauge("memory.used_mb", memory)
        client.incr("readings")
    client.close()


def open_session() -> SparkSession:
    """Return a Spark session that knows the format p2pmsg."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # or workers run another python3
    builder = spark_bridge.configure(SparkSession.builder).master("local[2]")
    builder = builder.config("spark.sql.shuffle.partitions", "1")
    builder = builder.config("spark.ui.enabled", "false").config("spark.log.level", "ERROR")
    spark = ctrl_c.call(builder.getOrCreate)
    spark_bridge.register(spark)
    return spark


def aggregate(spark: SparkSession, endpoint: str) -> None:
    """Aggregate the stream over windows of two seconds, each final a second after its end."""
    stream = (
        spark.readStream.format("p2pmsg")
        .option("peers", endpoint)
        .option("subscribe", "metrics")
        .option("startingOffsets", "earliest")
        .load()
    )
    metric = sql.from_json(stream["value"].cast("string"), FIELDS).alias("metric")
    windows = (
        stream.select("timestamp", metric)
        .where("metric.name LIKE 'machine.%'")
        .withWatermark("timestamp", "1 second")
        .groupBy(sql.window("timestamp", "2 seconds"), "metric.name", "metric.type")
        .agg(
            sql.sum("metric.count").alias("count"),
            sql.avg("metric.value").alias("mean"),
            sql.max("metric.median").alias("median_max"),
        )
    )
    windows.writeStream.outputMode("append").format("memory").queryName("windows").start()


def main(duration: float) -> None:
    """Send, collect, show, aggregate."""
    spark, stop = open_session(), threading.Event()
    with p2pmsg.statsd.Collector(
        "udp://127.0.0.1:0",
        publish="tcp://127.0.0.1:0",
        outputs=[p2pmsg.statsd.ConsoleOutput(rows_max=15, idle=True)],
        interval=0.5,
    ) as collector:
        host, port = collector.endpoints[0].removeprefix("udp://").split(":")
        sender = threading.Thread(target=send_figures, args=(host, int(port), stop))
        sender.start()
        try:
            aggregate(spark, collector.publish_endpoint or "")
            deadline = time.monotonic() + duration
            final = spark.table("windows").select("window").distinct()
            while time.monotonic() < deadline or (
                final.count() < 2 and time.monotonic() < deadline + 60
            ):
                time.sleep(0.5)
        finally:
            stop.set()
            sender.join()
    table = "SELECT window.start, name, type, count, mean, median_max FROM windows ORDER BY 1, 2"
    spark.sql(table).show(40, truncate=False)
    spark.sparkContext.setLogLevel("OFF")  # a batch that is cut short is no error here
    for query in spark.streams.active:
        query.stop()
    spark.stop()


if __name__ == "__main__":
    ctrl_c.run(main, optional(__doc__, "SECONDS", 20.0, float))
