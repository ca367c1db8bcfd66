"""Helpers: a query that collects what it reads."""

import time

import p2pmsg
import spark_bridge
from tests.integration.peers import eventually


def small_session(builder, **settings):
    """Return a session that starts quickly and stays on this machine, with the format."""
    small = {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    builder = spark_bridge.configure(builder)
    for key, value in (small | settings).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark_bridge.register(spark)
    return spark


def wait_until(condition, query, seconds=300.0):
    """Wait until `condition` is true, while the query runs."""

    def look():
        assert query.isActive, f"the query ended: {query.exception()}"
        time.sleep(0.02)
        return condition()

    eventually(look, seconds)


def read_stream(spark, peers, topics="t", **options):
    if peers is not None:
        options["peers"] = ",".join(peers)
    return spark.readStream.format("p2pmsg").options(subscribe=topics, **options).load()


class Collector:
    """A sink that is idempotent by batch: a batch that comes again takes the place of the first."""

    def __init__(self):
        self.batches = {}

    def __call__(self, frame, batch_id):
        self.batches[batch_id] = frame.collect()

    @property
    def rows(self):
        return [row for _, batch in sorted(self.batches.items()) for row in batch]

    def offsets(self, topic="t", publisher=None):
        return [
            row.offset
            for row in self.rows
            if row.topic == topic and publisher in (None, row.publisher)
        ]

    def wait(self, count, query, seconds=300.0):
        wait_until(lambda: len(self.rows) >= count, query, seconds)


def start(frame, checkpoint, sink, **trigger):
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    return writer.trigger(**trigger).start() if trigger else writer.start()


def collect_now(frame, checkpoint, sink=None):
    """Read what is there now, and end."""
    sink = Collector() if sink is None else sink
    query = start(frame, checkpoint, sink, availableNow=True)
    query.awaitTermination()
    return sink


def sealed(publisher, topic, count):
    """Wait until `count` messages of `topic` can be fetched."""
    publisher.flush()
    eventually(lambda: publisher.stats().streams.get(topic, (0, 0))[1] >= count, 60)


def small_buffer(name="feed", bytes_max=64 * 1024):
    return p2pmsg.Publisher("tcp://127.0.0.1:0", name=name, replay_bytes=bytes_max)


def publish_again_at(endpoint, name):
    """A publisher where one has just been closed: ZeroMQ frees a port a little later."""

    def publish():
        try:
            return p2pmsg.Publisher(endpoint, name=name)
        except p2pmsg.BindError:
            return None

    return eventually(publish, 60)
