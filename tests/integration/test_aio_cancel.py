"""A cancelled call has taken a message and handed it on, or has left it: at every step."""

import asyncio
from functools import partial
from random import Random

import pytest

from p2pmsg.errors import ClosedError
from tests.integration.aio import LOOPS, Strike, connected, run
from tests.integration.peers import TOPIC

WAYS = {}


def way(function):
    WAYS[function.__name__] = function
    return function


@way
async def receive(subscriber, iterators, got):
    got.append((await subscriber.receive()).sequence)


@way
async def receive_many(subscriber, iterators, got):
    got += [message.sequence for message in await subscriber.receive_many(3)]


@way
async def iterate(subscriber, iterators, got):
    got.append((await anext(iterators[0])).sequence)


@way
async def new_iterator(subscriber, iterators, got):
    async for message in subscriber:
        got.append(message.sequence)
        break


@way
async def batches(subscriber, iterators, got):
    got += [message.sequence for message in await anext(iterators[1])]


@way
async def timeout(subscriber, iterators, got):
    async with asyncio.timeout(0.0002):
        got.append((await subscriber.receive()).sequence)


@way
async def own_timeout(subscriber, iterators, got):
    got.append((await subscriber.receive(timeout=0.0002)).sequence)


@way
async def wait_for(subscriber, iterators, got):
    got.append((await asyncio.wait_for(subscriber.receive(), 0.0002)).sequence)


@way
async def wait_for_next(subscriber, iterators, got):
    got.append((await asyncio.wait_for(anext(iterators[0]), 0.0002)).sequence)


@way
async def task_group(subscriber, iterators, got):
    tasks = []
    try:
        async with asyncio.TaskGroup() as group:
            tasks += [group.create_task(subscriber.receive(timeout=60)) for _ in range(2)]
    finally:  # what a task returned is its group's to see to
        done = [task for task in tasks if task.done() and not task.cancelled()]
        got += sorted(task.result().sequence for task in done if task.exception() is None)


def publish(publisher, count):
    if count:
        publisher.publish_many(TOPIC, [None] * count)
        publisher.flush()


async def strike_once(subscriber, publisher, iterators, how, number, before, after):
    """Cancel at a step; return what was received, and whether a cancellation struck.

    Of the messages some are published before the task begins, the others while it waits.
    """
    got = []
    publish(publisher, before)
    task = asyncio.create_task(WAYS[how](subscriber, iterators, got))
    with Strike(task, number) as strike:
        asyncio.get_running_loop().call_later(0.0001, publish, publisher, after)
        await asyncio.wait([task], timeout=0.05)
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled() and task.exception() is not None:
        assert isinstance(task.exception(), TimeoutError)
    return got, strike.struck


async def take_rest(subscriber, received, published):
    while len(received) < published:
        batch = await subscriber.receive_many(timeout=60)
        received += [message.sequence for message in batch]


@pytest.mark.parametrize("how", WAYS)
def test_a_cancellation_at_every_step_neither_loses_nor_doubles(how):
    async def main():
        received, published, strikes = [], 0, 0
        async with connected() as (publisher, subscriber):
            iterators = [aiter(subscriber), subscriber.batches(5)]
            for number in range(1, 13):
                for before, after in ((0, 3), (2, 1), (5, 0), (0, 600)):
                    got, struck = await strike_once(
                        subscriber, publisher, iterators, how, number, before, after
                    )
                    received += got
                    published += before + after
                    strikes += struck
                    await take_rest(subscriber, received, published)
            assert received == list(range(published))
            assert strikes > 4
            stats = subscriber.stats()
            assert (stats.delivered, stats.lost, stats.outstanding) == (published, 0, 0)

    run(main)


@pytest.mark.rounds(500, 100_000)
def test_random_cancellations_neither_lose_nor_double(rounds):
    random = Random(20)

    async def main():
        received, published, strikes = [], 0, 0
        async with connected() as (publisher, subscriber):
            iterators = [aiter(subscriber), subscriber.batches(5)]
            while strikes < rounds:
                how = random.choice([*WAYS])
                before, after = random.choice([(0, 2), (2, 0), (1, 1), (3, 2), (0, 40)])
                got, struck = await strike_once(
                    subscriber, publisher, iterators, how, random.randint(1, 8), before, after
                )
                received += got
                published += before + after
                strikes += struck
                if published - len(received) > 100 or random.random() < 0.1:
                    await take_rest(subscriber, received, published)
            await take_rest(subscriber, received, published)
        assert received == list(range(published))

    run(main)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.rounds(150, 20_000)
def test_tasks_that_wait_together_and_are_cancelled_share_all_messages(loop, rounds):
    random = Random(21)

    async def take(subscriber, got, how):
        before = -1
        while len(got) > before:  # an iteration ends where the subscriber is closed
            before = len(got)
            await WAYS[how](subscriber, [aiter(subscriber), subscriber.batches(2)], got)

    async def main():
        got, published = [], 0
        async with connected() as (publisher, subscriber):
            hows = ["receive", "receive_many", "iterate", "batches", "new_iterator"]
            start = partial(take, subscriber, got)
            tasks = [asyncio.create_task(start(how)) for how in hows]
            for _ in range(rounds):
                publisher.publish_many(TOPIC, [None] * random.randint(1, 9))
                published = publisher.stats().published
                publisher.flush()
                for _ in range(random.randint(0, 4)):
                    await asyncio.sleep(random.choice([0, 0, 0.0001]))
                which = random.randrange(len(tasks))
                tasks[which].cancel()
                tasks[which] = asyncio.create_task(start(hows[which]))
            async with asyncio.timeout(60):
                while len(got) < published:
                    await asyncio.sleep(0.001)
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert sorted(got) == list(range(published))
        # Who receives gets an error; iterations end.
        assert {type(one) for one in ended} <= {ClosedError, StopAsyncIteration, type(None)}, ended

    run(main, loop)
