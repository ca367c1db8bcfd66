"""The peers: what a good programmer would write by hand without p2pmsg, and Zenoh.

Raw pyzmq is made lossless with `XPUB_NODROP`: at the high-water mark (1,000 frames, ZeroMQ's
default) `send` waits instead of dropping. XPUB is PUB plus the reading of subscriptions, which
reports the publisher when to begin.
"""

import importlib.util
import json
import socket
import time
from typing import Any

from tests.bench.harness import Contender, Sender
from tests.bench.loads import BATCH_COUNT, TrialError

TIMEOUT_MS = 20_000
READY_SECONDS = 10.0


class ZmqSender(Sender):
    """One frame a message."""

    def __init__(self) -> None:
        import zmq

        self._socket = zmq.Context.instance().socket(zmq.XPUB)
        self._socket.setsockopt(zmq.XPUB_NODROP, 1)
        self._socket.setsockopt(zmq.XPUB_VERBOSE, 1)
        self._socket.setsockopt(zmq.SNDTIMEO, TIMEOUT_MS)
        self._socket.setsockopt(zmq.RCVTIMEO, TIMEOUT_MS)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind("tcp://127.0.0.1:*")
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.send_one = self._socket.send
        self.socket = self._socket

    def wait_ready(self, subscriber_count: int) -> None:
        for _ in range(subscriber_count):
            if self._socket.recv() != b"\x01":
                raise RuntimeError("expected the subscription to everything")

    def send(self, values: list[Any]) -> None:
        send = self._socket.send
        for value in values:
            send(value)

    def close(self) -> None:
        self._socket.close()


class ZmqReceiver:
    def __init__(self, endpoint: str) -> None:
        import zmq

        self._socket = zmq.Context.instance().socket(zmq.SUB)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._socket.setsockopt(zmq.RCVTIMEO, TIMEOUT_MS)
        self._socket.connect(endpoint)
        self.receive_one = self._socket.recv

    def receive(self, count: int) -> list[Any]:
        receive = self._socket.recv
        return [receive() for _ in range(count)]

    def receive_rest(self, seconds: float) -> int:
        count = 0
        while self._socket.poll(int(seconds * 1e3)):
            self._socket.recv()
            count += 1
        return count

    def close(self) -> None:
        self._socket.close(0)


class MsgpackSender(ZmqSender):
    def send(self, values: list[Any]) -> None:
        from msgpack import packb

        send = self._socket.send
        for value in values:
            send(packb(value))


class MsgpackReceiver(ZmqReceiver):
    def receive(self, count: int) -> list[Any]:
        from msgpack import unpackb

        receive = self._socket.recv
        return [unpackb(receive()) for _ in range(count)]

    def check_each(self, field: str, marks: list[Any]) -> None:
        from msgpack import unpackb

        receive = self._socket.recv
        for mark in marks:
            value = unpackb(receive())
            if value[field] != mark:
                raise TrialError(f"{value} came where {field} {mark} was due")


class BatchSender(ZmqSender):
    def send(self, values: list[Any]) -> None:
        from msgpack import packb

        send = self._socket.send
        for start in range(0, len(values), BATCH_COUNT):
            send(packb(values[start : start + BATCH_COUNT]))


class BatchReceiver(ZmqReceiver):
    def receive(self, count: int) -> list[Any]:
        """Return one batch; the last one of a round ends with the round, whatever `count`."""
        from msgpack import unpackb

        return unpackb(self._socket.recv())


RAW_ZMQ = Contender("raw pyzmq", ZmqSender, ZmqReceiver)
MSGPACK_ZMQ = Contender("pyzmq + msgpack", MsgpackSender, MsgpackReceiver)
BATCH_ZMQ = Contender("hand-written batches", BatchSender, BatchReceiver)
"""A list packed with msgpack into one frame of 64 KiB."""


# ---------------------------------------------------------------------------------------- Zenoh


def why_no_zenoh() -> str | None:
    """Return why Zenoh cannot be measured, or None."""
    if importlib.util.find_spec("zenoh") is None:
        return "eclipse-zenoh is not installed (pip install -e '.[bench]')"
    return None


def _open_zenoh(listen: str | None, connect: str | None) -> Any:
    import zenoh

    config = {
        "mode": "peer",
        "scouting": {"multicast": {"enabled": False}, "gossip": {"enabled": False}},
        "listen": {"endpoints": [listen] if listen else []},
        "connect": {"endpoints": [connect] if connect else []},
        "timestamping": {"enabled": True},  # the advanced publisher's cache needs it
    }
    return zenoh.open(zenoh.Config.from_json5(json.dumps(config)))


class ZenohSender(Sender):
    """Advanced publisher: blocks when congested, keeps a cache, numbers its samples."""

    def __init__(self) -> None:
        import zenoh
        from zenoh import ext

        with socket.socket() as probe:  # Zenoh does not say which port it took for port 0
            probe.bind(("127.0.0.1", 0))
            self.endpoint = f"tcp/127.0.0.1:{probe.getsockname()[1]}"
        self._session = _open_zenoh(listen=self.endpoint, connect=None)
        self._publisher = ext.declare_advanced_publisher(
            self._session,
            "bench/t",
            congestion_control=zenoh.CongestionControl.BLOCK,
            reliability=zenoh.Reliability.RELIABLE,
            cache=ext.CacheConfig(max_samples=1000),
            sample_miss_detection=ext.MissDetectionConfig(heartbeat=0.5, sporadic_heartbeat=None),
            publisher_detection=True,
        )

    def wait_ready(self, subscriber_count: int) -> None:
        """Zenoh says only whether anybody matches, and only to a plain publisher."""
        probe = self._session.declare_publisher("bench/t")
        deadline = time.monotonic() + READY_SECONDS
        while not probe.matching_status.matching:
            if time.monotonic() > deadline:
                raise TimeoutError("no Zenoh subscriber")
            time.sleep(0.01)
        probe.undeclare()
        time.sleep(0.2)

    def send(self, values: list[Any]) -> None:
        put = self._publisher.put
        for value in values:
            put(value)

    def close(self) -> None:
        self._session.close()


class ZenohReceiver:
    """Advanced subscriber with recovery and history, read through a channel.

    The channel is the quicker of Zenoh's two ways into Python here, a callback a sample the other.
    """

    def __init__(self, endpoint: str) -> None:
        from zenoh import ext

        self._session = _open_zenoh(listen=None, connect=endpoint)
        self._subscriber = ext.declare_advanced_subscriber(
            self._session,
            "bench/t",
            self.handler(),
            recovery=ext.RecoveryConfig(periodic_queries=None, heartbeat=True),
            history=ext.HistoryConfig(detect_late_publishers=True, max_samples=1000),
            subscriber_detection=True,
        )

    def handler(self) -> Any:
        """Return what Zenoh gives samples to."""
        import zenoh

        return zenoh.handlers.FifoChannel(4096)

    def receive(self, count: int) -> list[Any]:
        receive = self._subscriber.recv
        return [receive().payload.to_bytes() for _ in range(count)]

    def receive_rest(self, seconds: float) -> int:
        time.sleep(seconds)
        count = 0
        while self._subscriber.try_recv() is not None:
            count += 1
        return count

    def close(self) -> None:
        self._session.close()


ZENOH = Contender("Zenoh advanced", ZenohSender, ZenohReceiver)
