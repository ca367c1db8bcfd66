"""A thousand subscribers in four processes: how many messages a second reach all of them together.

::

    a process with the publisher       sends one by one, as fast as it goes
    four processes of 250 subscribers  ours: asyncio subscribers in one event loop;
                                       raw pyzmq: SUB sockets at one poller, each drained

By itself: `python -m tests.bench.thousand [--count 1000] [--messages 2000]`.
"""

import argparse
import asyncio
import os
import time
from typing import Any

from p2pmsg import aio
from tests.bench.harness import Children, Contender, PublisherRole, call_all, gather
from tests.bench.loads import TrialError, small_load
from tests.bench.ours import OURS, TOPIC
from tests.bench.peers import RAW_ZMQ, TIMEOUT_MS
from tests.integration.joiners import can_open

COUNT = 1000
PROCESSES = 4
MESSAGES = 2000
JOIN_SECONDS = 30.0


class AioCrowd:
    """Subscribers of ours in one event loop, which runs while something is awaited."""

    def __init__(self, endpoint: str, count: int) -> None:
        if not can_open(count):
            raise TrialError("the system allows too few open files")
        self._runner = asyncio.Runner()
        self._load = small_load()
        self._subscribers: list[aio.Subscriber[Any]] = []
        self._runner.run(self._open(endpoint, count))

    async def _open(self, endpoint: str, count: int) -> None:
        for _ in range(count):
            self._subscribers.append(aio.Subscriber(endpoint, topics=[TOPIC], start="latest"))
        async with asyncio.timeout(JOIN_SECONDS):
            while not all(subscriber.connected for subscriber in self._subscribers):
                await asyncio.sleep(0.01)

    def receive(self, count: int) -> int:
        """Receive and check `count` messages at each; return when the last one came."""
        return max(self._runner.run(self._receive_all(count)))

    async def _receive_all(self, count: int) -> list[int]:
        return await asyncio.gather(*(self._receive(one, count) for one in self._subscribers))

    async def _receive(self, subscriber: Any, count: int) -> int:
        position = 0
        async with asyncio.timeout(TIMEOUT_MS / 1e3):
            async for batch in subscriber.batches(self._load.chunk_count):
                self._load.check(position, batch.values)
                position += len(batch)
                if position >= count:
                    break
        return time.monotonic_ns()

    def close(self) -> None:
        os._exit(0)  # closing a thousand sockets is not what is measured


class ZmqCrowd:
    """SUB sockets at one poller."""

    def __init__(self, endpoint: str, count: int) -> None:
        import zmq

        if not can_open(count):
            raise TrialError("the system allows too few open files")
        self._zmq = zmq
        context = zmq.Context.instance()
        context.set(zmq.MAX_SOCKETS, count + 100)
        self._load = small_load()
        self._sockets = [context.socket(zmq.SUB) for _ in range(count)]
        for socket in self._sockets:
            socket.setsockopt(zmq.SUBSCRIBE, b"")
            socket.connect(endpoint)

    def receive(self, count: int) -> int:
        """Receive and check `count` messages at each; return when the last one came."""
        zmq, chunk_count, check = self._zmq, self._load.chunk_count, self._load.check
        poller, positions = zmq.Poller(), dict.fromkeys(self._sockets, 0)
        for socket in self._sockets:
            poller.register(socket, zmq.POLLIN)
        while positions:
            ready = poller.poll(TIMEOUT_MS)
            if not ready:
                raise TrialError(f"{len(positions)} SUB sockets wait for {TIMEOUT_MS / 1e3:.0f} s")
            for socket, _ in ready:
                values, receive, noblock = [], socket.recv, zmq.NOBLOCK
                try:
                    while len(values) < chunk_count:
                        values.append(receive(noblock))
                except zmq.Again:
                    pass
                check(positions[socket], values)
                positions[socket] += len(values)
                if positions[socket] >= count:
                    del positions[socket]
                    poller.unregister(socket)
        return time.monotonic_ns()

    def close(self) -> None:
        os._exit(0)


CROWDS = {OURS: AioCrowd, RAW_ZMQ: ZmqCrowd}


def measure(contender: Contender, count: int = COUNT, messages: int = MESSAGES) -> float:
    """Return how many messages a second reach `count` subscribers in all."""
    each = count // PROCESSES
    with Children() as children:
        publisher = children.start(OpenPublisher, contender)
        endpoint = publisher.call("endpoint")
        crowds = [children.start(CROWDS[contender], endpoint, each) for _ in range(PROCESSES)]
        call_all(crowds, "ready")
        publisher.call("wait_ready", each * PROCESSES)
        seconds = 0.0
        for part in (messages // 10, messages):  # the first one warms up
            for crowd in crowds:
                crowd.begin("receive", part)
            publisher.begin("send", part)
            first_ns, *last_ns = gather([publisher, *crowds])
            seconds = (max(last_ns) - first_ns) / 1e9
    return messages * each * PROCESSES / seconds


class OpenPublisher(PublisherRole):
    """A publisher that may have so many connections."""

    def __init__(self, contender: Contender) -> None:
        if not can_open(COUNT):
            raise TrialError("the system allows too few open files")
        super().__init__(contender, "small")


def main() -> None:
    """Measure ours and raw pyzmq once, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--messages", type=int, default=MESSAGES)
    options = parser.parse_args()
    for contender in CROWDS:
        rate = measure(contender, options.count, options.messages)
        print(f"{contender.name:>20}  {rate:,.0f} messages a second in all")


if __name__ == "__main__":
    main()
