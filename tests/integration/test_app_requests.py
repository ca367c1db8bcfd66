"""`App.responder`: several topics at one endpoint."""

import asyncio

import p2pmsg
from p2pmsg.app import App


def test_more_requests_than_may_wait_are_left_to_be_asked_again(endpoint):
    app, gate, second_gate = App(), asyncio.Event(), asyncio.Event()

    @app.responder(endpoint, "slow", concurrency=1, pending_max=2)
    async def slow(value):
        await gate.wait()
        return value

    @app.responder(endpoint, "other", concurrency=1)
    async def other(value):
        await second_gate.wait()
        return value

    async def main():
        task = asyncio.create_task(app.serve())
        async with p2pmsg.aio.Requester([endpoint]) as requester:
            asked = [
                asyncio.create_task(requester.request(topic, number, timeout=6))
                for number, topic in enumerate(["slow"] * 5 + ["other"] * 3)
            ]
            while [stats.received for stats in app.stats()] != [3, 3]:
                await asyncio.sleep(0.001)
            while app.stats()[0].refused < 2:
                await asyncio.sleep(0.001)
            gate.set()
            second_gate.set()
            answers = await asyncio.gather(*asked)
        app.stop()
        await task
        return answers

    assert asyncio.run(asyncio.wait_for(main(), 60)) == [*range(8)]
    assert [(stats.received, stats.handled) for stats in app.stats()] == [(5, 5), (3, 3)]
    assert app.stats()[1].refused == 0
