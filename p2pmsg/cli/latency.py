"""`p2pmsg latency`: how long messages and requests take between two processes."""

import argparse
import math
import signal
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any

import transports
from p2pmsg.cli import arguments as kinds
from p2pmsg.cli.command import UsageError, command, note, option
from p2pmsg.cli.secured import SECURITY, security_of, security_words
from p2pmsg.cli.text import rate_text, render_columns
from p2pmsg.cli.waiting import wait_for
from p2pmsg.demo.child import emit
from p2pmsg.demo.processes import Children, DemoError
from p2pmsg.json_text import to_json
from p2pmsg.requests import Requester, Responder
from p2pmsg.sync.publisher import Publisher
from p2pmsg.sync.subscriber import Subscriber
from recovery.platform import boot_id

if TYPE_CHECKING:
    from p2pmsg.security.settings import Security

_CLOCK, _OPEN, _PUBLISH = "latency.clock", "latency.open", "latency.publish"
_WARM_UP = 100
"""What comes first and is not counted."""
_START_TIMEOUT_S = 20.0
_RECEIVE_TIMEOUT_S = 10.0
_SHARES = {"median": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
_TITLES = ("median", "90 %", "99 %", "99.9 %", "highest")


@command(
    "latency",
    option("endpoint", "where `p2pmsg latency --serve` is (default: a process that is started "
           "here, over TCP loopback)", "ENDPOINT", kinds.stream_endpoints, nargs="?"),
    option("--serve", "be the other side: bind here, and to a second port for the messages",
           "ENDPOINT", kinds.stream_endpoint),
    option("--count", "how many messages, and requests (default 1000)", "N",
           kinds.count(1, 10_000_000), default=1000),
    option("--rate", "how many a second (default 1000)", "R", kinds.rate, default=1000.0),
    option("--size", "size of a value (default 128)", "BYTES", kinds.count(8, 1_000_000),
           default=128),
    option("--timeout", "how long to wait for the other side, in seconds (default 5)", "S",
           kinds.seconds, default=5.0),
    *SECURITY,
    kinds.JSON,
)  # fmt: skip
def latency(arguments: argparse.Namespace) -> int:
    """Measure latency between two processes: one way and round trip.

    One way: from `publish` at the other side until the message is received here. Round trip: a
    request and its reply. On one machine both sides read the same clock. Between two machines the
    difference of their clocks is measured by the shortest round trip, and half of that is how far
    the one-way times may be wrong. With --security both sides need it; without ENDPOINT the other
    process has the same key.

    For example:
      p2pmsg latency
      p2pmsg latency --serve 'tcp://*:5590'
      p2pmsg latency tcp://10.0.0.1:5590 --count 100000 --rate 5000 --json
    """
    security = security_of(arguments)
    if arguments.serve is not None:
        if arguments.endpoint is not None:
            raise UsageError("give ENDPOINT or --serve, not both")
        return _serve(arguments.serve, security)
    if arguments.endpoint is None:
        with Children() as children:
            endpoint = _start_here(children, arguments)
            if security is not None:
                endpoint = f"{endpoint}?key={security.keys.public_text}"
            return _print(arguments, _measure(endpoint, arguments, security))
    if len(arguments.endpoint) > 1:
        raise UsageError("give one ENDPOINT")
    return _print(arguments, _measure(arguments.endpoint[0], arguments, security))


def _start_here(children: Children, arguments: argparse.Namespace) -> str:
    child = children.start("latency", "p2pmsg.cli.latency", *security_words(arguments))
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline_s:
        for _, event in children.poll():
            if event["event"] == "ready":
                return str(event["endpoint"])
            if event["event"] == "ended":
                raise DemoError(f"the other process failed: {child.last_words}")
    raise DemoError(f"the other process was silent for {_START_TIMEOUT_S:.0f} s")


def _print(arguments: argparse.Namespace, result: dict[str, Any]) -> int:
    if arguments.json:
        print(to_json(result))
        return 0
    rows = [
        (name, *(f"{value:,.0f} µs" for value in result[key].values()))
        for name, key in (("publish to receive, one way", "one_way_us"),
                          ("request to reply, round trip", "round_trip_us"))
    ]  # fmt: skip
    title = f"{arguments.size}-byte values, {rate_text(arguments.rate)} a second"
    print(render_columns((title, *_TITLES), rows, 1))
    if result["clock_error_us"]:
        print(f"the clocks' difference is known within {result['clock_error_us']:,.0f} µs")
    return 0


def _measure(
    endpoint: str, arguments: argparse.Namespace, security: "Security | None"
) -> dict[str, Any]:
    """Measure the round trip first, since it also gives the difference of the clocks."""
    filler = bytes(arguments.size)
    trips = []
    with Requester(endpoint, security=security) as requester:
        place = requester.request(_OPEN, timeout=max(0.001, arguments.timeout))
        for _ in _paced(arguments.count, arguments.rate):
            began_ns = time.monotonic_ns()
            there = requester.request(_CLOCK, filler, timeout=_RECEIVE_TIMEOUT_S)
            ended_ns = time.monotonic_ns()
            trips.append((ended_ns - began_ns, there["now_ns"] - (began_ns + ended_ns) // 2))
        trips = trips[_WARM_UP:]
        shortest_ns, difference_ns = min(trips)
        if there["boot"] == boot_id():  # one machine: its processes share a clock
            shortest_ns = difference_ns = 0
        topic = f"latency.{uuid.uuid4().hex}"
        one_way = []
        back = _return_endpoint(endpoint, place)
        if security is not None:
            back = f"{back}?key={transports.key_text(security.server_key(endpoint))}"
        with Subscriber(back, topics=[topic], start="earliest", security=security) as subscriber:
            wanted = {"topic": topic, "rate": arguments.rate, "size": arguments.size}
            requester.request(_PUBLISH, wanted | {"count": _WARM_UP + arguments.count})
            for _ in range(_WARM_UP + arguments.count):
                value = subscriber.receive(_RECEIVE_TIMEOUT_S).value
                now_ns = time.monotonic_ns()
                one_way.append(now_ns - int.from_bytes(value[:8], "little") + difference_ns)
    return {
        "count": arguments.count,
        "rate": arguments.rate,
        "size_bytes": arguments.size,
        "clock_error_us": round(shortest_ns / 2e3, 1),
        "one_way_us": _percentiles(one_way[_WARM_UP:]),
        "round_trip_us": _percentiles([trip_ns for trip_ns, _ in trips]),
    }


def _paced(count: int, rate: float, warm_up: int = _WARM_UP) -> Any:
    """Yield `warm_up + count` times, `rate` a second."""
    began_s = time.monotonic()
    for number in range(warm_up + count):
        wait_s = began_s + number / rate - time.monotonic()
        if wait_s > 0:
            time.sleep(wait_s)
        yield


def _percentiles(times_ns: list[int]) -> dict[str, float]:
    """Return the shares of the times that are at most so long, in µs."""
    times_ns.sort()
    count = len(times_ns)
    return {
        name: round(times_ns[math.ceil(share * count) - 1] / 1e3, 1)
        for name, share in _SHARES.items()
    }


def _return_endpoint(endpoint: str, place: str) -> str:
    """Return where the other side publishes: a port at its host, or another Unix socket."""
    if endpoint.startswith("ipc://"):
        return place
    return f"{endpoint.rpartition(':')[0]}:{place.rpartition(':')[2]}"


class _Server:
    """The other side: answers requests, and publishes what is asked for."""

    def __init__(self, endpoint: str, security: "Security | None") -> None:
        where = transports.parse_endpoint(endpoint)
        is_tcp = where.scheme == "tcp"
        other = f"{endpoint.rpartition(':')[0]}:0" if is_tcp else f"{endpoint}-messages"
        self._publisher = Publisher(other, name="latency", security=security)
        self._over = threading.Event()
        self.responder = Responder(
            endpoint,
            {_CLOCK: self._clock, _OPEN: self._open, _PUBLISH: self._publish},
            security=security,
        )

    def _clock(self, value: Any) -> dict[str, Any]:
        return {"now_ns": time.monotonic_ns(), "boot": boot_id()}

    def _open(self, value: Any) -> str:
        return self._publisher.endpoint

    def _publish(self, wanted: dict[str, Any]) -> None:
        threading.Thread(target=self._run, kwargs=wanted, daemon=True).start()

    def _run(self, topic: str, rate: float, size: int, count: int) -> None:
        self._publisher.wait_for_subscribers(1, timeout=_START_TIMEOUT_S)
        filler = bytes(size - 8)
        for _ in _paced(count, rate, 0):
            if self._over.is_set():
                return
            stamp = time.monotonic_ns().to_bytes(8, "little")
            self._publisher.publish(topic, stamp + filler)

    def __enter__(self) -> "_Server":
        self.responder.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self.responder.close()
        self._publisher.close(timeout=0.2)


def _serve(endpoint: str, security: "Security | None") -> int:
    with _Server(endpoint, security) as server:
        note("latency", f"listening at {server.responder.endpoint}")
        try:
            wait_for(threading.Event())
        except KeyboardInterrupt as interrupt:
            if getattr(interrupt, "number", None) != signal.SIGTERM:
                raise
    return 0


if __name__ == "__main__":
    given = latency.parser().parse_args()
    with _Server("tcp://127.0.0.1:0", security_of(given)) as here:
        emit("ready", endpoint=here.responder.endpoint)
        wait_for(threading.Event())
