"""Waiters, Pace: who is woken, and who lets others run."""

import asyncio
import random
import threading

import pytest

from p2pmsg.aio import waiting
from p2pmsg.aio.waiting import Pace, Waiters, in_executor


async def drain(rounds: int = 3) -> None:
    for _ in range(rounds):
        await asyncio.sleep(0)


def test_as_many_are_woken_as_are_offered_and_the_first_ones_first() -> None:
    async def run() -> None:
        waiters = Waiters(asyncio.get_running_loop())
        woken: list[int] = []

        async def wait(number: int) -> None:
            assert await waiters.wait(None)
            woken.append(number)

        tasks = [asyncio.create_task(wait(number)) for number in range(4)]
        await drain()
        waiters.offer(2)
        waiters.offer(2)  # they have not looked yet: nobody else is woken
        assert len(waiters) == 2
        await drain()
        assert woken == [0, 1]
        waiters.offer(1)
        await drain()
        assert woken == [0, 1, 2]
        waiters.close()
        await asyncio.gather(*tasks)
        assert await waiters.wait(None)  # nobody waits any more

    asyncio.run(run())


def test_who_is_cancelled_after_it_was_woken_wakes_the_next_one() -> None:
    async def run() -> None:
        waiters = Waiters(asyncio.get_running_loop())
        first, second = (asyncio.create_task(waiters.wait(None)) for _ in range(2))
        await drain()
        waiters.offer(1)
        first.cancel()
        await drain()
        assert first.cancelled()
        assert second.done()
        assert second.result() is True

    asyncio.run(run())


def test_none_is_forgotten_whatever_is_cancelled_and_when() -> None:
    """Each offer is one thing to take; tasks are cancelled at random steps."""
    rng = random.Random(7)

    async def run() -> None:
        waiters = Waiters(asyncio.get_running_loop())
        there = taken = 0

        async def take() -> None:
            nonlocal there, taken
            while not there:
                await waiters.wait(None)
            there -= 1
            taken += 1

        tasks: set[asyncio.Task[None]] = set()
        for _ in range(3000):
            task = asyncio.create_task(take())
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            if rng.random() < 0.4:
                there += 1
                waiters.offer(there)
            if rng.random() < 0.5 and tasks:
                rng.choice([*tasks]).cancel()
            await drain(rng.randrange(3))
        await drain()
        assert there == 0 or not tasks  # who waits, waits for nothing that is there
        assert taken > 500
        assert len(waiters) == len(tasks)
        for task in tasks:
            task.cancel()
        await drain()
        assert len(waiters) == 0

    asyncio.run(run())


def test_tasks_that_never_wait_share_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = 0
    monkeypatch.setattr(waiting, "_monotonic_ns", lambda: now_ns)

    async def run() -> list[int]:
        nonlocal now_ns
        pace, spent = Pace(), [0, 0, 0]

        async def work(number: int) -> None:
            nonlocal now_ns
            while sum(spent) < 300_000_000:
                if pace.is_over():
                    await pace.rest()
                now_ns += 10_000
                spent[number] += 10_000

        await asyncio.gather(*map(work, range(3)))
        return spent

    spent = asyncio.run(run())
    assert max(spent) < 1.5 * min(spent)


def test_what_an_executor_made_for_a_cancelled_task_is_undone() -> None:
    async def run() -> None:
        gate, undone = threading.Event(), []

        def make() -> str:
            gate.wait(20)
            return "made"

        task = asyncio.create_task(in_executor(make, undone.append))
        await asyncio.sleep(0.01)
        task.cancel()
        gate.set()
        await asyncio.wait([task])
        assert task.cancelled()
        while not undone:
            await asyncio.sleep(0.001)
        assert undone == ["made"]

        assert await in_executor(lambda: "kept", undone.append) == "kept"
        assert undone == ["made"]

        def fail() -> None:
            raise KeyError("no")

        with pytest.raises(KeyError):
            await in_executor(fail, undone.append)

    asyncio.run(run())
