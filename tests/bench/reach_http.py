"""Server-Sent Events to 100 connections: messages a second in all."""

import http.client
import selectors
import threading
import time
from collections.abc import Iterator

import p2pmsg
from tests.bench.harness import Children, Plan
from tests.bench.report import Goal, Row

AREA = "reach"
CONNECTIONS = 100
READERS = 2
VALUE = {"symbol": "ABCD", "price": 101.25, "size": 300}
EVENTS = Goal(AREA, "SSE to 100 connections, messages a second in all", "msg/s", 100_000, 400_000,
              against_peer=False)  # fmt: skip


class Serving:
    """A publisher and the server, in one process."""

    def __init__(self) -> None:
        from p2pmsg.http import Gateway, bind, make_server

        self._publisher = p2pmsg.Publisher("tcp://127.0.0.1:0")
        self._server = make_server(Gateway(self._publisher.endpoint))
        self._place = bind("127.0.0.1", 0)
        run = {"sockets": [self._place]}
        threading.Thread(target=self._server.run, kwargs=run, daemon=True).start()
        self._publisher.wait_for_subscribers(1, timeout=20)

    def port(self) -> int:
        return int(self._place.getsockname()[1])

    def publish(self, count: int, rate: float) -> None:
        """Publish so many, so many a second."""
        begun = time.monotonic()
        for number in range(count):
            ahead = begun + number / rate - time.monotonic()
            if ahead > 0.001:
                time.sleep(ahead)
            self._publisher.publish("t", VALUE)
        self._publisher.publish("t", "end")

    def close(self) -> None:
        self._server.should_exit = True
        self._publisher.close(timeout=0)


class Reading:
    """Reads so many connections until each has seen the end; counts their events."""

    def __init__(self, port: int, connections: int) -> None:
        self._answers = []
        for _ in range(connections):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            connection.request("GET", "/topics/t")
            answer = connection.getresponse()
            while not answer.readline().startswith(b"id:"):
                pass
            self._answers.append((connection.sock, answer))

    def read(self) -> tuple[int, int]:
        """Return the number of events, and when the last came, in ns."""
        chosen, events = selectors.DefaultSelector(), 0
        for sock, _ in self._answers:
            sock.setblocking(False)
            chosen.register(sock, selectors.EVENT_READ)
        while chosen.get_map():
            for key, _ in chosen.select(30):
                data = key.fileobj.recv(2**20)  # type: ignore[union-attr]
                events += data.count(b"\ndata: ")
                if b'"end"' in data or not data:
                    chosen.unregister(key.fileobj)
        return events, time.monotonic_ns()

    def close(self) -> None:
        for sock, _ in self._answers:
            sock.close()


def run(plan: Plan) -> Iterator[Row]:
    """Yield the row."""
    yield EVENTS.guarded(lambda: EVENTS.measured([_measure(plan) for _ in range(plan.run_count)]))


def _measure(plan: Plan) -> float:
    count = int(8_000 * plan.seconds)
    with Children() as children:
        server = children.start(Serving)
        port = server.call("port")
        readers = [children.start(Reading, port, CONNECTIONS // READERS) for _ in range(READERS)]
        for reader in readers:
            reader.call("ready")
            reader.begin("read")
        began_ns = time.monotonic_ns()
        server.begin("publish", count, 8_000)
        found = [reader.result() for reader in readers]
    events = sum(events for events, _ in found)
    seconds = (max(at_ns for _, at_ns in found) - began_ns) / 1e9
    return events / seconds
