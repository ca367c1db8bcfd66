"""Helpers: a query that collects what it reads."""

import time

import p2pmsg


def read_stream(spark, peers, topics="t", **options):
    reader = spark.readStream.format("p2pmsg").option("subscribe", topics)
    if peers is not None:
        reader = reader.option("peers", ",".join(peers))
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


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
        deadline = time.monotonic() + seconds
        while len(self.rows) < count:
            if not query.isActive:
                raise AssertionError(f"the query ended: {query.exception()}")
            assert time.monotonic() < deadline, f"{len(self.rows)} of {count} rows"
            time.sleep(0.02)


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
    deadline = time.monotonic() + 60
    while publisher.stats().streams.get(topic, (0, 0))[1] < count:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def small_buffer(name="feed", bytes_max=64 * 1024):
    return p2pmsg.Publisher("tcp://127.0.0.1:0", name=name, replay_bytes=bytes_max)


def publish_again_at(endpoint, name):
    """A publisher where one has just been closed: ZeroMQ lets go of a port a little later."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return p2pmsg.Publisher(endpoint, name=name)
        except p2pmsg.BindError:
            assert time.monotonic() < deadline
            time.sleep(0.02)
