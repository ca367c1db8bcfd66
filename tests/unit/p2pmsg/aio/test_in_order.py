"""Calls in a loop's executor, one after the other."""

import asyncio
import random
import time
from functools import partial

import pytest

from p2pmsg.aio.in_order import InOrder


def test_calls_are_made_in_order_though_there_are_many_threads():
    made, running = [], []

    def call(number):
        running.append(number)
        time.sleep(random.random() / 1000)
        assert running == [number]
        running.clear()
        made.append(number)
        return number

    async def main():
        calls = InOrder(asyncio.get_running_loop())
        futures = [calls.call(partial(call, number)) for number in range(50)]
        assert await asyncio.gather(*futures) == list(range(50))

    asyncio.run(main())
    assert made == list(range(50))


def test_an_error_is_the_callers_and_the_next_call_is_made():
    async def main():
        calls = InOrder(asyncio.get_running_loop())
        failed, good = calls.call(lambda: 1 / 0), calls.call(lambda: "good")
        with pytest.raises(ZeroDivisionError):
            await failed
        assert await good == "good"

    asyncio.run(main())


def test_where_the_executor_has_ended_it_is_called_at_once():
    async def main():
        loop = asyncio.get_running_loop()
        calls = InOrder(loop)
        await calls.call(int)
        await loop.shutdown_default_executor()
        assert calls.call(lambda: "here").result() == "here"
        assert isinstance(calls.call(lambda: 1 / 0).exception(), ZeroDivisionError)

    asyncio.run(main())
