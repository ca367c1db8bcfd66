"""How long messages and requests take between two machines.

    python -m tests.bench.between --serve 'tcp://*:5590'       # the other side
    python -m tests.bench.between tcp://10.0.0.1:5590 --count 100000 --rate 5000

One way: from `publish` at the other side until the message is received here. Round trip: a request
and its reply. On one machine both sides read the same clock. Between two machines the difference of
their clocks is measured by the shortest round trip, and half of that is how far the one-way times
may be wrong. A line of JSON is printed.
"""

import argparse
import json
import math
import threading
import time
import uuid
from typing import Any

import transports
from p2pmsg import Publisher, Requester, Responder, Subscriber
from recovery.platform import boot_id

_CLOCK, _OPEN, _PUBLISH = "latency.clock", "latency.open", "latency.publish"
_WARM_UP = 100
"""What comes first and is not counted."""
_START_TIMEOUT_S = 20.0
_RECEIVE_TIMEOUT_S = 10.0
_SHARES = {"median": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "max": 1.0}


def measure(endpoint: str, count: int, rate: float, size: int) -> dict[str, Any]:
    """Measure the round trip first, since it also gives the difference of the clocks."""
    filler = bytes(size)
    trips = []
    with Requester(endpoint) as requester:
        place = requester.request(_OPEN, timeout=_START_TIMEOUT_S)
        for _ in _paced(count, rate):
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
        with Subscriber(back, topics=[topic], start="earliest") as subscriber:
            wanted = {"topic": topic, "rate": rate, "size": size}
            requester.request(_PUBLISH, wanted | {"count": _WARM_UP + count})
            for _ in range(_WARM_UP + count):
                value = subscriber.receive(_RECEIVE_TIMEOUT_S).value
                now_ns = time.monotonic_ns()
                one_way.append(now_ns - int.from_bytes(value[:8], "little") + difference_ns)
    return {
        "count": count,
        "rate": rate,
        "size_bytes": size,
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


class Server:
    """The other side: answers requests, and publishes what is asked for."""

    def __init__(self, endpoint: str) -> None:
        where = transports.parse_endpoint(endpoint)
        is_tcp = where.scheme == "tcp"
        other = f"{endpoint.rpartition(':')[0]}:0" if is_tcp else f"{endpoint}-messages"
        self._publisher = Publisher(other, name="latency")
        self._over = threading.Event()
        self.responder = Responder(
            endpoint,
            {_CLOCK: self._clock, _OPEN: self._open, _PUBLISH: self._publish},
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

    def __enter__(self) -> "Server":
        self.responder.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self.responder.close()
        self._publisher.close(timeout=0.2)


def main() -> None:
    """Be one of the two sides."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("endpoint", nargs="?", help="where the other side is")
    parser.add_argument("--serve", metavar="ENDPOINT", help="be the other side, bound here")
    parser.add_argument("--count", type=int, default=1000, help="messages, and requests")
    parser.add_argument("--rate", type=float, default=1000.0, help="how many a second")
    parser.add_argument("--size", type=int, default=128, help="bytes of a value, at least 8")
    given = parser.parse_args()
    if (given.serve is None) == (given.endpoint is None):
        parser.error("give ENDPOINT or --serve")
    if given.serve is None:
        print(json.dumps(measure(given.endpoint, given.count, given.rate, given.size)))
        return
    with Server(given.serve) as server:
        print(f"listening at {server.responder.endpoint}", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
