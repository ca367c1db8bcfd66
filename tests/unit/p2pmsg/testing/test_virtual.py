"""The network in memory for users' tests: time, cursors, tasks, processes and whole apps."""

import asyncio
import logging
import threading

import pytest

import p2pmsg
from p2pmsg.app import DeadLetter, Event, Retry
from p2pmsg.errors import HandlerError
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


PRICES = "tcp://prices:5560"
ORDERS = "tcp://orders:5556"


def app_of(got, threads=None):
    """Return an app with a handler of each kind; it has no tests in mind."""
    app = p2pmsg.App(stop_timeout=60.0)
    late = Retry(attempts=3, delay=5.0)
    letters = DeadLetter(publish="tcp://dead:5557", topic="dead")

    @app.subscriber(ORDERS, topics=["orders"], concurrency=3, on_error=letters)
    async def on_order(order):
        if order == "broken":
            raise ValueError(order)
        got.append(("async", order))

    @app.subscriber(ORDERS, topics=["late"], on_error=late)
    def on_late(order, event: Event):
        if threads is not None:
            threads.add(threading.current_thread().name)
        if event.attempt < 3:
            raise ValueError(order)
        got.append(("late", order))

    @app.responder(PRICES, "count")
    def count(_):
        return len(got)

    @app.timer(60.0)
    def tick():
        got.append(("tick", 60.0))

    return app


def test_an_apps_handlers_retries_timers_and_dead_letters_go_by_the_networks_time():
    network, got, threads = VirtualNetwork(seed=1, lossy=0.2), [], set()
    orders = network.publisher(ORDERS)
    with network.process():
        requester = p2pmsg.Requester(PRICES)
        dead = p2pmsg.Subscriber("tcp://dead:5557", start="earliest")
    with network.running(app_of(got, threads)):
        orders.wait_for_subscribers(2)
        orders.publish("orders", 1)
        orders.publish("orders", "broken")
        orders.publish("late", 2)
        before = network.now
        network.advance(14.9)
        assert got == [("async", 1)]
        letter = dead.receive(timeout=10.0).value
        assert (letter["value"], letter["topic"]) == ("broken", "orders")
        network.advance(15.1 - (network.now - before))
        assert got == [("async", 1), ("late", 2)]
        assert requester.request("count", timeout=60.0, attempts_max=60) == 2
        network.advance(60.0)
        assert got[2:] == [("tick", 60.0)]
    assert threads == {"p2pmsg-handler-1"}
    with pytest.raises(TimeoutError):
        requester.request("count", timeout=1.0)


def test_an_app_runs_with_tasks_too_and_again_as_before_with_the_same_seed():
    async def main(network):
        got = []
        orders = network.aio_publisher(ORDERS)
        async with network.running(app_of(got)):
            await orders.wait_for_subscribers(2)
            for number in range(50):
                orders.publish("orders", number)
                await network.sleep(0.01)
            await network.sleep(70.0)
        assert sorted(got) == [*(("async", number) for number in range(50)), ("tick", 60.0)]
        return got, network.frames.sent, network.frames.lost

    runs = [asyncio.run(main(VirtualNetwork(seed=seed, lossy=0.1))) for seed in (3, 3, 4)]
    assert runs[0] == runs[1] != runs[2]


def test_what_an_app_had_not_committed_when_it_was_killed_comes_to_the_next_one():
    network, got = VirtualNetwork(seed=1), []
    orders = network.publisher(ORDERS)
    orders.publish_many("orders", [*range(9)])

    def app():
        made = p2pmsg.App()

        @made.subscriber(ORDERS, cursor="orders", start="earliest")
        async def on_order(order):
            got.append(order)
            await network.sleep(0.1)

        return made

    with network.running(app()) as process:
        assert network.wait_until(lambda: len(got) == 4)
        process.kill()
        network.advance(1.0)
    assert got == [*range(4)]
    with network.running(app(), process):
        network.advance(2.0)
    assert 0 < got[4] <= 3
    assert got[4:] == [*range(got[4], 9)]


def test_an_apps_worker_takes_jobs_and_a_job_that_fails_comes_again_later():
    network, app, done = VirtualNetwork(seed=1, lossy=0.02), p2pmsg.App(), []
    with network.process():
        pusher = p2pmsg.Pusher("tcp://jobs:5600")

    @app.worker("tcp://jobs:5600", on_error=Retry(delay=5.0))
    def on_job(number, event: Event):
        if number == 3 and event.attempt == 1:
            raise ValueError(number)
        done.append((number, network.now))

    with network.running(app):
        for number in range(5):
            pusher.push(number)
        pusher.join(timeout=60.0)
    assert sorted(number for number, _ in done) == [*range(5)]
    assert dict(done)[3] > 5.0


def test_what_ends_an_app_is_raised_at_the_end_of_the_block():
    network = VirtualNetwork(seed=1)
    app = p2pmsg.App()

    @app.timer(1.0, on_error="stop")
    def tick():
        raise ValueError("no")

    with pytest.raises(HandlerError, match="no"), network.running(app):
        network.advance(2.0)
