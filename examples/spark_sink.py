"""From publishers through Spark to subscribers: each batch is received once, whatever fails.

Spark reads trades, keeps the large ones and publishes them again from its tasks; a subscriber
without Spark takes whole, committed batches only. Needs Java 17 and `pip install 'p2pmsg[spark]'`.
"""

import ctrl_c

import socket
import tempfile

from arguments import none
from pyspark.sql import SparkSession

import p2pmsg
import spark_bridge

COUNT = 5_000
PORTS = 2


def free_ports(count: int) -> list[int]:
    """Return ports that nobody uses now; in real life they are agreed on."""
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [server.getsockname()[1] for server in servers]
    for server in servers:
        server.close()
    return ports


def main() -> None:
    """Publish, filter in Spark, receive."""
    builder = spark_bridge.configure(SparkSession.builder.master("local[2]"))
    builder = builder.config("spark.ui.enabled", "false").config("spark.log.level", "ERROR")
    spark = ctrl_c.call(builder.getOrCreate)
    spark_bridge.register(spark)
    endpoints = [f"tcp://127.0.0.1:{port}" for port in free_ports(PORTS)]
    topics = ["large", "spark.commits"]
    with (
        p2pmsg.Publisher("tcp://127.0.0.1:0", name="trades") as publisher,
        p2pmsg.Subscriber(endpoints, topics=topics, start="earliest") as subscriber,
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as checkpoint,
    ):
        for number in range(COUNT):
            publisher.publish("trades", {"id": number, "size": float(number % 100)}, key="BTCUSDT")
        publisher.flush()
        trades = (
            spark.readStream.format("p2pmsg")
            .option("peers", publisher.endpoint)
            .option("subscribe", "trades")
            .option("startingOffsets", "earliest")
            .schema("id long, size double, _key string, _timestamp timestamp")
            .load()
        )
        large = trades.where("size >= 90").selectExpr(
            "named_struct('id', id, 'size', size) value", "_key key", "_timestamp timestamp"
        )
        query = (
            large.writeStream.format("p2pmsg")
            .option("endpoint", ",".join(endpoints))
            .option("topic", "large")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        rows = spark_bridge.CommittedRows(subscriber)
        received = 0
        while received < COUNT // 10:
            for message in rows.receive_many(timeout=60):
                received += 1
                if received <= 5:
                    print(message.topic, message.key, message.value)
        query.awaitTermination()
        print(f"{received} rows in committed batches: {rows.state()}")
    spark.stop()


if __name__ == "__main__":
    none(__doc__)
    ctrl_c.run(main)
