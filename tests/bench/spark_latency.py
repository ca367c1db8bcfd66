"""A process with a Spark session of its own, for settings that a session cannot change."""

import statistics
import tempfile
import time

from tests.bench.loads import TrialError
from tests.bench.spark_roles import Feed, open_session

PAUSE_SECONDS = 0.01
SETTLE_SECONDS = 1.0
SLOW_SECONDS = 40.0


class LatencyRole:
    """Measures the time from an event to `foreachBatch`."""

    def __init__(self, configured: bool) -> None:
        self._feed = Feed()
        self._spark = open_session(configured=configured)
        self._feed.start_ticking(PAUSE_SECONDS)

    def ready(self) -> None:
        pass

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
