"""What a multicast must keep to: repair times, latency, and what repairs cost the network."""

import random
import statistics
import struct
import time
from typing import Any

from tests.bench.groups import GroupReceiver, GroupSender, RawUdpReceiver, RawUdpSender, Wire
from tests.bench.harness import Children, gather
from tests.bench.loads import SMALL_BYTES, TrialError
from tests.bench.ours import TIMEOUT_SECONDS, TOPIC

TAIL = bytes(SMALL_BYTES - 16)
_STAMP = struct.Struct("!Qq")
LATENCY_RATE = 10_000
REPAIR_RATE = 2_000


class PacedSender:
    """Sends numbered, stamped messages at an even pace; perhaps over a link that loses some."""

    def __init__(self, kind: type, wire: Wire, port: int, link_loss: float = 0.0) -> None:
        self._end = kind(wire, port)
        self._link = LossyLink(self._end.publisher, link_loss) if link_loss else None

    def ready(self) -> None:
        pass

    def wait_ready(self, count: int) -> None:
        self._end.wait_ready(count)

    def send(self, count: int, rate: int) -> None:
        send_one, now_ns = self._end.send_one, time.monotonic_ns
        start_ns = now_ns()
        for number in range(count):
            due_ns = start_ns + number * 1_000_000_000 // rate
            while (left_ns := due_ns - now_ns()) > 0:
                if left_ns > 200_000:
                    time.sleep((left_ns - 100_000) / 1e9)
            send_one(_STAMP.pack(number, now_ns()) + TAIL)

    def repair_ratio(self) -> float:
        """Bytes sent again for each byte that the link lost."""
        assert self._link is not None
        stats = self._end.publisher.stats().multicast
        return stats.bytes_repaired / max(1, self._link.lost_bytes)

    def close(self) -> None:
        self._end.close()


class LossyLink:
    """A link at the publisher, before the ways part: what it loses, all receivers lose."""

    def __init__(self, publisher: Any, loss: float) -> None:
        udp = publisher._sender._udp
        send, send_train = udp.send, udp.send_train
        rng = random.Random(7)
        self.lost_bytes = 0

        def lossy_send(datagram: bytes, address: Any = None) -> bool:
            if rng.random() < loss:
                self.lost_bytes += len(datagram)
                return True
            return send(datagram, address)

        def lossy_train(pieces: Any, segment: int) -> bool:
            if rng.random() < loss:
                self.lost_bytes += sum(map(len, pieces))
                return True
            return send_train(pieces, segment)

        udp.send, udp.send_train = lossy_send, lossy_train


class PacedReceiver:
    """Receives and checks numbered messages, and tells how old they were."""

    def __init__(self, kind: type, wire: Wire, port: int, *options: Any) -> None:
        self._end = kind(wire, port, *options)

    def ready(self) -> None:
        pass

    def receive(self, count: int) -> list[float]:
        """Return the ages in µs."""
        receive_one, now_ns, unpack = self._end.receive_one, time.monotonic_ns, _STAMP.unpack_from
        ages: list[float] = []
        for expected in range(count):
            value = receive_one()
            at_ns = now_ns()
            number, sent_ns = unpack(value)
            if number != expected:
                raise TrialError(f"message {number} came where {expected} was due")
            ages.append((at_ns - sent_ns) / 1e3)
        return ages

    def repairs(self) -> dict[str, float]:
        stats = self._end.subscriber.stats()
        if stats.lost or not stats.balanced:
            raise TrialError(f"{stats.lost} messages were reported lost")
        found = stats.repair_latency
        return {
            "count": found.count,
            "p50_ms": found.percentile(50) / 1e6,
            "p99_ms": found.percentile(99) / 1e6,
        }

    def close(self) -> None:
        self._end.close()


def measure_latency(ours: bool, wire: Wire, port: int, seconds: float) -> float:
    """Median age of a message, in µs, at 10,000 a second."""
    count = int(LATENCY_RATE * seconds)
    sender = GroupSender if ours else RawUdpSender
    receiver = GroupReceiver if ours else RawUdpReceiver
    with Children() as children:
        one = children.start(PacedSender, sender, wire, port)
        one.call("ready")
        options = (0.0,) if ours else ()
        two = children.start(PacedReceiver, receiver, wire, port, *options)
        one.begin("wait_ready", 1)
        two.call("ready")
        one.result()
        two.begin("receive", count)
        one.begin("send", count, LATENCY_RATE)
        _, ages = gather([one, two])
    return statistics.median(ages[count // 10 :])


def measure_repairs(wire: Wire, port: int, receivers: int, loss: float, seconds: float) -> float:
    """99th percentile from gap to repair, in ms: the worst of the receivers."""
    count = int(REPAIR_RATE * seconds)
    with Children() as children:
        one = children.start(PacedSender, GroupSender, wire, port)
        others = [
            children.start(PacedReceiver, GroupReceiver, wire, port, loss)
            for _ in range(receivers)
        ]
        one.begin("wait_ready", receivers)
        for other in others:
            other.call("ready")
        one.result()
        for other in others:
            other.begin("receive", count)
        one.begin("send", count, REPAIR_RATE)
        gather([one, *others])
        found = [other.call("repairs") for other in others]
    if min(one["count"] for one in found) < count * loss / 4:
        raise TrialError(f"hardly anything was lost: {found}")
    return max(one["p99_ms"] for one in found)


def measure_repair_traffic(wire: Wire, port: int, loss: float, seconds: float) -> float:
    """Bytes sent again for each byte that four receivers lost together."""
    count = int(REPAIR_RATE * seconds)
    with Children() as children:
        one = children.start(PacedSender, GroupSender, wire, port, loss)
        others = [children.start(PacedReceiver, GroupReceiver, wire, port, 0.0) for _ in range(4)]
        one.begin("wait_ready", 4)
        for other in others:
            other.call("ready")
        one.result()
        for other in others:
            other.begin("receive", count)
        one.begin("send", count, REPAIR_RATE)
        gather([one, *others])
        return float(one.call("repair_ratio"))


__all__ = ["TIMEOUT_SECONDS", "TOPIC", "measure_latency", "measure_repair_traffic"]
