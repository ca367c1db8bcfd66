"""`HandlerStats`: each event that came is counted once, however the app ends."""

import asyncio

import pytest

import p2pmsg
from p2pmsg.app import App, Retry
from p2pmsg.errors import HandlerError


def uncounted(one):
    """Return by how many more events came than were counted."""
    counted = one.handled + one.given_up + one.left + one.cancelled + one.conflated + one.running
    return one.received - counted


ENDINGS = {"stop": type(None), "cancel": asyncio.CancelledError, "failure": HandlerError}


@pytest.mark.parametrize("ending", ENDINGS)
def test_each_event_is_counted_once(make_publisher, make_pusher, endpoint, tmp_path, ending):
    publisher, pusher, app = make_publisher(), make_pusher(), App(stop_timeout=10.0)
    publisher.publish_many("t", [*range(200)], keys=[f"k{number % 5}" for number in range(200)])
    for number in range(50):
        pusher.push(number)

    async def handle(value):
        await asyncio.sleep(0.001)
        return plain(value)

    def plain(value):
        if value % 10 == 3:
            raise ValueError(value)
        return value

    options = {"start": "earliest", "on_error": Retry(attempts=2, delay=0.001)}
    by_key = {"concurrency": 4, "by_key": True}
    app.subscriber(publisher.endpoint, **options)(handle)
    app.subscriber(publisher.endpoint, cursor=tmp_path / "cursor", **by_key, **options)(handle)
    app.subscriber(publisher.endpoint, start="earliest", on_gap="latest", **by_key)(handle)
    app.subscriber(publisher.endpoint, concurrency=2, **options)(plain)
    app.worker(pusher.endpoint, concurrency=2)(handle)
    app.responder(endpoint, "ask", concurrency=2, pending_max=9)(handle)
    app.responder(endpoint, "plain", concurrency=2)(plain)

    @app.timer(0.001, on_error="stop")
    async def fail():
        if ending == "failure" and all(one.received for one in app.stats()):
            raise RuntimeError("it is to end")

    async def ask(requester, topic):
        asked = [requester.request(topic, number, timeout=60) for number in range(30)]
        await asyncio.gather(*asked, return_exceptions=True)

    async def main():
        task = asyncio.create_task(app.serve())
        async with p2pmsg.aio.Requester([endpoint]) as requester:
            asking = [asyncio.create_task(ask(requester, topic)) for topic in ("ask", "plain")]
            while not all(one.received for one in app.stats()):
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.02)
            if ending == "cancel":
                task.cancel()
            elif ending == "stop":
                app.stop()
            (ended,) = await asyncio.gather(task, return_exceptions=True)
            for each in asking:
                each.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
            return ended

    assert type(asyncio.run(asyncio.wait_for(main(), 60))) is ENDINGS[ending]
    assert [(uncounted(one), one.running) for one in app.stats()] == [(0, 0)] * 8
