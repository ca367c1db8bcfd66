"""What a task does, over real sockets and without Spark."""

import random
import threading

import pytest

pytest.importorskip("pyarrow")

import p2pmsg
from p2pmsg.testing import TcpProxy
from spark_bridge.errors import BridgeError, DataLossError
from spark_bridge.offsets import Range
from spark_bridge.options import parse_options
from spark_bridge.schema import RawLayout
from spark_bridge.tasks import connections, read_ranges
from tests.integration.hostile import data_body, frame, malformed, unreadable_bodies
from tests.spark.streams import sealed

LAYOUT = RawLayout(["topic", "session", "offset", "value"])


@pytest.fixture(autouse=True)
def fresh_connections():
    yield
    connections.close()


def options(**given):
    return parse_options({"peers": "tcp://h:1", "subscribe": "t", **given})


def range_of(publisher, topic, start, stop, *, at=None):
    return Range(
        publisher.endpoint, publisher.session, topic, start, stop, publisher.name,
        publisher.recovery_endpoint if at is None else at,
    )  # fmt: skip


def read(ranges, **given):
    return [
        (row["session"] % 2**64, row["topic"], row["offset"], bytes(row["value"]))
        for batch in read_ranges(ranges, options(**given), LAYOUT)
        for row in batch.to_pylist()
    ]


def test_many_small_ranges_of_many_peers_come_whole_and_in_order():
    rng = random.Random(4)
    peers = [p2pmsg.Publisher("tcp://127.0.0.1:0", name=f"p{at}") for at in range(8)]
    try:
        wanted, expected = [], []
        for peer in peers:
            for topic in [f"t{at}" for at in range(12)]:
                count = rng.choice([1, 5, 700, 3000])
                peer.publish_many(topic, [b"%d" % at for at in range(count)])
                start = rng.randrange(count)
                wanted.append(range_of(peer, topic, start, count))
                expected += [(peer.session, topic, at, b"%d" % at) for at in range(start, count)]
        for peer in peers:
            peer.flush()
        assert read(wanted) == expected
        assert read(wanted[::-1]) != expected  # in the order that is asked for, over old sockets
        assert len(read(wanted)) == len(expected)
    finally:
        for peer in peers:
            peer.close(0)


def test_a_task_that_is_given_up_does_not_disturb_the_next(publisher):
    publisher.publish_many("t", [b"%d" % at for at in range(100_000)])
    sealed(publisher, "t", 100_000)
    wanted = [range_of(publisher, "t", 0, 90_000)]
    for _ in range(3):
        task = read_ranges(wanted, options(), LAYOUT)
        next(task)
        task.close()
        rows = read([range_of(publisher, "t", 50_000, 60_000)])
        assert [(row[2], int(row[3])) for row in rows] == [(at, at) for at in range(50_000, 60_000)]


def test_connections_cut_again_and_again_cost_nothing(publisher):
    count = 300_000
    publisher.publish_many("t", [b"%d" % at for at in range(count)])
    sealed(publisher, "t", count)
    with TcpProxy(publisher.recovery_endpoint) as proxy:
        proxy.cut_every(0.05)
        for _ in range(20):
            rows = read([range_of(publisher, "t", 0, count, at=proxy.endpoint)])
            assert [(row[2], int(row[3])) for row in rows] == [(at, at) for at in range(count)]
            if proxy.cuts > 2:
                break
            connections.close()  # it may have found its way around the proxy
        assert proxy.cuts > 2


def test_a_peer_that_falls_silent_is_asked_again_and_then_named(publisher):
    publisher.publish_many("t", [b"x"] * 10)
    sealed(publisher, "t", 10)
    with TcpProxy(publisher.recovery_endpoint) as proxy:
        proxy.stall()
        with pytest.raises(BridgeError) as failure:
            read(
                [range_of(publisher, "t", 3, 10, at=proxy.endpoint)],
                fetchTimeoutMs="200", failOnDataLoss="false",
            )  # fmt: skip
        text = str(failure.value)
        assert "7 messages [3, 10) of topic 't' from publisher 'feed'" in text
        assert "within 0.2 s" in text
        proxy.resume()
        assert len(read([range_of(publisher, "t", 3, 10, at=proxy.endpoint)])) == 7


def test_what_is_evicted_fails_by_name_or_is_skipped(caplog):
    with p2pmsg.Publisher("tcp://127.0.0.1:0", name="feed", replay_bytes=10_000) as publisher:
        for _ in range(50):
            publisher.publish_many("t", [bytes(100)] * 10)
        publisher.flush()
        earliest, _ = publisher.stats().streams["t"]
        wanted = [range_of(publisher, "t", 0, 500)]
        with pytest.raises(
            DataLossError, match=rf"\[0, {earliest}\) of topic 't' from publisher 'feed'.*evicted"
        ):
            read(wanted)
        rows = read(wanted, failOnDataLoss="false")

    assert [row[2] for row in rows] == list(range(earliest, 500))
    assert f"[0, {earliest})" in caplog.text


class HostileServer:
    """A recovery channel that answers whatever it is asked with the same frames."""

    def __init__(self, replies):
        import zmq

        self._socket = zmq.Context.instance().socket(zmq.ROUTER)
        self._socket.linger = 0
        self.endpoint = f"tcp://127.0.0.1:{self._socket.bind_to_random_port('tcp://127.0.0.1')}"
        self._replies, self._done = replies, threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self):
        while not self._done.is_set():
            if self._socket.poll(20):
                requester, *_ = self._socket.recv_multipart()
                for reply in self._replies:
                    self._socket.send_multipart([requester, reply])

    def close(self):
        self._done.set()
        self._thread.join()
        self._socket.close()


@pytest.mark.parametrize("kind", ["malformed", "unreadable", "other values", "beyond"])
def test_hostile_answers_fail_the_task_with_a_clear_error(kind):
    session = 7
    replies = {
        "malformed": malformed(b"t", session),
        "unreadable": unreadable_bodies(b"t", session, 0),
        "other values": [frame(b"t", 1, session, 0, 3, data_body([1, 2, 3])) for _ in range(3)],
        "beyond": [frame(b"t", 1, session, 2**40, 2, data_body([1, 2]))],
    }[kind]
    server = HostileServer(replies)
    try:
        wanted = Range("tcp://127.0.0.1:9", session, "t", 0, 100, "evil", server.endpoint)
        with pytest.raises((DataLossError, BridgeError), match="'evil'"):
            read([wanted], fetchTimeoutMs="150")
    finally:
        server.close()
