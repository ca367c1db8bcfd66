"""Peers of asyncio for tests of threaded ones: each runs in a loop of its own, in a thread.

A module that imports these fixtures runs its tests with them.
"""

import asyncio
import threading

import pytest

from p2pmsg.errors import SendQueueFullError
from p2pmsg.peers.loop.publisher import Publisher
from p2pmsg.peers.loop.relay import Relay
from tests.integration import test_faults
from tests.integration.peers import LOOPBACK

_WAIT_S = 60.0


class Loop:
    """An event loop that runs in a thread until `close`."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, make, *arguments, **options):
        """Run `make(…)` in the loop, and wait for what it returns if that is to be awaited."""

        async def call():
            made = make(*arguments, **options)
            return await made if asyncio.iscoroutine(made) else made

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(_WAIT_S)

    def close(self):
        async def end():
            await self.loop.shutdown_asyncgens()
            await self.loop.shutdown_default_executor()

        self.run(end)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(_WAIT_S)
        self.loop.close()


class Looped:
    """Calls a peer of asyncio from a thread as if it were a threaded one."""

    def __init__(self, kind, *arguments, **options):
        self._loop = Loop()
        try:
            self.peer = self._loop.run(kind, *arguments, **options)
        except BaseException:
            self._loop.close()
            raise

    def __getattr__(self, name):
        found = getattr(self.peer, name)
        if not callable(found) or name == "stats":  # which any thread may call
            return found
        return lambda *arguments, **options: self._loop.run(found, *arguments, **options)

    def end(self, *closing):
        """Close it, within 0 s or so many, and its loop."""
        if not self._loop.loop.is_closed():
            try:
                self.close(*closing or (0.0,))
            finally:
                self._loop.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end(1.0)


class LoopedPublisher(Looped):
    """A publisher that drains where a threaded one would wait."""

    def publish(self, *arguments, **options):
        return self._loop.run(self._publish, self.peer.publish, *arguments, **options)

    def publish_many(self, topic, values, *columns):
        async def take():
            return await self._publish(self.peer.publish_many, topic, [*values], *columns)

        return self._loop.run(take)

    def publish_all(self, topic, values, **options):
        """Publish each of the values by itself, in one task, and in many frames."""

        async def take():
            for at, value in enumerate(values):
                await self._publish(self.peer.publish, topic, value, **options)
                if at % 40 == 0:
                    self.peer.flush()
                    await self.peer.drain()

        self._loop.run(take)

    async def _publish(self, call, *arguments, **options):
        try:
            return call(*arguments, **options)
        except SendQueueFullError:
            if self.peer.config.on_full == "raise":
                raise
            await self.peer.drain()
            return call(*arguments, **options)


@pytest.fixture
def make_publisher(opened, monkeypatch):
    """Make publishers of asyncio, and have the tests of `test_faults` publish in one task."""

    def publish(publisher, start, stop, **options):
        publisher.publish_all(test_faults.TOPIC, range(start, stop), **options)

    monkeypatch.setattr(test_faults, "publish_paced", publish)
    monkeypatch.setattr(
        test_faults, "publish", lambda *given: publish(*given, headers=test_faults.PADDING)
    )

    def make(endpoint=LOOPBACK, **options):
        made = LoopedPublisher(Publisher, endpoint, **options)
        opened.callback(made.end)
        return made

    return make


@pytest.fixture
def make_relay(opened):
    """Make relays of asyncio."""

    def make(upstreams, endpoint=LOOPBACK, **options):
        made = Looped(Relay, upstreams, endpoint, **options)
        opened.callback(made.end)
        return made

    return make


@pytest.fixture
def make_subscriber(make_subscriber):
    """Make a subscriber that waits until it has joined publishers of asyncio, too."""

    def make(endpoints, *, joins=None, **options):
        joins = [joins] if isinstance(joins, Looped) else joins
        return make_subscriber(endpoints, joins=joins, **options)

    return make
