"""What p2pmsg must keep to without a peer to compare with: repair time, idle CPU, memory."""

import itertools
import struct
import time
from pathlib import Path
from typing import Any

import p2pmsg
from p2pmsg import PublisherConfig, SubscriberConfig
from tests.bench.harness import Child, Children, gather
from tests.bench.loads import SMALL_BYTES, TrialError, small_load
from tests.bench.ours import (
    READY_SECONDS,
    REPLAY_BYTES,
    TIMEOUT_SECONDS,
    TOPIC,
    OursReceiver,
    open_publisher,
)

FRAME_LOSS = 0.1
FRAMES_PER_SECOND = 2_000
IDLE_SETTLE_SECONDS = 0.5
IDLE_STREAMS = 20_000
STREAMS_SETTLE_SECONDS = 120.0
TRAFFIC_COUNT = 50_000
FLOOD_BUFFERS = 4
FLOOD_SECONDS_MAX = 30.0
VALUE_TAIL = bytes(SMALL_BYTES - 8)


class OursRole:
    """A publisher, a subscriber, or both ends' measures of what they cost."""

    def __init__(self, endpoint: str | None = None) -> None:
        self._publisher = open_publisher() if endpoint is None else None
        self._subscriber = OursSubscription(endpoint) if endpoint is not None else None
        self._base_bytes = 0

    def endpoint(self) -> str:
        return self._publisher.endpoint

    def wait_ready(self) -> None:
        self._publisher.wait_for_subscribers(1, timeout=READY_SECONDS)

    def publish(self, count: int) -> None:
        """Publish `count` numbered messages as fast as it goes."""
        for number in range(count):
            self._publisher.publish(TOPIC, struct.pack("!Q", number) + VALUE_TAIL)
        self._publisher.flush()

    def publish_paced(self, count: int, frames_per_second: int) -> None:
        """Publish `count` numbered messages, each in a frame of its own, at an even pace."""
        start_ns = time.monotonic_ns()
        for number in range(count):
            due_ns = start_ns + number * 1_000_000_000 // frames_per_second
            wait_ns = due_ns - time.monotonic_ns()
            if wait_ns > 0:
                time.sleep(wait_ns / 1e9)
            self._publisher.publish(TOPIC, struct.pack("!Q", number) + VALUE_TAIL)
            self._publisher.flush()

    def receive(self, count: int) -> None:
        self._subscriber.receive_numbered(count)

    def repairs(self) -> dict[str, float]:
        return self._subscriber.repairs()

    def cpu_share_asleep(self, seconds: float) -> float:
        """Percent of a core that the process takes while its main thread sleeps."""
        started = time.process_time()
        time.sleep(seconds)
        return 100 * (time.process_time() - started) / seconds

    def cpu_share_waiting(self, seconds: float) -> float:
        """The same while the main thread waits in `receive`."""
        started = time.process_time()
        self._subscriber.wait_in_vain(seconds)
        return 100 * (time.process_time() - started) / seconds

    def mark_memory(self) -> None:
        """Growth counts from here."""
        self._ring = small_load().ring
        reset_peak_memory()
        self._base_bytes = read_memory("VmRSS")

    def memory_growth(self) -> int:
        """Bytes by which the resident set at its peak exceeds the mark."""
        return read_memory("VmHWM") - self._base_bytes

    def flood(self, seconds: float) -> int:
        """Publish at full rate for `seconds` and some buffers' worth; return the count."""
        publish, ring = self._publisher.publish, self._ring
        enough_count = FLOOD_BUFFERS * REPLAY_BYTES // len(ring[0])
        count = 0
        start = time.monotonic()
        for value in itertools.cycle(ring):
            publish(TOPIC, value)
            count += 1
            passed = time.monotonic() - start
            if passed >= seconds and (count >= enough_count or passed >= FLOOD_SECONDS_MAX):
                break
        return count

    def close(self) -> None:
        for peer in (self._publisher, self._subscriber):
            if peer is not None:
                peer.close()


class StreamsRole(OursRole):
    """A publisher of many streams, or a subscriber of all topics."""

    def __init__(self, endpoint: str | None = None) -> None:
        if endpoint is None:
            config = PublisherConfig(streams_max=2 * IDLE_STREAMS)
            self._publisher = p2pmsg.Publisher("tcp://127.0.0.1:0", name="bench", config=config)
            self._subscriber = None
        else:
            self._publisher, self._subscriber = None, AllTopics(endpoint)

    def publish_each(self) -> None:
        """Publish one message of each stream."""
        for number in range(IDLE_STREAMS):
            self._publisher.publish(f"stream/{number}", VALUE_TAIL)
        self._publisher.flush()

    def receive_each(self) -> None:
        self._subscriber.receive(IDLE_STREAMS)


class OursSubscription(OursReceiver):
    """A subscriber that checks numbered messages and reports what it repaired."""

    def receive_numbered(self, count: int) -> None:
        for expected in range(count):
            value = self._subscriber.receive(TIMEOUT_SECONDS).value
            (number,) = struct.unpack_from("!Q", value)
            if number != expected:
                raise TrialError(f"message {number} came where {expected} was due")

    def repairs(self) -> dict[str, float]:
        latency = self._subscriber.stats().repair_latency
        return {"p50_ms": latency.percentile(50) / 1e6, "p99_ms": latency.percentile(99) / 1e6}

    def wait_in_vain(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            try:
                self._subscriber.receive(left)
            except TimeoutError:
                continue
            raise TrialError("a message came although none was sent")


class AllTopics(OursSubscription):
    """A subscriber of all topics, of any number of them."""

    def __init__(self, endpoint: str) -> None:
        config = SubscriberConfig(streams_max=2 * IDLE_STREAMS)
        self._subscriber = p2pmsg.Subscriber(endpoint, start="latest", config=config)
        self._messages = iter(self._subscriber)


class ProxyRole:
    """The proxy that loses frames, in a process of its own."""

    def __init__(self, target: str, frame_loss: float, seed: int) -> None:
        from p2pmsg.testing import TcpProxy

        self._proxy: Any = TcpProxy(target, frame_loss=frame_loss, seed=seed)

    def endpoint(self) -> str:
        return self._proxy.endpoint

    def close(self) -> None:
        self._proxy.close()


def measure_repair(seconds: float, seed: int) -> dict[str, float]:
    """Percentiles of the time from gap to repair; any loss, duplicate or disorder is an error."""
    count = int(seconds * FRAMES_PER_SECOND)
    with Children() as children:
        publisher = children.start(OursRole)
        proxy = children.start(ProxyRole, publisher.call("endpoint"), FRAME_LOSS, seed)
        subscriber = children.start(OursRole, proxy.call("endpoint"))
        subscriber.call("ready")
        publisher.call("wait_ready")
        subscriber.begin("receive", count)
        publisher.begin("publish_paced", count, FRAMES_PER_SECOND)
        gather([publisher, subscriber])
        return subscriber.call("repairs")


def _joined(children: Children, role: type[OursRole] = OursRole) -> tuple[Child, Child]:
    """Return a publisher, and a subscriber that has joined it."""
    publisher = children.start(role)
    subscriber = children.start(role, publisher.call("endpoint"))
    subscriber.call("ready")
    publisher.call("wait_ready")
    return publisher, subscriber


def measure_idle(seconds: float) -> dict[str, float]:
    """Percent of a core that each end takes after traffic has ended."""
    with Children() as children:
        publisher, subscriber = _joined(children)
        subscriber.begin("receive", TRAFFIC_COUNT)
        publisher.begin("publish", TRAFFIC_COUNT)
        gather([publisher, subscriber])
        time.sleep(IDLE_SETTLE_SECONDS)
        publisher.begin("cpu_share_asleep", seconds)
        waiting = subscriber.call("cpu_share_waiting", seconds)
        asleep = subscriber.call("cpu_share_asleep", seconds)
        return {"publisher": publisher.result(), "waiting": waiting, "asleep": asleep}


def measure_idle_streams(seconds: float) -> dict[str, float]:
    """Percent of a core that each end takes for streams that had a message each, some time ago."""
    with Children() as children:
        publisher, subscriber = _joined(children, StreamsRole)
        subscriber.begin("receive_each")
        publisher.begin("publish_each")
        gather([publisher, subscriber])
        # Heartbeats become rarer for as long as the longest wait.
        subscriber.begin("cpu_share_waiting", STREAMS_SETTLE_SECONDS)
        subscriber.result(2 * STREAMS_SETTLE_SECONDS)
        publisher.begin("cpu_share_asleep", seconds)
        waiting = subscriber.call("cpu_share_waiting", seconds)
        return {"publisher": publisher.result(), "waiting": waiting}


def measure_memory(seconds: float) -> dict[str, float]:
    """Growth of both ends in bytes while the publisher floods a subscriber that never reads."""
    with Children() as children:
        publisher, subscriber = _joined(children)
        publisher.call("mark_memory")
        subscriber.call("mark_memory")
        count = publisher.call("flood", seconds, timeout=2 * FLOOD_SECONDS_MAX)
        if count * SMALL_BYTES < REPLAY_BYTES:
            raise TrialError(f"only {count} messages went out, which do not fill the buffer")
        return {
            "count": count,
            "publisher_bytes": publisher.call("memory_growth"),
            "subscriber_bytes": subscriber.call("memory_growth"),
        }


def reset_peak_memory() -> None:
    """Forget the peak so far, where the kernel lets us."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        pass


def read_memory(field: str) -> int:
    """A field of /proc/self/status in bytes."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) << 10
    raise LookupError(f"/proc/self/status has no {field}")
