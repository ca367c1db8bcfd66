"""Spark reads from a relay, whose publishers may go away permanently, or begin again."""

import contextlib
import random
import signal
import time

import pytest

import p2pmsg
from tests.endpoints import lasting_endpoint
from tests.integration.peers import eventually, start_child
from tests.spark.streams import Collector, collect_now, read_stream, start

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture
def relay(publisher):
    with p2pmsg.Relay(publisher.endpoint, "tcp://127.0.0.1:0", name="relay") as made:
        yield made


def has(relay, following):
    eventually(lambda: [head[1] for head in relay.stats().streams.values()] == [following], 120)


@pytest.fixture
def make_child():
    with contextlib.ExitStack() as stack:

        def make(*words):
            child = start_child(*words)
            stack.callback(child.finish)
            return child

        yield make


def test_a_relay_serves_what_was_read_at_a_publisher_that_is_gone(
    spark, publisher, relay, tmp_path
):
    peers = [publisher.endpoint, relay.endpoint]
    publisher.publish_many("t", [b"x"] * 400)
    has(relay, 400)
    sink = collect_now(read_stream(spark, peers, startingOffsets="earliest"), tmp_path)
    publisher.publish_many("t", [b"x"] * 300)
    has(relay, 700)
    publisher.close(timeout=0.0)
    collect_now(read_stream(spark, peers), tmp_path, sink)

    assert sink.offsets() == list(range(700))


@pytest.mark.rounds(1, 20)
def test_a_relay_is_killed_again_and_again_and_spark_misses_nothing(
    spark, publisher, make_child, tmp_path, rounds
):
    rng = random.Random(5)
    place = lasting_endpoint()

    def relay():
        child = make_child("relay", publisher.endpoint, place, str(tmp_path / "log"))
        child.line()
        return child

    child, total, sink = relay(), 0, Collector()
    stream = read_stream(spark, [place], startingOffsets="earliest")
    query = start(stream, tmp_path / "checkpoint", sink)
    try:
        for _ in range(rounds):
            for _ in range(rng.randrange(5, 40)):
                publisher.publish_many("t", list(range(total, total + 50)))
                total += 50
                time.sleep(0.01)
            child.signal(signal.SIGKILL)
            child.wait()
            child = relay()
        sink.wait(total, query)
    finally:
        query.stop()
        publisher.close(timeout=0.0)  # it would wait for the relays that were killed
    assert sink.offsets() == list(range(total))
    assert {row.session % 2**64 for row in sink.rows} == {publisher.session}
