"""`p2pmsg bench`: a quick look at what this machine does."""

import argparse
import statistics
import time
from itertools import islice
from typing import Any

from p2pmsg.cli import arguments as kinds
from p2pmsg.cli.bench_sender import PING, PONG, STOP
from p2pmsg.cli.text import render_columns, to_json
from p2pmsg.demo.processes import Children, DemoError
from p2pmsg.sync.publisher import Publisher
from p2pmsg.sync.subscriber import Subscriber

_SECONDS, _QUICK_SECONDS, _SIZE = 2.0, 0.3, 128
_SIZE_MAX = 1_000_000
_PROBE_BYTES = 4 * 2**20
_PROBE_COUNT_MAX = 20_000
_PING_WARM_UP = 200
_JOIN_TIMEOUT_S = 20.0
_RECEIVE_TIMEOUT_S = 20.0
_DESCRIPTION = """\
Measure this machine: two processes over TCP loopback.

One publishes and one receives; every message is counted. For a fair comparison with other
libraries, see `make bench` in the project.

examples:
  p2pmsg bench --quick
  p2pmsg bench --seconds 5 --size 1024 --json
"""


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = kinds.add_command(commands, "bench", _DESCRIPTION, run)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--quick", action="store_true", help="about two seconds in all")
    length.add_argument(
        "--seconds", metavar="S", type=kinds.seconds, default=_SECONDS,
        help=f"for each of the three measurements (default {_SECONDS:g})",
    )  # fmt: skip
    parser.add_argument(
        "--size", metavar="BYTES", type=kinds.count(0, _SIZE_MAX), default=_SIZE,
        help=f"size of a value (default {_SIZE}, at most {_SIZE_MAX:,})",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Measure, and print the table."""
    seconds = _QUICK_SECONDS if arguments.quick else arguments.seconds
    with Children() as children:
        bench = _Bench(children, seconds, arguments.size)
        result = {
            "size_bytes": arguments.size,
            "seconds": seconds,
            "publish_messages_s": bench.rate("publish"),
            "publish_many_messages_s": bench.rate("publish_many"),
            **bench.latency(),
        }
    print(to_json(result) if arguments.json else _render(result))
    return 0


def _render(result: dict[str, Any]) -> str:
    size = result["size_bytes"]
    rows = []
    for name, label in (
        ("publish", "publish, iterated one by one"),
        ("publish_many", "publish_many, receive_many"),
    ):
        rate = result[f"{name}_messages_s"]
        rows.append((label, f"{rate:,} messages/s", f"{rate * size / 1e6:,.0f} MB/s"))
    median, p99 = result["latency_median_us"], result["latency_p99_us"]
    rows.append(("ping-pong, half a round trip", f"{median:,.0f} µs median", f"{p99:,.0f} µs 99 %"))
    title = f"{size}-byte values, TCP loopback"
    return render_columns((title, "", ""), rows, 1)


class _Bench:
    """The receiving process; the other one is `p2pmsg.cli.bench_sender`."""

    def __init__(self, children: Children, seconds: float, size: int) -> None:
        self._children = children
        self._seconds, self._size = seconds, size
        self._sender = children.start("sender", "p2pmsg.cli.bench_sender", str(size))
        self._endpoint = self._await("ready")["endpoint"]

    def rate(self, how: str) -> int:
        """Return messages a second, received and counted."""
        with self._subscribe(how) as subscriber:
            self._sender.send("join")
            self._await("joined")
            probe_count = min(_PROBE_COUNT_MAX, max(20, _PROBE_BYTES // max(1, self._size)))
            probe_s = self._measure(subscriber, how, probe_count)
            count = max(1, int(probe_count / probe_s * self._seconds))
            return round(count / self._measure(subscriber, how, count))

    def _measure(self, subscriber: Subscriber, how: str, count: int) -> float:
        self._sender.send(how, count=count)
        take = _iterate if how == "publish" else _take_batches
        began_s = time.perf_counter()
        seen = take(subscriber, count)
        seconds = time.perf_counter() - began_s
        if seen != count:
            raise DemoError(f"{seen} of {count} messages came")
        self._await("sent")
        return seconds

    def latency(self) -> dict[str, float]:
        """Return half of the round-trip time, in µs."""
        value = bytes(self._size)
        halves: list[float] = []
        with (
            Publisher("tcp://127.0.0.1:0", name="bench") as publisher,
            self._subscribe(PONG) as subscriber,
        ):
            self._sender.send("echo", endpoint=publisher.endpoint)
            publisher.wait_for_subscribers(1, timeout=_JOIN_TIMEOUT_S)
            self._await("joined")
            for _ in range(_PING_WARM_UP):
                _ping(publisher, subscriber, value)
            end_s = time.perf_counter() + self._seconds
            while not halves or time.perf_counter() < end_s:
                halves.append(_ping(publisher, subscriber, value) / 2 * 1e6)
            publisher.publish(PING, STOP)
            self._await("echoed")
        halves.sort()
        return {
            "latency_median_us": round(statistics.median(halves), 1),
            "latency_p99_us": round(halves[min(len(halves) - 1, len(halves) * 99 // 100)], 1),
        }

    def _subscribe(self, topic: str) -> Subscriber:
        # From the first message on, since the sender may still count a subscriber that has left.
        return Subscriber(
            self._endpoint, topics=[topic], start="earliest", on_gap="raise", name="bench"
        )

    def _await(self, wanted: str) -> dict[str, Any]:
        deadline_s = time.monotonic() + _JOIN_TIMEOUT_S
        while time.monotonic() < deadline_s:
            for child, event in self._children.poll():
                if event["event"] == "ended":
                    raise DemoError(f"the sending process failed: {child.last_words}")
                if event["event"] == wanted:
                    return event
        raise DemoError(f"the sending process was silent for {_JOIN_TIMEOUT_S:.0f} s")


def _iterate(subscriber: Subscriber, count: int) -> int:
    seen = 0
    for _ in islice(subscriber, count):
        seen += 1
    return seen


def _take_batches(subscriber: Subscriber, count: int) -> int:
    seen = 0
    while seen < count:
        seen += len(subscriber.receive_many(count - seen, timeout=_RECEIVE_TIMEOUT_S))
    return seen


def _ping(publisher: Publisher, subscriber: Subscriber, value: bytes) -> float:
    began_s = time.perf_counter()
    publisher.publish(PING, value)
    subscriber.receive(_RECEIVE_TIMEOUT_S)
    return time.perf_counter() - began_s
