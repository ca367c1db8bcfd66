"""What the processes of the area `asyncio` run: receivers in event loops, ours and the peers'."""

import asyncio
import collections
import shutil
import socket
import statistics
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

from p2pmsg import aio
from tests.bench.harness import PING_WARM_UP_COUNT, STOP, Contender, die_with_parent
from tests.bench.loads import Load, TrialError, small_load
from tests.bench.ours import (
    RECEIVE_MANY_COUNT,
    TOPIC,
    OursManyReceiver,
    OursManySender,
    OursReceiver,
    OursSender,
)
from tests.bench.peers import READY_SECONDS, ZenohReceiver, ZenohSender, ZmqSender

TICK_SECONDS = 0.001


class InLoop:
    """Has an event loop, which runs while something is done."""

    def __init__(self) -> None:
        self.runner = asyncio.Runner()
        self.run = self.runner.run

    async def leave(self) -> None:
        """Close what belongs to the loop; some have nothing."""

    def close(self) -> None:
        self.run(self.leave())
        self.runner.close()


class LoopReceiver(InLoop, ABC):
    """Receives in its event loop."""

    def receive_rest(self, seconds: float) -> int:
        return self.run(self.count_rest(seconds))

    def receive_checked(self, load: Load, count: int) -> int:
        """Receive and check `count` messages; return when the last one came."""
        return self.run(self._receive_checked(load, count))

    async def _receive_checked(self, load: Load, count: int) -> int:
        position = last_ns = 0
        while position < count:
            values = await self.take(min(load.chunk_count, count - position))
            last_ns = time.monotonic_ns()
            load.check(position, values)
            position += len(values)
        return last_ns

    @abstractmethod
    async def take(self, count: int) -> list[Any]:
        """Return at least one and at most `count` values."""

    @abstractmethod
    async def count_rest(self, seconds: float) -> int:
        """Count what comes within so many seconds."""


# ----------------------------------------------------------------------------------------- ours


class ForReceiver(OursReceiver):
    """A threaded subscriber, iterated by the same loop as that of asyncio."""

    def receive(self, count: int) -> list[Any]:
        values: list[Any] = []
        append = values.append
        for message in self._messages:
            append(message.value)
            if len(values) == count:
                break
        return values


class AioReceiver(LoopReceiver):
    """`async for message in subscriber`."""

    def __init__(self, endpoint: str) -> None:
        super().__init__()
        self.run(self.open(endpoint))

    async def open(self, endpoint: str) -> None:
        self.subscriber = aio.Subscriber(endpoint, topics=[TOPIC], start="latest")
        self.messages = aiter(self.subscriber)
        self.batches = self.subscriber.batches(RECEIVE_MANY_COUNT)
        async with asyncio.timeout(READY_SECONDS):
            while not self.subscriber.connected:  # this loop does not run while others get ready
                await asyncio.sleep(0.001)

    async def take(self, count: int) -> list[Any]:
        values: list[Any] = []
        append = values.append
        async for message in self.messages:
            append(message.value)
            if len(values) == count:
                break
        return values

    async def count_rest(self, seconds: float) -> int:
        try:
            return len(await self.subscriber.receive_many(1_000, seconds))
        except TimeoutError:
            return 0

    async def leave(self) -> None:
        await self.subscriber.close()


class AioManyReceiver(AioReceiver):
    """`async for batch in subscriber.batches()`."""

    async def take(self, count: int) -> list[Any]:
        return (await anext(self.batches)).values


class DelaySender(OursManySender):
    """Publishes as fast as it goes."""

    def send_all(self, count: int) -> None:
        ring = small_load().ring
        for at in range(0, count, len(ring)):
            self.send(ring[: count - at])
        self.finish()

    def endpoint_text(self) -> str:
        return self.endpoint


class AioDelay(AioReceiver):
    """Receives at full rate while another task wakes up every ms, and notes how late it is."""

    def receive_and_tick(self, count: int) -> tuple[float, float]:
        """Return the worst delay in ms, and the most that this thread worked meanwhile."""
        return self.run(self._receive_and_tick(count))

    async def _receive_and_tick(self, count: int) -> tuple[float, float]:
        delays: list[float] = []
        worked: list[float] = []

        async def tick() -> None:
            while True:
                due, before = time.monotonic() + TICK_SECONDS, time.thread_time()
                await asyncio.sleep(TICK_SECONDS)
                delays.append(time.monotonic() - due)
                worked.append(time.thread_time() - before - TICK_SECONDS)

        await self.take(1)
        task = asyncio.create_task(tick())
        left = count - 1
        async for _ in self.messages:  # none is kept, or collecting garbage would take as long
            left -= 1
            if not left:
                break
        await asyncio.sleep(TICK_SECONDS)
        task.cancel()
        return 1e3 * max(delays), 1e3 * max(worked)

    def cpu_share_waiting(self, seconds: float) -> float:
        """Return the percentage of a core that waiting for a message takes."""

        async def wait() -> float:
            before = time.process_time()
            try:
                await self.subscriber.receive(seconds)
            except TimeoutError:
                return 100 * (time.process_time() - before) / seconds
            raise TrialError("a message came although none was sent")

        return self.run(wait())


# ---------------------------------------------------------------------------------- zmq.asyncio


class ZmqAioReceiver(LoopReceiver):
    """Awaits the first frame, and takes the others that are there without awaiting."""

    def __init__(self, endpoint: str) -> None:
        super().__init__()
        self.run(self.open(endpoint))

    async def open(self, endpoint: str) -> None:
        import zmq
        import zmq.asyncio

        self.again, self.noblock = zmq.Again, zmq.NOBLOCK
        self.socket = zmq.asyncio.Context.instance().socket(zmq.SUB)
        self.socket.setsockopt(zmq.SUBSCRIBE, b"")
        self.socket.connect(endpoint)
        self.drained = zmq.Socket.shadow(self.socket.underlying)

    async def take(self, count: int) -> list[Any]:
        receive, noblock, again = self.drained.recv, self.noblock, self.again
        values = [await self.socket.recv()]
        append = values.append
        try:
            while len(values) < count:
                append(receive(noblock))
        except again:
            pass
        return values

    async def count_rest(self, seconds: float) -> int:
        return len(await self.take(1_000)) if await self.socket.poll(int(seconds * 1e3)) else 0

    async def leave(self) -> None:
        self.socket.close(0)


# ---------------------------------------------------------------------------------------- Zenoh


class ZenohAioReceiver(LoopReceiver, ZenohReceiver):
    """Zenoh has none for asyncio: its thread hands samples over, and wakes a loop that sleeps."""

    def __init__(self, endpoint: str) -> None:
        LoopReceiver.__init__(self)
        self._loop = self.runner.get_loop()
        self._came: collections.deque[Any] = collections.deque()
        self._wake = asyncio.Event()
        ZenohReceiver.__init__(self, endpoint)

    def handler(self) -> Any:
        came, loop, wake = self._came, self._loop, self._wake

        def note(sample: Any) -> None:
            came.append(sample)
            if len(came) == 1:
                loop.call_soon_threadsafe(wake.set)

        return note

    async def take(self, count: int) -> list[Any]:
        while not self._came:
            self._wake.clear()
            if not self._came:
                await self._wake.wait()
        return [self._came.popleft().payload.to_bytes() for _ in range(min(count, len(self._came)))]

    async def count_rest(self, seconds: float) -> int:
        await asyncio.sleep(seconds)
        return len(self._came)

    def close(self) -> None:
        ZenohReceiver.close(self)
        self.runner.close()


# ----------------------------------------------------------------------------------------- NATS


def nats_server() -> str | None:
    """Return the path of `nats-server`; Debian has it where only root's PATH leads."""
    return shutil.which("nats-server") or shutil.which("nats-server", path="/usr/sbin:/sbin")


class NatsSender(InLoop):
    """A server of its own, and nats-py's `publish`; it flushes so that the server drops nobody."""

    def __init__(self) -> None:
        super().__init__()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._server = subprocess.Popen(
            [nats_server() or "nats-server", "-a", "127.0.0.1", "-p", str(port)],
            stderr=subprocess.DEVNULL,
            preexec_fn=die_with_parent,
        )
        self.endpoint = f"nats://127.0.0.1:{port}"
        try:
            self.run(self._connect())
        except BaseException:
            self._stop_server()
            raise

    async def _connect(self) -> None:
        import nats

        deadline = time.monotonic() + READY_SECONDS
        while True:
            try:
                self._client = await nats.connect(self.endpoint, allow_reconnect=False)
            except OSError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.05)
            else:
                return

    def finish(self) -> None:
        """Do nothing: `send` has flushed."""

    def wait_ready(self, subscriber_count: int) -> None:
        time.sleep(0.5)  # a publisher of NATS does not learn who subscribes

    def send(self, values: list[Any]) -> None:
        self.run(self._send(values))

    async def _send(self, values: list[Any]) -> None:
        publish = self._client.publish
        for value in values:
            await publish("t", value)
        await self._client.flush()

    async def leave(self) -> None:
        await self._client.close()

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._stop_server()

    def _stop_server(self) -> None:
        self._server.kill()  # it keeps nothing
        self._server.wait(5)


class NatsReceiver(LoopReceiver):
    """`async for` over a subscription's messages."""

    def __init__(self, endpoint: str) -> None:
        super().__init__()
        self.run(self.open(endpoint))

    async def open(self, endpoint: str) -> None:
        import nats

        self._client = await nats.connect(endpoint, allow_reconnect=False)
        self._subscription = await self._client.subscribe(
            "t", pending_msgs_limit=-1, pending_bytes_limit=-1
        )
        await self._client.flush()
        self._messages = aiter(self._subscription.messages)

    async def take(self, count: int) -> list[Any]:
        values = []
        async for message in self._messages:
            values.append(message.data)
            if len(values) == count:
                break
        return values

    async def count_rest(self, seconds: float) -> int:
        await asyncio.sleep(seconds)
        return self._subscription.pending_msgs

    async def leave(self) -> None:
        await self._client.close()


# ------------------------------------------------------------------------------------ ping-pong


class AioPingPong:
    """One end of a ping-pong in an event loop: a sender of its own, the other's messages."""

    def __init__(self, kind: str) -> None:
        self._ring = small_load().ring
        self._sender: Any = OursSender() if kind == "ours" else ZmqSender()
        self._kind = kind
        self._receiver: Any = None

    def endpoint(self) -> str:
        return self._sender.endpoint

    def connect(self, endpoint: str) -> None:
        if self._kind == "ours":
            self._receiver = AioReceiver(endpoint)
        else:
            self._receiver = ZmqAioReceiver(endpoint)
            self._receiver.run(self._shadow())

    async def _shadow(self) -> None:
        """Send by zmq.asyncio, too."""
        import zmq.asyncio

        self._sending = zmq.asyncio.Socket.shadow(self._sender.socket.underlying)

    def wait_ready(self) -> None:
        self._sender.wait_ready(1)

    def _calls(self) -> tuple[Callable[[], Any], Callable[[Any], Any], Callable[[Any], Any]]:
        """Return what receives, what gets the value of that, and what sends, or an awaitable."""
        if self._kind == "ours":
            return self._receiver.subscriber.receive, attrgetter("value"), self._sender.send_one
        return self._receiver.socket.recv, bytes, self._sending.send

    def echo(self) -> None:
        self._receiver.run(self._echo())

    async def _echo(self) -> None:
        receive, value_of, send = self._calls()
        while (value := value_of(await receive())) != STOP:
            if (sending := send(value)) is not None:
                await sending

    def ping(self, seconds: float) -> float:
        """Return the median of half a round trip in ns."""
        return self._receiver.run(self._ping(seconds))

    async def _ping(self, seconds: float) -> float:
        receive, value_of, send = self._calls()
        now_ns, trips_ns = time.monotonic_ns, []
        end_ns = now_ns() + int(seconds * 1e9)
        for value in self._values():
            sent_ns = now_ns()
            if (sending := send(value)) is not None:
                await sending
            answer = value_of(await receive())
            trips_ns.append(now_ns() - sent_ns)
            if answer != value:
                raise TrialError(f"trip {len(trips_ns)} brought another message back")
            if sent_ns > end_ns and len(trips_ns) > 2 * PING_WARM_UP_COUNT:
                break
        if (sending := send(STOP)) is not None:
            await sending
        return statistics.median(trips_ns[PING_WARM_UP_COUNT:]) / 2

    def _values(self) -> Iterator[Any]:
        while True:
            yield from self._ring

    def close(self) -> None:
        self._sender.close()
        self._receiver.close()


OURS_FOR = Contender("p2pmsg, threads", OursSender, ForReceiver)
OURS_AIO = Contender("p2pmsg, asyncio", OursSender, AioReceiver)
OURS_MANY = Contender("p2pmsg, threads, many", OursManySender, OursManyReceiver)
OURS_AIO_MANY = Contender("p2pmsg, asyncio, many", OursManySender, AioManyReceiver)
ZMQ_AIO = Contender("zmq.asyncio", ZmqSender, ZmqAioReceiver)
ZENOH_AIO = Contender("Zenoh advanced, asyncio", ZenohSender, ZenohAioReceiver)
NATS = Contender("nats-py", NatsSender, NatsReceiver)
