"""Requests in asyncio against the ping-pong of zmq.asyncio: DEALER to ROUTER, one at a time.

The handler is a function: it is called where the request was read, as zmq.asyncio answers, too.
"""

import asyncio
import statistics
import time
from functools import partial
from typing import Any

import zmq
import zmq.asyncio

from p2pmsg.aio import Requester, Responder
from tests.bench.harness import Children, Plan
from tests.bench.loads import TrialError
from tests.bench.report import Goal, Row

LOOPBACK = "tcp://127.0.0.1:0"
VALUE = b"v" * 128
TRIP = Goal("asyncio", "round trip of a request, median, against zmq.asyncio's DEALER/ROUTER", "µs",
            0.6, 0.4, lower_is_better=True)  # fmt: skip


def trips(plan: Plan) -> Row:
    """Return the row; both are measured in turn."""
    return TRIP.guarded(partial(_race, plan))


def _race(plan: Plan) -> Row:
    return TRIP.compared(
        partial(measure_trip, True, plan), partial(measure_trip, False, plan), plan.run_count
    )


def measure_trip(ours: bool, plan: Plan) -> float:
    """Return the median of a round trip, in µs."""
    with Children() as children:
        answerer = children.start(AnswerRole, ours)
        asker = children.start(AskRole, ours, answerer.call("endpoint"))
        asker.call("ready")  # it imports all that it needs
        answerer.begin("serve", plan.seconds + 2.0)
        trip = asker.call("ask", plan.seconds)
        answerer.result()
    return float(trip)


class AnswerRole:
    """Answers with what it was asked, in an event loop."""

    def __init__(self, ours: bool) -> None:
        self.ours = ours
        self.runner = asyncio.Runner()
        self.runner.run(self._open())

    async def _open(self) -> None:
        if self.ours:
            self.responder = Responder(LOOPBACK, {"same": _same})
            self.at = self.responder.endpoint
            return
        self.context = zmq.asyncio.Context()
        self.socket = self.context.socket(zmq.ROUTER)
        self.at = f"tcp://127.0.0.1:{self.socket.bind_to_random_port('tcp://127.0.0.1')}"

    def endpoint(self) -> str:
        return self.at

    def serve(self, seconds: float) -> None:
        self.runner.run(self._serve(seconds))

    async def _serve(self, seconds: float) -> None:
        task = asyncio.create_task(self._answer())
        await asyncio.sleep(seconds)
        task.cancel()
        await asyncio.wait([task])

    async def _answer(self) -> None:
        if self.ours:
            await self.responder.serve()
        while True:
            await self.socket.send_multipart(await self.socket.recv_multipart())

    def close(self) -> None:
        if self.ours:
            self.runner.run(self.responder.close())
        else:
            self.context.destroy(linger=0)
        self.runner.close()


def _same(value: Any) -> Any:
    return value


class AskRole:
    """Asks, one request after the other, in an event loop."""

    def __init__(self, ours: bool, endpoint: str) -> None:
        self.ours = ours
        self.runner = asyncio.Runner()
        self.runner.run(self._open(endpoint))

    async def _open(self, endpoint: str) -> None:
        if self.ours:
            self.requester = Requester(endpoint)
        else:
            self.context = zmq.asyncio.Context()
            self.socket = self.context.socket(zmq.DEALER)
            self.socket.connect(endpoint)

    def ask(self, seconds: float) -> float:
        """Return the median of a round trip, in µs."""
        return self.runner.run(self._ask(seconds))

    async def _ask(self, seconds: float) -> float:
        times_ns = []
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            start_ns = time.monotonic_ns()
            if self.ours:
                answer = await self.requester.request("same", VALUE)
            else:
                await self.socket.send(VALUE)
                answer = await self.socket.recv()
            times_ns.append(time.monotonic_ns() - start_ns)
            if answer != VALUE:
                raise TrialError("another answer came")
        return statistics.median(times_ns[len(times_ns) // 10 :]) / 1e3

    def close(self) -> None:
        if self.ours:
            self.runner.run(self.requester.close())
        else:
            self.context.destroy(linger=0)
        self.runner.close()
