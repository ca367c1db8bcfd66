"""Webhooks out: signed POSTs a second, and what an endpoint that hangs costs the others."""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import p2pmsg
from tests.bench.harness import Child, Children, Plan
from tests.bench.loads import TrialError
from tests.bench.report import Goal, Row

AREA = "reach"
BODY_BYTES = 2_000
CONCURRENCY = 32
HANG_S = 30.0
PACE_S = 0.003
WAIT_S = 60.0
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
_ANSWER = b"HTTP/1.1 204 No Content\r\n\r\n"

POSTS = Goal(AREA, "signed POSTs/s to a local receiver, 2 kB, concurrency 32", "POST/s", 1_200,
             3_000, against_peer=False)  # fmt: skip
HANGING = Goal(AREA, "99th percentile from publish to POST while another endpoint hangs, against "
               "without it", "ms", 1.2, 1.05, lower_is_better=True)  # fmt: skip


def run(plan: Plan) -> Iterator[Row]:
    """Yield the rows."""
    try:
        import aiohttp
    except ImportError:
        yield POSTS.missing("aiohttp is not installed")
        yield HANGING.missing("aiohttp is not installed")
        return
    note = f'aiohttp {aiohttp.__version__}, `order="none"`, cursor and log included'
    count = 6_000 if plan.seconds > 1 else 2_000
    yield POSTS.guarded(
        lambda: POSTS.measured([posts_per_s(count) for _ in range(plan.run_count)], note)
    )
    yield HANGING.guarded(
        lambda: HANGING.compared(
            lambda: p99_ms(plan.seconds, hangs=True),
            lambda: p99_ms(plan.seconds, hangs=False),
            plan.run_count,
        )
    )


class Receiver:
    """An HTTP server of its own process, as cheap as can be: it measures the sender."""

    def __init__(self, hangs: bool) -> None:
        self._loop = asyncio.new_event_loop()
        self._taken: list[float] = []
        self._answer = b"" if hangs else _ANSWER
        self._server = self._loop.run_until_complete(
            self._loop.create_server(lambda: _Connection(self), "127.0.0.1", 0)
        )

    def ready(self) -> str:
        host, port = self._server.sockets[0].getsockname()
        return f"http://{host}:{port}/"

    def take(self, count: int) -> list[float]:
        """Return when each of so many requests had come, by the monotonic clock."""
        self._loop.run_until_complete(asyncio.wait_for(self._take(count), WAIT_S))
        taken, self._taken = self._taken[:count], self._taken[count:]
        return taken

    def hang(self, seconds: float) -> None:
        """Let requests come for so long; what they are answered is nothing."""
        self._loop.run_until_complete(asyncio.sleep(seconds))

    async def _take(self, count: int) -> None:
        while len(self._taken) < count:
            await asyncio.sleep(0.001)


class _Connection(asyncio.Protocol):
    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._data = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            head = self._data[:end].lower()
            size = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
            if b"webhook-signature: v1," not in head:
                raise TrialError("a request is not signed")
            if len(self._data) < end + 4 + size:
                return
            self._data = self._data[end + 4 + size :]
            self._receiver._taken.append(time.monotonic())
            if self._receiver._answer:
                self._transport.write(self._receiver._answer)


class Sender:
    """A publisher with a log, and a sender of webhooks in the same process."""

    def __init__(self, url: str, concurrency: int, hanging: str | None) -> None:
        from p2pmsg.webhooks import Endpoint
        from p2pmsg.webhooks import Sender as Hooks

        self._folder = tempfile.TemporaryDirectory()
        log = p2pmsg.LogConfig(f"{self._folder.name}/log")
        self._publisher = p2pmsg.Publisher("tcp://127.0.0.1:0", log=log)
        endpoints = [
            Endpoint(each, secret=SECRET, allow=["127.0.0.0/8"], order="none",
                     concurrency=concurrency, timeout=HANG_S)
            for each in (url, hanging) if each is not None
        ]  # fmt: skip
        self._hooks = Hooks(
            self._publisher.endpoint, state=self._folder.name, endpoints=endpoints, start="earliest"
        )

    def ready(self) -> None:
        self._publisher.wait_for_subscribers(1, timeout=20)

    def publish(self, count: int) -> float:
        """Publish all at once; return when that began."""
        value = "x" * BODY_BYTES
        began = time.monotonic()
        self._publisher.publish_many("t", [value] * count)
        return began

    def publish_paced(self, count: int) -> list[float]:
        """Publish one after the other; return when each was."""
        value, times, due = "x" * BODY_BYTES, [], time.monotonic()
        for _ in range(count):
            due += PACE_S
            time.sleep(max(0.0, due - time.monotonic()))
            times.append(time.monotonic())
            self._publisher.publish("t", value)
        return times

    def close(self) -> None:
        self._hooks.close(timeout=0)
        self._publisher.close(timeout=0)
        self._folder.cleanup()


def posts_per_s(count: int) -> float:
    """Return how many POSTs a second a receiver in another process has taken."""
    with Children() as children:
        receiver = children.start(Receiver, False)
        sender = children.start(Sender, receiver.call("ready"), CONCURRENCY, None)
        sender.call("ready")
        for warm_up in (200, count):
            receiver.begin("take", warm_up)
            began = sender.call("publish", warm_up)
            taken = receiver.result(WAIT_S)
    return count / (taken[-1] - began)


def p99_ms(seconds: float, *, hangs: bool) -> float:
    """Return the 99th percentile of the time from `publish` to the whole POST, in ms."""
    count = int(3 * seconds / PACE_S)
    with Children() as children:
        receiver = children.start(Receiver, False)
        other: Child = children.start(Receiver, hangs)
        urls = receiver.call("ready"), other.call("ready")
        other.begin("hang", 6 * seconds + 2)
        sender = children.start(Sender, urls[0], 8, urls[1])
        sender.call("ready")
        for number in (50, count):
            receiver.begin("take", number)
            sent = sender.call("publish_paced", number)
            taken = receiver.result(WAIT_S)
    took = sorted(came - went for went, came in zip(sent, sorted(taken), strict=True))
    return 1e3 * statistics.quantiles(took, n=100)[98]
