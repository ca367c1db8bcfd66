"""Programs of asyncio on a network in memory: its time passes while their tasks wait."""

import asyncio
import logging

import pytest

import p2pmsg
from p2pmsg.testing import VirtualNetwork
from tests.integration.aio import LOOPS
from tests.integration.aio import run as run_in


def run(main, **options):
    """Run `main(network)` on a network of its own; nothing real is waited for."""
    network = VirtualNetwork(**{"seed": 1, **options})
    result = asyncio.run(asyncio.wait_for(main(network), 60), debug=False)
    return result


async def collect(subscriber, got):
    async for message in subscriber:
        got.append(message.value)


def test_a_service_gets_each_message_once_though_frames_are_lost():
    async def main(network):
        got = []
        async with network.aio_publisher() as publisher:
            subscriber = network.aio_subscriber(publisher, topics=["t"], on_gap="raise")
            service = asyncio.create_task(collect(subscriber, got))
            await publisher.wait_for_subscribers(1)
            for number in range(200):
                publisher.publish("t", number)
                await publisher.drain()
            await network.aio_drain()
        await network.sleep(0.1)
        assert got == [*range(200)]
        assert sum(subscriber.stats().repaired.values()) > 0
        await subscriber.close()
        await service  # the iteration ends

    run(main, lossy=0.2, reordering=0.2)


def test_the_same_seed_gives_the_same_run_with_several_tasks():
    async def main(network):
        publisher = network.aio_publisher()
        taken = []

        async def take(name, subscriber):
            while len(taken) < 60:
                message = await subscriber.receive(timeout=30.0)
                taken.append((name, message.value, network.now))
                if len(taken) == 60:
                    await subscriber.close()

        subscriber = network.aio_subscriber(publisher)
        tasks = [asyncio.create_task(take(name, subscriber)) for name in "abc"]
        await publisher.wait_for_subscribers(1)
        for number in range(60):
            publisher.publish("t", number)
            if number % 7 == 0:
                await network.sleep(0.01)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert [value for _, value, _ in taken] == [*range(60)]
        assert {name for name, _, _ in taken} == {*"abc"}  # they take turns
        return taken

    assert run(main, lossy=0.2) == run(main, lossy=0.2)
    assert run(main, lossy=0.2) != run(main, lossy=0.2, seed=2)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("debug", [False, True], ids=["", "debug"])
def test_in_any_loop_and_in_debug_mode_the_same_comes(loop, debug, caplog):
    """Debug mode reports nothing: no step is slow, nothing was never awaited."""
    network = VirtualNetwork(seed=6, lossy=0.1)

    async def main():
        asyncio.get_running_loop().slow_callback_duration = 10.0  # the machine may be slow
        got = []
        async with (
            network.aio_publisher() as publisher,
            network.aio_subscriber(publisher, cursor="c", commit="message") as subscriber,
        ):
            await publisher.wait_for_subscribers(1)
            reading = asyncio.create_task(collect(subscriber, got))
            for number in range(50):
                publisher.publish("t", number)
                await network.sleep(0.001)
            await publisher.drain()
            await network.aio_drain()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(network.sleep(0.5), 0)
            await network.sleep(0.01)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            assert subscriber.stats().cursor.sessions == 1
        return got, network.now

    got, now = run_in(main, loop, debug=debug)
    assert got == [*range(50)]
    assert now < 60
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_closing_and_crashes_wake_who_waits():
    async def main(network):
        publisher = network.aio_publisher()
        subscriber = network.aio_subscriber(publisher)
        for end in (subscriber.crash, subscriber.close):
            waiting = asyncio.create_task(subscriber.receive())
            await network.sleep(0.1)
            assert not waiting.done()
            ended = end()
            if ended is not None:
                await ended
            with pytest.raises(p2pmsg.ClosedError):
                await waiting
            if end == subscriber.crash:
                subscriber.restart()
        waiting = asyncio.create_task(publisher.wait_for_subscribers(5))
        await asyncio.sleep(0)
        publisher.crash()
        with pytest.raises(p2pmsg.ClosedError, match="crashed"):
            await waiting
        publisher.restart()
        await publisher.close()
        with pytest.raises(p2pmsg.ClosedError):
            publisher.publish("t", 1)

    run(main)


def test_time_rests_where_all_wait_in_vain_and_goes_on_when_something_is_published(caplog):
    async def main(network):
        publisher = network.aio_publisher()
        subscriber = network.aio_subscriber(publisher)
        await publisher.wait_for_subscribers(1)
        waiting = asyncio.create_task(subscriber.receive())
        with caplog.at_level(logging.WARNING, "p2pmsg"):
            while "stands still" not in caplog.text:
                await asyncio.sleep(0)
        assert "time stands still: 1 tasks wait" in caplog.text
        assert 59 < network.now < 62
        publisher.publish("t", 1)
        assert (await waiting).value == 1

    run(main)


def test_a_cursor_a_relay_and_the_next_loop():
    network = VirtualNetwork(seed=3, lossy=0.1)
    publisher = network.aio_publisher()
    relay = network.relay(publisher)

    async def first():
        async with network.aio_subscriber(relay, start="earliest", cursor="c") as subscriber:
            await publisher.wait_for_subscribers(1)
            publisher.publish_many("t", [*range(10)])
            for _ in range(5):
                message = await subscriber.receive(10.0)
            await subscriber.commit(message)
            assert subscriber.stats().cursor.streams == 1

    async def second():
        async with network.aio_subscriber(relay, cursor="c", commit="message") as subscriber:
            return [(await subscriber.receive(10.0)).value for _ in range(5)]

    asyncio.run(first())
    assert asyncio.run(second()) == [5, 6, 7, 8, 9]
