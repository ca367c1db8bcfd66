"""Processes and sources of the Spark benchmark: publishers, and what users read with today."""

import json
import os
import socket
import statistics
import sys
import tempfile
import threading
import time
from datetime import datetime
from itertools import cycle
from typing import Any

import msgspec
import zmq
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    InputPartition,
    SimpleDataSourceStreamReader,
)

import p2pmsg
import spark_bridge
from spark_bridge.options import SourceOptions
from spark_bridge.schema import ROWS_MAX, Gathered, RawLayout, spark_schema
from spark_bridge.typed import raw_names
from tests.bench.loads import TrialError

VALUE_BYTES = 128
CHUNK = 1000
LINES = 100_000
"""Spark's socket source packs each batch's lines into its tasks, object by object: 600,000 are not
through in half a minute."""
TRADE = {"id": 1, "symbol": "BTCUSDT", "price": 61685.99, "size": 0.00122, "sell": True}
FIELDS = "id long, symbol string, price double, size double, sell boolean, time_ns long"
NAMES = raw_names(SourceOptions())


def ring() -> list[bytes]:
    return [b"%0*d" % (VALUE_BYTES, number) for number in range(CHUNK)]


def trades() -> list[dict[str, Any]]:
    return [{**TRADE, "id": number, "time_ns": 1_723_161_600_000_000_000 + number}
            for number in range(CHUNK)]  # fmt: skip


class Feed:
    """A publisher whose buffer holds what Spark is to read."""

    def __init__(self, count: int = 0, kind: str = "bytes") -> None:
        self._publisher = p2pmsg.Publisher("tcp://127.0.0.1:0", name="feed", replay_bytes=2**31)
        values: Any = ring()
        if kind == "json":
            values = [msgspec.json.encode(each) for each in trades()]
        elif kind == "dict":
            values = trades()
        self._values = values
        self._running = False
        for _ in range(count // CHUNK):
            self._publisher.publish_many("t", values)
        self._publisher.flush()

    def endpoint(self) -> str:
        return self._publisher.endpoint

    def rate(self, seconds: float) -> float:
        """Publish one by one as fast as it goes; messages a second."""
        publish, values = self._publisher.publish, self._values
        begun = time.monotonic()
        count = 0
        while time.monotonic() < begun + seconds:
            for value in values:
                publish("busy", value)
            count += len(values)
        return count / (time.monotonic() - begun)

    def start_ticking(self, pause: float) -> None:
        """Publish the time now and then, in a thread."""
        self._running = True

        def tick() -> None:
            while self._running:
                self._publisher.publish("tick", b"%d" % time.time_ns())
                time.sleep(pause)

        threading.Thread(target=tick, daemon=True).start()

    def close(self) -> None:
        self._running = False
        self._publisher.close(0)


class ZmqFeed:
    """A PUB socket that sends its ring, one message a frame, as fast as it goes."""

    def __init__(self) -> None:
        self._socket = zmq.Context.instance().socket(zmq.PUB)
        self._socket.set(zmq.SNDHWM, 1_000_000)
        self._port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self._running = True
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def _send(self) -> None:
        values = ring()
        while self._running:
            for value in values:
                self._socket.send(b"t " + value)
            time.sleep(0.001)

    def endpoint(self) -> str:
        return f"tcp://127.0.0.1:{self._port}"

    def close(self) -> None:
        self._running = False
        self._thread.join()


class LineServer:
    """A TCP server that sends lines, for Spark's own socket source."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self._accepted = 0.0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        lines = b"\n".join(ring()) + b"\n"
        try:
            while True:
                connection, _ = self._server.accept()
                self._accepted = time.monotonic()
                threading.Thread(target=self._send, args=(connection, lines), daemon=True).start()
        except OSError:
            return

    def _send(self, connection: socket.socket, lines: bytes) -> None:
        try:
            for _ in range(LINES // CHUNK):
                connection.sendall(lines)
            connection.recv(1)
        except OSError:
            connection.close()

    def accepted(self) -> float:
        """When the last connection came, by CLOCK_MONOTONIC."""
        return self._accepted

    def port(self) -> int:
        return int(self._server.getsockname()[1])

    def close(self) -> None:
        self._server.close()


class NothingPartition(InputPartition):
    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.rows = rows


class NothingReader(DataSourceStreamReader):
    """The same record batches as ours, made in the reader out of nothing."""

    def __init__(self, rows: int, tasks: int) -> None:
        self._rows, self._tasks = rows, tasks
        self._logged = False

    def initialOffset(self) -> dict:
        return {"at": 0}

    def latestOffset(self, start: dict, limit: Any) -> dict:
        return {"at": self._rows}

    def partitions(self, start: dict, end: dict) -> list[InputPartition]:
        count = end["at"] - start["at"]
        return [NothingPartition(count // self._tasks) for _ in range(self._tasks)] if count else []

    def read(self, partition: Any) -> Any:
        values = [value for value, _ in zip(cycle(ring()), range(ROWS_MAX), strict=False)]
        layout, left = RawLayout(NAMES), partition.rows
        while left > 0:
            batch = p2pmsg.MessageBatch("t", 1, "feed", 0, time.time_ns(), values[:left])
            yield layout.to_arrow(Gathered([batch]))
            left -= ROWS_MAX


class Nothing(DataSource):
    @classmethod
    def name(cls) -> str:
        return "nothing"

    def schema(self) -> str:
        return spark_schema(NAMES)

    def streamReader(self, schema: Any) -> NothingReader:
        return NothingReader(int(self.options["rows"]), int(self.options["tasks"]))


class SubReader(SimpleDataSourceStreamReader):
    """A SUB socket in the driver, as users write it today."""

    def __init__(self, options: Any) -> None:
        self._endpoint = options["endpoint"]
        self._socket: Any = None
        self._at = 0

    def initialOffset(self) -> dict:
        return {"at": 0}

    def read(self, start: dict) -> Any:
        if self._socket is None:
            self._socket = zmq.Context.instance().socket(zmq.SUB)
            self._socket.set(zmq.RCVHWM, 1_000_000)
            self._socket.connect(self._endpoint)
            self._socket.subscribe(b"")
        rows = []
        while len(rows) < 100_000 and self._socket.poll(5):
            try:
                now = datetime.now()
                while len(rows) < 100_000:
                    topic, _, value = self._socket.recv(zmq.NOBLOCK).partition(b" ")
                    rows.append((topic.decode(), value, now))
            except zmq.Again:
                continue
        at = start["at"] + len(rows)
        return iter(rows), {"at": at}

    def readBetweenOffsets(self, start: dict, end: dict) -> Any:
        return iter(())


class Sub(DataSource):
    @classmethod
    def name(cls) -> str:
        return "zmq_sub"

    def schema(self) -> str:
        return "topic string, value binary, received timestamp"

    def simpleStreamReader(self, schema: Any) -> SubReader:
        return SubReader(self.options)


class RedisReader(DataSourceStreamReader):
    """Redis streams by redis-py: XRANGE in the tasks, as such sources are written."""

    def __init__(self, options: Any) -> None:
        self._port, self._count = int(options["port"]), int(options["count"])

    def initialOffset(self) -> dict:
        return {"at": 0}

    def latestOffset(self, start: dict, limit: Any) -> dict:
        return {"at": self._count}

    def partitions(self, start: dict, end: dict) -> list[InputPartition]:
        return [InputPartition(key) for key in ("s0", "s1")] if start != end else []

    def read(self, partition: Any) -> Any:
        import redis

        client = redis.Redis(port=self._port)
        last = "-"
        while True:
            entries = client.xrange(partition.value, min=last, count=10_000)
            for entry, fields in entries:
                yield (fields[b"v"], entry.decode())
            if len(entries) < 10_000:
                return
            last = "(" + entries[-1][0].decode()


class RedisSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "redis_streams"

    def schema(self) -> str:
        return "value binary, entry string"

    def streamReader(self, schema: Any) -> RedisReader:
        return RedisReader(self.options)


def open_session(*, configured: bool = True, shuffle: bool = True) -> SparkSession:
    """A Spark session on two cores; unconfigured: with Spark's own defaults."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("bench")
    if configured:
        builder = spark_bridge.configure(builder)
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.log.level": "OFF",
        "spark.sql.streaming.numRecentProgressUpdates": "10000",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.warehouse.dir": tempfile.mkdtemp(prefix="p2pmsg-bench-"),
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    spark_bridge.register(spark)
    for source in (Nothing, Sub, RedisSource):
        spark.dataSource.register(source)
    return spark


def rows_and_seconds(query: Any) -> tuple[int, float]:
    """Rows, and the time that the batches with rows took, of a query that has ended."""
    rows, seconds = 0, 0.0
    for progress in query.recentProgress:
        report = json.loads(progress.json) if hasattr(progress, "json") else progress
        if report["numInputRows"]:
            rows += report["numInputRows"]
            seconds += report["durationMs"]["triggerExecution"] / 1000
    return rows, seconds


PAUSE_SECONDS = 0.01
SETTLE_SECONDS = 1.0
SLOW_SECONDS = 40.0


class LatencyRole:
    """Measures the time from an event to `foreachBatch`."""

    def __init__(self, configured: bool) -> None:
        self._feed = Feed()
        self._spark = open_session(configured=configured)
        self._feed.start_ticking(PAUSE_SECONDS)

    def measure(self, seconds: float) -> float:
        """Return the median in ms, of events every 10 ms."""
        reader = self._spark.readStream.format("p2pmsg").option("peers", self._feed.endpoint())
        frame = reader.option("subscribe", "tick").load().selectExpr("cast(value as string) ns")
        begun = 0
        latencies_ms: list[float] = []

        def sink(batch, _batch_id) -> None:
            rows = batch.collect()
            now = time.time_ns()
            if begun and now > begun:
                latencies_ms.extend((now - int(row.ns)) / 1e6 for row in rows)

        writer = frame.writeStream.foreachBatch(sink)
        query = writer.option("checkpointLocation", tempfile.mkdtemp()).start()
        end = time.monotonic() + SLOW_SECONDS
        while not any(each["numInputRows"] for each in query.recentProgress):
            if time.monotonic() > end:
                raise TrialError("no rows came")
            time.sleep(0.05)
        begun = time.time_ns() + int(SETTLE_SECONDS * 1e9)
        time.sleep(SETTLE_SECONDS + max(2.0, seconds))
        query.stop()
        if not latencies_ms:
            raise TrialError("no rows came")
        return statistics.median(latencies_ms)

    def close(self) -> None:
        self._spark.stop()
        self._feed.close()
