"""A bridge from a plain PUB, against a plain SUB that only reads.

The PUB waits at its high-water mark instead of dropping (`XPUB_NODROP`), so that both get every
message. Nobody subscribes to the bridge's stream: its messages are numbered, framed and kept.
"""

import time
from collections.abc import Iterator
from typing import Any

import p2pmsg
from p2pmsg.bridge import BridgeConfig
from tests.bench.harness import Children, Plan, PublisherRole, measure_rate
from tests.bench.loads import TrialError
from tests.bench.peers import RAW_ZMQ, ZmqReceiver
from tests.bench.report import Row, rate_goal

AREA = "reach"
_LATE_S = 30.0

FROM_PUB = rate_goal(AREA, "a bridge from a plain PUB, 128 B, against a plain SUB that only reads",
                     0.6, 0.9)  # fmt: skip
SINGLE = rate_goal(AREA, "the same where every message has one part (single_parts)", 0.6, 0.9)


class SubRole:
    """A SUB that reads."""

    def __init__(self, endpoint: str) -> None:
        self._receiver = ZmqReceiver(endpoint)

    def take(self, count: int) -> int:
        receive = self._receiver.receive_one
        for _ in range(count):
            receive()
        return time.monotonic_ns()

    def close(self) -> None:
        self._receiver.close()


class BridgeRole:
    """A bridge into a stream."""

    def __init__(self, endpoint: str, single_parts: bool) -> None:
        self._bridge = p2pmsg.Bridge(
            f"zmq+sub+{endpoint}", "tcp://127.0.0.1:0", topic_at="none",
            config=BridgeConfig(single_parts=single_parts),
        )  # fmt: skip

    def take(self, count: int) -> int:
        end_ns = time.monotonic_ns() + int(_LATE_S * 1e9)
        while (now_ns := time.monotonic_ns()) < end_ns:
            if self._bridge.stats().passed_on >= count:
                published = self._bridge.stats().ours.published
                if published != count:
                    raise TrialError(f"{published} of {count} messages were published")
                return now_ns
            time.sleep(0.01)
        raise TrialError(f"{self._bridge.stats().passed_on} of {count} messages came")

    def close(self) -> None:
        self._bridge.close(timeout=0.0)


def run(plan: Plan) -> Iterator[Row]:
    """Yield the rows as they are measured."""

    def sub() -> float:
        return _measure(plan, "a plain SUB", SubRole)

    for goal, single in ((FROM_PUB, False), (SINGLE, True)):
        yield goal.guarded(
            lambda goal=goal, single=single: goal.compared(
                lambda: _measure(plan, f"a bridge, {single}", BridgeRole, single), sub,
                plan.run_count,
            )
        )  # fmt: skip


def _measure(plan: Plan, name: str, role: type, *arguments: Any) -> float:
    """Messages a second: count / (the last one was taken - the first send)."""
    return measure_rate(plan, name, 200_000.0, lambda count: _run(count, role, *arguments))


def _run(count: int, role: type, *arguments: Any) -> tuple[float, float]:
    with Children() as children:
        source = children.start(PublisherRole, RAW_ZMQ, "small")
        sink = children.start(role, source.call("endpoint"), *arguments)
        sink.call("ready")
        source.call("wait_ready", 1)
        sink.begin("take", count)
        first_ns = source.call("send", count)
        seconds = (sink.result() - first_ns) / 1e9
    return count / seconds, seconds
