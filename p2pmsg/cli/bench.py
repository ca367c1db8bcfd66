"""`p2pmsg bench`: a quick look at what this machine does."""

import argparse
import statistics
import sys
import time
from itertools import islice
from typing import Any

from p2pmsg.cli.arguments import JSON, count, seconds
from p2pmsg.cli.command import OneOf, command, flag, option
from p2pmsg.cli.text import render_columns
from p2pmsg.demo.child import emit, next_command
from p2pmsg.demo.processes import Children, DemoError
from p2pmsg.json_text import to_json
from p2pmsg.sync.publisher import Publisher
from p2pmsg.sync.subscriber import Subscriber

_SECONDS, _QUICK_SECONDS, _SIZE = 2.0, 0.3, 128
_SIZE_MAX = 1_000_000
_PROBE_BYTES = 4 * 2**20
_PROBE_COUNT_MAX = 20_000
_PING_WARM_UP = 200
_JOIN_TIMEOUT_S = 20.0
_RECEIVE_TIMEOUT_S = 20.0
_PING, _PONG, _STOP = "ping", "pong", b"stop"
_CHUNK = 1000


@command(
    "bench",
    OneOf((
        flag("--quick", "about two seconds in all"),
        option("--seconds", f"for each of the three measurements (default {_SECONDS:g})", "S",
               seconds, default=_SECONDS),
    )),
    option("--size", f"size of a value (default {_SIZE}, at most {_SIZE_MAX:,})", "BYTES",
           count(0, _SIZE_MAX), default=_SIZE),
    JSON,
)  # fmt: skip
def bench(arguments: argparse.Namespace) -> int:
    """Measure this machine: two processes over TCP loopback.

    One publishes and one receives; every message is counted. For a fair comparison with other
    libraries, see `make bench` in the project.

    For example:
      p2pmsg bench --quick
      p2pmsg bench --seconds 5 --size 1024 --json
    """
    seconds_each = _QUICK_SECONDS if arguments.quick else arguments.seconds
    with Children() as children:
        measured = _Bench(children, seconds_each, arguments.size)
        result = {
            "size_bytes": arguments.size,
            "seconds": seconds_each,
            "publish_messages_s": measured.rate("publish"),
            "publish_many_messages_s": measured.rate("publish_many"),
            **measured.latency(),
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
    """The receiving process; the sending one runs `_send`."""

    def __init__(self, children: Children, seconds: float, size: int) -> None:
        self._children = children
        self._seconds, self._size = seconds, size
        self._sender = children.start("sender", "p2pmsg.cli.bench", str(size))
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
            self._subscribe(_PONG) as subscriber,
        ):
            self._sender.send("echo", endpoint=publisher.endpoint)
            publisher.wait_for_subscribers(1, timeout=_JOIN_TIMEOUT_S)
            self._await("joined")
            for _ in range(_PING_WARM_UP):
                _ping(publisher, subscriber, value)
            end_s = time.perf_counter() + self._seconds
            while not halves or time.perf_counter() < end_s:
                halves.append(_ping(publisher, subscriber, value) / 2 * 1e6)
            publisher.publish(_PING, _STOP)
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
    publisher.publish(_PING, value)
    subscriber.receive(_RECEIVE_TIMEOUT_S)
    return time.perf_counter() - began_s


def _send() -> None:
    """Run the sending process: do what the parent says until it ends."""
    value = bytes(int(sys.argv[1]))
    with Publisher("tcp://127.0.0.1:0", name="bench") as publisher:
        emit("ready", endpoint=publisher.endpoint)
        while True:
            command = next_command()
            if command is not None:
                _do(publisher, value, command)


def _do(publisher: Publisher, value: bytes, command: dict[str, Any]) -> None:
    match command["command"]:
        case "join":
            publisher.wait_for_subscribers(1, timeout=_JOIN_TIMEOUT_S)
            emit("joined")
        case "publish":
            publish = publisher.publish
            for _ in range(command["count"]):
                publish("publish", value)
            publisher.flush()
            emit("sent")
        case "publish_many":
            left = command["count"]
            values = [value] * _CHUNK
            while left > 0:
                publisher.publish_many("publish_many", values[:left])
                left -= _CHUNK
            publisher.flush()
            emit("sent")
        case "echo":
            _echo(publisher, command["endpoint"])


def _echo(publisher: Publisher, endpoint: str) -> None:
    with Subscriber(endpoint, topics=[_PING], name="bench") as subscriber:
        publisher.wait_for_subscribers(1, timeout=_JOIN_TIMEOUT_S)
        emit("joined")
        for message in subscriber:
            if message.value == _STOP:
                break
            publisher.publish(_PONG, message.value)
    emit("echoed")


if __name__ == "__main__":
    _send()
