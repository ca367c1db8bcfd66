"""`HandlerStats`: each event that came is counted once, however the app ends."""

import asyncio
import time

import pytest

import p2pmsg
from p2pmsg.app import App, Retry
from p2pmsg.errors import HandlerError


def uncounted(app):
    """Return of each handler by how many more events came than were counted."""
    return {
        f"{one.kind} {one.name}": one.received
        - (one.handled + one.given_up + one.left + one.cancelled + one.conflated + one.running)
        for one in app.stats()
    }


def register(app, places, cursor, do, plain):
    """Register a handler of each kind, async and plain."""
    messages, jobs, requests = places
    options = {"start": "earliest", "on_error": Retry(attempts=2, delay=0.001)}

    @app.subscriber(messages, **options)
    async def on_message(value):
        await do(value)

    @app.subscriber(messages, cursor=cursor, concurrency=4, by_key=True, **options)
    async def by_key(value):
        await do(value)

    @app.subscriber(messages, start="earliest", on_gap="latest", concurrency=4, by_key=True)
    async def on_newest(value):
        await do(value)

    @app.subscriber(messages, concurrency=2, **options)
    def on_plain(value):
        plain(value)

    @app.worker(jobs, concurrency=2)
    async def on_job(value):
        await do(value)

    @app.responder(requests, "ask", concurrency=2, pending_max=9)
    async def on_request(value):
        return await do(value)

    @app.responder(requests, "plain", concurrency=2)
    def on_plain_request(value):
        return plain(value)

    @app.timer(0.001)
    async def on_tick():
        await do(7)


ENDINGS = ["stop", "stop twice", "cancel", "failure"]


@pytest.mark.internal
@pytest.mark.parametrize("ending", ENDINGS)
def test_each_event_is_counted_once(make_publisher, make_pusher, endpoint, tmp_path, ending):
    publisher, pusher = make_publisher(), make_pusher()
    publisher.publish_many("t", [*range(200)], keys=[f"k{number % 5}" for number in range(200)])
    for number in range(50):
        pusher.push(number)
    app = App(stop_timeout=10.0)
    is_slow = ending == "stop twice"
    released = []

    async def do(value):
        if value % 10 == 3:
            raise ValueError(value)
        await asyncio.sleep(1000 if is_slow and value % 10 == 5 else 0.001)

    def plain(value):
        if value % 10 == 3:
            raise ValueError(value)
        while is_slow and value % 10 == 5 and not released:
            time.sleep(0.001)

    places = publisher.endpoint, pusher.endpoint, endpoint
    register(app, places, tmp_path / "cursor", do, plain)

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
            elif ending != "failure":
                app.stop()
            if ending == "stop twice":
                app._run.hurry_from_signal()
            ended = await asyncio.gather(task, return_exceptions=True)
            at_end = uncounted(app), [one.running for one in app.stats()]
            released.append(True)
            for each in asking:
                each.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
            return *ended, *at_end

    error, missing, running = asyncio.run(asyncio.wait_for(main(), 60))

    expected = {"stop": type(None), "cancel": asyncio.CancelledError, "failure": HandlerError}
    assert type(error) is expected.get(ending, TimeoutError)
    assert missing == dict.fromkeys(missing, 0)
    assert not any(running)
