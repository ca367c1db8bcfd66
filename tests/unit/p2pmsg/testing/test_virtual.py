"""A network in memory for users' tests: it is used as real peers are, and time stands still."""

import asyncio
import logging

import pytest

import p2pmsg
from p2pmsg.testing import VirtualNetwork
from tests.integration.aio import LOOPS
from tests.integration.aio import run as run_in


@pytest.fixture
def network():
    made = VirtualNetwork(seed=1)
    return made


def joined(network, **options):
    publisher = network.publisher()
    subscriber = network.subscriber(publisher, **options)
    publisher.wait_for_subscribers(1)
    return publisher, subscriber


def values(messages):
    return [message.value for message in messages]


def test_no_time_passes_by_itself(network):
    publisher, subscriber = joined(network)
    before = network.now

    publisher.publish("t", 1)

    assert [*subscriber] == []
    assert network.now == before


def test_receive_lets_as_much_time_pass_as_it_needs(network):
    publisher, subscriber = joined(network)
    before = network.now
    publisher.publish("t", 1)

    assert subscriber.receive(timeout=5.0).value == 1
    assert before < network.now < before + 0.1
    with pytest.raises(TimeoutError, match=r"within 5\.0 s"):
        subscriber.receive(timeout=5.0)
    assert network.now > before + 5


def test_values_have_their_type_and_what_does_not_fit_is_said(network):
    wrong = []
    publisher, subscriber = joined(network, type=int, on_invalid=wrong.append)
    publisher.publish_many("t", [0, "one", 2])
    network.drain()

    assert values(subscriber) == [0, 2]
    assert [error.item.sequence for error in wrong] == [1]


@pytest.mark.parametrize("seed", range(5))
def test_losses_are_repaired_in_order(seed):
    network = VirtualNetwork(seed, lossy=0.2, reordering=0.2, duplication=0.1)
    publisher, subscriber = joined(network, on_gap="raise")
    got = []
    for number in range(300):
        publisher.publish("t", number)
        network.advance(0.005)
        got += values(subscriber)
    network.drain()
    got += values(subscriber)

    assert got == [*range(300)]
    assert subscriber.stats().lost == 0
    assert sum(subscriber.stats().repaired.values()) > 0


def test_what_a_partition_holds_up_is_repaired(network):
    publisher, subscriber = joined(network, on_gap="raise")
    network.partition(publisher, subscriber, 0.5)
    publisher.publish("t", 0)
    network.advance(0.4)
    assert [*subscriber] == []
    network.drain()

    assert values(subscriber) == [0]


def test_a_crash_begins_a_new_session_and_a_log_keeps_the_old_one():
    for log in (False, True):
        network = VirtualNetwork(seed=4, log=log)
        publisher, subscriber = joined(network)
        session = publisher.session
        publisher.publish("t", 1)
        network.advance(1.0)
        publisher.crash()
        with pytest.raises(p2pmsg.ClosedError, match="crashed"):
            publisher.publish("t", 2)
        network.advance(1.0)
        publisher.restart()
        publisher.wait_for_subscribers(1)
        publisher.publish("t", 3)
        network.advance(5.0)

        assert values(subscriber) == [1, 3]
        assert (publisher.session == session) == log


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"seed": -1}, "seed"),
        ({"seed": 2**32}, "seed"),
        ({"lossy": 1.5}, "lossy"),
        ({"reordering": -1}, "reordering"),
        ({"duplication": "x"}, "duplication"),
        ({"delay": (2.0, 1.0)}, "delay"),
        ({"repair_timeout": 0}, "repair_timeout"),
    ],
)
def test_a_wrong_argument_is_named(options, field):
    with pytest.raises(p2pmsg.ConfigError) as refused:
        VirtualNetwork(**options)

    assert refused.value.field == field


@pytest.mark.parametrize("log", [True, False])
def test_a_relay_with_a_log_has_it_again_after_a_crash(log):
    network = VirtualNetwork(seed=8, lossy=0.1)
    publisher = network.publisher()
    relay = network.relay(publisher, log=log)
    publisher.wait_for_subscribers(1)
    for number in range(20):
        publisher.publish("t", number)
        network.advance(0.01)
    network.drain()
    publisher.crash()
    relay.crash()
    relay.restart()
    subscriber = network.subscriber(relay, start="earliest")
    network.advance(5.0)

    assert values(subscriber) == ([*range(20)] if log else [])


def test_with_a_cursor_the_next_one_goes_on_after_the_last_commit(network):
    publisher = network.publisher()
    with network.subscriber(publisher, cursor="c", on_gap="raise") as first:
        publisher.wait_for_subscribers(1)
        for number in range(6):
            publisher.publish("t", number)
        network.advance(1.0)
        got = [first.receive() for _ in range(4)]
        before = first.stats().cursor
        assert (before.path, before.sessions, before.streams) == ("c", 1, 0)
        first.commit(got[1])
        after = first.stats().cursor
        assert (after.commits, after.streams) == (before.commits + 1, 1)
        assert [ledger.committed for ledger in first.stats().streams] == [2]
        with pytest.raises(p2pmsg.errors.CursorError, match="c"):
            network.subscriber(publisher, cursor="c")
        network.advance(1.0)  # nothing is committed by itself
        first.crash()
        with pytest.raises(p2pmsg.ClosedError, match="crashed"):
            first.receive()
        first.restart()
        network.advance(1.0)
        assert first.receive().value == 2  # 2 and 3 were not committed
        assert first.receive().value == 3
        first.commit()
    publisher.publish("t", 6)  # while nobody is there
    network.advance(1.0)
    second = network.subscriber(publisher, cursor="c", on_gap="raise")
    network.drain()

    assert values(second) == [4, 5, 6]
    other = network.publisher()
    third = network.subscriber(other)
    other.wait_for_subscribers(1)
    other.publish("t", 0)
    with pytest.raises(p2pmsg.ConfigError, match="message"):
        second.commit(third.receive(timeout=5.0))
    with pytest.raises(p2pmsg.ConfigError, match="cursor"):
        network.subscriber(publisher).commit()
    assert (third.stats().cursor, second.stats().cursor.streams) == (None, 1)


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
