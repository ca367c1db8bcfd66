"""`DeadLetter` of an `App`: what is kept of large messages and jobs, read with default limits."""

import asyncio

import pytest

import p2pmsg
from p2pmsg.app import App, DeadLetter

LARGEST = 1024 * 1024


@pytest.mark.parametrize("how", ["publish", "push"])
def test_the_largest_message_is_kept(make_publisher, endpoint, tmp_path, how):
    publisher = make_publisher()
    value, headers = b"x" * (LARGEST - 10_100), {"a": "y" * 10_000}
    publisher.publish("t", value, "K" * 50, headers=headers)
    publisher.publish("t", b"next")
    place = DeadLetter(**{how: endpoint}, log=tmp_path / "dead" if how == "push" else None)
    app, letters = App(), {}  # by sequence: one may come again

    @app.subscriber(publisher.endpoint, start="earliest", on_error=place)
    async def on(value):
        raise ValueError("no good")

    async def read():
        if how == "publish":
            async with p2pmsg.aio.Subscriber(endpoint, start="earliest") as subscriber:
                while len(letters) < 2:
                    letter = (await subscriber.receive()).value
                    letters[letter["sequence"]] = letter
        else:
            async with p2pmsg.aio.Puller(endpoint) as puller:
                while len(letters) < 2:
                    job = await puller.receive()
                    letters[job.value["sequence"]] = job.value
                    job.ack()
        app.stop()

    async def main():
        reading = asyncio.create_task(read())
        await app.serve()
        await reading

    asyncio.run(asyncio.wait_for(main(), 60))
    assert app.stats()[0].dead_lettered >= 2
    first = letters[0]
    assert (first["value"], first["headers"], first["key"]) == (value, headers, "K" * 50)
    assert (first["topic"], first["error"], first["attempts"]) == ("t", "ValueError: no good", 1)
    assert first["handler"].endswith("on")
    assert letters[1]["value"] == b"next"
