"""Webhooks out: signed POSTs a second, and what an endpoint that hangs costs the others."""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import p2pmsg
from tests.bench.harness import Children, Plan, say
from tests.bench.loads import TrialError
from tests.bench.report import Goal, Row

AREA = "reach"
BODY_BYTES = 2_000
CONCURRENCY = 32
HANG_S = 120.0
PACE_S = 0.003
SLICE = 150
SETTLE = 30
"""Messages at the begin of each slice that are not looked at: the other endpoint gets stuck."""
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
    yield HANGING.guarded(lambda: _hanging(plan))


class Place:
    """A port of a receiver, as cheap as can be: it notes when each request had come."""

    def __init__(self) -> None:
        self.taken: list[float] = []
        self._held: list[Any] = []
        self._hangs = False

    def take(self, transport: Any) -> None:
        """Note a request, and answer it unless the place hangs."""
        self.taken.append(time.monotonic())
        if self._hangs:
            self._held.append(transport)
        else:
            transport.write(_ANSWER)

    def hang(self, hangs: bool) -> None:
        """Answer nothing from now on, or all, also what was held."""
        self._hangs = hangs
        if not hangs:
            held, self._held = self._held, []
            for transport in held:
                transport.write(_ANSWER)


class Receiver:
    """An HTTP server in a process of its own, with two ports."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._places = Place(), Place()
        self._servers = [
            self._loop.run_until_complete(
                self._loop.create_server(partial(_Connection, place), "127.0.0.1", 0)
            )
            for place in self._places
        ]

    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{each.sockets[0].getsockname()[1]}/" for each in self._servers]

    def take(self, count: int, hangs: bool = False) -> list[float]:
        """Return when each of so many requests came to the first port; the second may hang."""
        first, second = self._places
        second.hang(hangs)
        self._wait(lambda: len(first.taken) >= count)
        taken, first.taken = first.taken[:count], first.taken[count:]
        return taken

    def settle(self, count: int) -> None:
        """Answer all at the second port until it has got so many."""
        second = self._places[1]
        second.hang(False)
        self._wait(lambda: len(second.taken) >= count)
        del second.taken[:count]

    def _wait(self, is_there: Callable[[], bool]) -> None:
        async def wait() -> None:
            while not is_there():
                await asyncio.sleep(0.001)

        self._loop.run_until_complete(asyncio.wait_for(wait(), WAIT_S))


class _Connection(asyncio.Protocol):
    def __init__(self, place: Place) -> None:
        self._place = place
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
            self._place.take(self._transport)


class Sender:
    """A publisher with a log, and a sender of webhooks in the same process."""

    def __init__(self, urls: list[str], concurrency: int) -> None:
        from p2pmsg.webhooks import Endpoint
        from p2pmsg.webhooks import Sender as Hooks

        self._folder = tempfile.TemporaryDirectory()
        log = p2pmsg.LogConfig(f"{self._folder.name}/log")
        self._publisher = p2pmsg.Publisher("tcp://127.0.0.1:0", log=log)
        endpoints = [
            Endpoint(each, secret=SECRET, allow=["127.0.0.0/8"], order="none",
                     concurrency=concurrency, timeout=HANG_S)
            for each in urls
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
        receiver = children.start(Receiver)
        sender = children.start(Sender, receiver.call("urls")[:1], CONCURRENCY)
        sender.call("ready")
        for warm_up in (200, count):
            receiver.begin("take", warm_up)
            began = sender.call("publish", warm_up)
            taken = receiver.result(WAIT_S)
    rate: float = count / (taken[-1] - began)
    return rate


def _hanging(plan: Plan) -> Row:
    pairs = max(2, round(12 * plan.seconds))
    hung: list[float] = []
    free: list[float] = []
    for run in range(plan.run_count):
        for figures, figure in zip((hung, free), p99s_ms(pairs), strict=True):
            figures.append(figure)
        now = f"{hung[-1]:.2f} and {free[-1]:.2f} ms"
        say(f"{HANGING.what}, run {run + 1} of {plan.run_count}: {now}")
    each = pairs * (SLICE - SETTLE)
    return HANGING.between(hung, free, f"{each} messages a side and run, in {pairs} slices each")


def p99s_ms(pairs: int) -> tuple[float, float]:
    """Return the 99th percentile of the time from `publish` to the whole POST, in ms.

    Slices in which the other endpoint hangs and slices in which it answers take turns (A B B A …),
    in the same two processes, so that what else the machine does strikes both alike.

    Returns:
        While the other hangs, and while it answers.

    """
    took: dict[bool, list[float]] = {True: [], False: []}
    with Children() as children:
        receiver = children.start(Receiver)
        sender = children.start(Sender, receiver.call("urls"), 8)
        sender.call("ready")
        for hangs in (True, False, *(pair % 2 == half for pair in range(pairs) for half in (0, 1))):
            receiver.begin("take", SLICE, hangs)
            sent = sender.call("publish_paced", SLICE)
            pairs_of = zip(sent, sorted(receiver.result(WAIT_S)), strict=True)
            took[hangs] += [came - went for went, came in [*pairs_of][SETTLE:]]
            receiver.call("settle", SLICE, timeout=WAIT_S)
    count = SLICE - SETTLE  # the first slice of each side warms up
    return _p99_ms(took[True][count:]), _p99_ms(took[False][count:])


def _p99_ms(seconds: list[float]) -> float:
    return 1e3 * statistics.quantiles(seconds, n=100)[98]
