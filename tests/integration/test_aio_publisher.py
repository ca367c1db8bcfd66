"""p2pmsg.aio.Publisher, with threaded subscribers opposite."""

import asyncio
import contextlib
import os
import random
import threading
from functools import partial

import pytest

from p2pmsg import LogConfig
from p2pmsg.errors import ClosedError, ConfigError, LogInUseError, SendQueueFullError
from p2pmsg.peers.loop.publisher import Publisher
from p2pmsg.peers.loop.relay import Relay
from recovery import platform
from tests.endpoints import free_port
from tests.integration import aio
from tests.integration.peers import (
    LOOPBACK,
    TOPIC,
    Collector,
    ExactCounter,
    check_exact,
    check_ledger,
    take,
)

WAIT_S = 60.0


def run(main, *, wait_s=WAIT_S, **options):
    """Run `main()` in a new event loop; fail where it hangs."""
    asyncio.run(asyncio.wait_for(main(), wait_s), **options)


async def join(publisher, make_subscriber, **options):
    """Make a threaded subscriber that has joined."""
    count = publisher.stats().subscribers
    made = await asyncio.to_thread(make_subscriber, publisher.endpoint, **options)
    await publisher.wait_for_subscribers(count + 1, WAIT_S)
    return made


@pytest.mark.parametrize("loop", aio.LOOPS)
@pytest.mark.parametrize("place", ["tcp", "ipc", "inproc", "udp"])
def test_everything_arrives(make_subscriber, tmp_path, place, loop):
    endpoint = {
        "tcp": LOOPBACK,
        "ipc": f"ipc://{tmp_path}/feed",
        "inproc": "inproc://aio-publisher",
        "udp": f"udp://239.255.77.1:{free_port()}?interface=127.0.0.1&loopback=1",
    }[place]

    async def main():
        async with Publisher(endpoint) as publisher:
            subscriber = await join(publisher, make_subscriber, on_gap="raise")
            collector = Collector(subscriber)
            for number in range(5000):
                assert publisher.publish(TOPIC, number) == number
                if number % 500 == 0:
                    await publisher.drain()
            assert publisher.publish_many(TOPIC, [*range(5000, 20_000)]) == (5000, 19_999)
            await publisher.drain()
            assert publisher.stats().unsent_frames == 0
            await asyncio.to_thread(collector.wait_for, 20_000)
            publisher.publish(TOPIC, 20_000)  # to an idle stream: at once
            await asyncio.to_thread(collector.wait_for, 20_001)
            check_exact(collector.messages)
            check_ledger(subscriber, delivered=20_001, lost=0)
        with pytest.raises(ClosedError):
            publisher.publish(TOPIC, 1)

    aio.run(main, loop, debug=True)


async def steps(count):
    for _ in range(count):
        await asyncio.sleep(0)


async def fill(publisher, value):
    """Publish until there is no space; return how many messages were accepted."""
    with pytest.raises(SendQueueFullError, match="await drain"):
        for _ in range(10**6):
            publisher.publish(TOPIC, value)
    return publisher.stats().published


def test_what_has_no_space_waits_within_bounds(make_subscriber, make_proxy):
    async def main():
        async with Publisher(LOOPBACK, stall_timeout=60.0) as publisher:
            proxy = make_proxy(publisher)
            subscriber = await asyncio.to_thread(make_subscriber, proxy.endpoint, on_gap="raise")
            await publisher.wait_for_subscribers(1, WAIT_S)
            collector = Collector(subscriber)
            proxy.stall()
            count = await fill(publisher, bytes(50_000))
            unsent = publisher.stats().unsent_frames
            assert 16 * 2**20 <= unsent * 50_000 < 20 * 2**20
            with pytest.raises(SendQueueFullError) as many:
                publisher.publish_many(TOPIC, [bytes(50_000)] * 3)
            assert many.value.__notes__ == ["0 of 3 values were accepted"]
            assert publisher.stats().published == count
            drains = [asyncio.create_task(publisher.drain()) for _ in range(3)]
            await steps(5)
            assert not any(one.done() for one in drains)
            drains[0].cancel()
            await steps(5)
            assert [one.done() for one in drains] == [True, False, False]
            proxy.resume()
            await asyncio.gather(*drains[1:])
            assert publisher.stats().unsent_frames == 0
            assert publisher.publish(TOPIC, b"after") == count
            await publisher.drain()
            await asyncio.to_thread(collector.wait_for, count + 1)
            assert [one.sequence for one in collector.messages] == list(range(count + 1))
            assert check_ledger(subscriber, lost=0).nacks_sent == 0
            assert publisher.stats().frames_shed == 0

    run(main)


def test_a_loop_that_ends_closes_it_and_says_so(memory_path, make_subscriber, caplog):
    """The subscriber has what was published, though nobody closed the publisher."""
    subscribers = []
    config = LogConfig(memory_path / "log")

    async def main():
        publisher = Publisher(LOOPBACK, name="left open", log=config)
        subscribers.append(await join(publisher, make_subscriber))
        publisher.publish_many(TOPIC, [0, 1, 2])
        kept.append(publisher)

    for start in (0, 3):  # twice in one process
        kept = []
        caplog.clear()
        asyncio.run(main())
        assert [one.getMessage() for one in caplog.records] == [
            "the publisher 'left open' was not closed before its event loop ended"
        ]
        assert [one.sequence for one in take(subscribers[-1], 3)] == [start, start + 1, start + 2]
        with pytest.raises((RuntimeError, ClosedError)):
            kept[0].publish(TOPIC, 3)
        assert kept[0].stats().published == start + 3
    run(partial(reopen, config, 6))


async def reopen(config, following):
    async with Publisher(LOOPBACK, log=config) as publisher:
        assert publisher.publish(TOPIC, "next") == following


@pytest.fixture
def slow_disk(monkeypatch):
    """Hold each fsync up that is not made in this thread, until the event that is returned."""
    here, goes_on, real = threading.get_ident(), threading.Event(), platform.sync_data

    def sync(fd):
        if threading.get_ident() != here:
            assert goes_on.wait(WAIT_S)
        real(fd)

    monkeypatch.setattr(platform, "sync_data", sync)
    return goes_on


@pytest.mark.parametrize("how", ["drain", "close"])
def test_the_loop_goes_on_while_the_disk_is_waited_for(
    slow_disk, make_subscriber, memory_path, how
):
    async def main():
        config = LogConfig(memory_path / "log", fsync="always")
        async with Publisher(LOOPBACK, log=config) as publisher:
            subscriber = await join(publisher, make_subscriber)
            for number in range(10):
                publisher.publish(TOPIC, number)
            waits = asyncio.create_task(publisher.drain() if how == "drain" else publisher.close())
            await asyncio.sleep(0.05)
            assert not waits.done()
            assert subscriber.stats().delivered == publisher.stats().messages_repaired == 0
            assert publisher.stats().log.unsynced_bytes > 0
            slow_disk.set()
            await waits
            assert publisher.stats().log.unsynced_bytes == 0
            check_exact(await asyncio.to_thread(take, subscriber, 10))

    run(main)


@pytest.mark.parametrize("kind", ["publisher", "relay"])
def test_opening_may_be_done_in_the_executor(monkeypatch, memory_path, make_subscriber, kind):
    here, threads, goes_on = threading.get_ident(), set(), threading.Event()
    real = os.fsync

    def sync(fd):
        threads.add(threading.get_ident())
        assert goes_on.wait(WAIT_S)
        real(fd)

    config = LogConfig(memory_path / "log")

    def make():
        if kind == "publisher":
            return Publisher.open(LOOPBACK, log=config)
        return Relay.open("tcp://127.0.0.1:9", LOOPBACK, log=config)

    async def main():
        monkeypatch.setattr(os, "fsync", sync)
        cancelled = asyncio.create_task(make())
        await asyncio.sleep(0.02)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        goes_on.set()
        while True:
            try:
                made = await make()
                break
            except LogInUseError:  # until the one that was cancelled has been closed
                await asyncio.sleep(0.001)
        assert threads
        assert here not in threads
        monkeypatch.undo()
        async with made:
            if kind == "publisher":
                subscriber = await join(made, make_subscriber)
                assert (made.publish(TOPIC, 0), made.publish(TOPIC, 1)) == (0, 1)
                check_exact(await asyncio.to_thread(take, subscriber, 2))
        with pytest.raises(ConfigError):
            await Publisher.open(LOOPBACK, name=5)

    run(main)


@pytest.mark.rounds(400, 100_000)
@pytest.mark.parametrize("fsync", [None, "always"])
def test_random_cancellations_cost_nothing(make_subscriber, memory_path, fsync, rounds):
    """Tasks publish and drain, and are cancelled at random; what was accepted comes once."""
    rng = random.Random(7)

    async def main():
        log = LogConfig(memory_path / "log", fsync=fsync) if fsync else None
        async with Publisher(LOOPBACK, log=log) as publisher:
            subscriber = await join(publisher, make_subscriber, on_gap="raise")
            counter = ExactCounter(subscriber)
            accepted = 0

            async def use():
                nonlocal accepted
                while True:
                    for _ in range(rng.randrange(1, 60)):
                        publisher.publish(TOPIC, accepted)
                        accepted += 1
                    await publisher.drain()
                    if rng.random() < 0.1:
                        with contextlib.suppress(TimeoutError):
                            await publisher.wait_for_subscribers(2, 0.0)
                    elif rng.random() < 0.5:  # drain itself lets others run each 5 ms only
                        await asyncio.sleep(0)

            tasks = [asyncio.create_task(use()) for _ in range(3)]
            for _ in range(rounds):
                at = rng.randrange(3)
                await steps(rng.randrange(4))
                tasks[at].cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await tasks[at]
                tasks[at] = asyncio.create_task(use())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await publisher.drain()
            assert publisher.stats().published == accepted
            await asyncio.to_thread(counter.wait_for, accepted)
            assert accepted > rounds

    run(main, wait_s=WAIT_S + rounds / 100)
