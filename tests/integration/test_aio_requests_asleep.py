"""Requester and responder of asyncio take no turns while there is nothing to do."""

import asyncio

import pytest

from p2pmsg.aio import Requester, Responder
from p2pmsg.peers.requester import RequesterPeer
from p2pmsg.peers.responder import ResponderPeer
from tests.integration.aio import count_turns, run
from tests.integration.aio_peers import eventually
from tests.integration.peers import LOOPBACK


@pytest.mark.parametrize("count", [1, 2, 20])
def test_a_requester_sleeps_while_its_requests_are_worked_on(count, monkeypatch):
    turns = count_turns(monkeypatch, RequesterPeer)

    async def main():
        begun, done = 0, asyncio.Event()

        async def work(number):
            nonlocal begun
            begun += 1
            await done.wait()
            return number

        async with Responder(LOOPBACK, {"work": work}) as responder:
            async with Requester(responder.endpoint) as asks:
                asked = [
                    asyncio.create_task(asks.request("work", n, timeout=60)) for n in range(count)
                ]
                await eventually(lambda: begun == count)
                await asyncio.sleep(0.05)
                before = len(turns)
                await asyncio.sleep(0.3)
                assert len(turns) - before < 30  # without a pause there were thousands
                done.set()
                assert await asyncio.gather(*asked) == [*range(count)]

    run(main)


def test_a_responder_sleeps_while_it_closes_and_its_handlers_work(monkeypatch):
    turns = count_turns(monkeypatch, ResponderPeer)

    async def main():
        begun, done = asyncio.Event(), asyncio.Event()

        async def work(number):
            begun.set()
            await done.wait()
            return number

        async with Responder(LOOPBACK, {"work": work}) as responder:
            async with Requester(responder.endpoint) as asks:
                asked = asyncio.create_task(asks.request("work", 1, timeout=60))
                await begun.wait()
                closing = asyncio.create_task(responder.close())
                await asyncio.sleep(0)
                with pytest.raises(TimeoutError):  # it comes while the other one is at work
                    await asks.request("work", 2, timeout=0.3, attempts_max=1)
                assert len(turns) < 100  # without a pause there were thousands
                done.set()
                assert await asked == 1
                await closing

    run(main)
