"""`DeadLetter` of an `App`: what is kept of large messages and jobs, read with default limits."""

import asyncio

import pytest

import p2pmsg
from p2pmsg.app import App, DeadLetter

LARGEST = 1024 * 1024


def keep_letters(add, place, count, text="no good"):
    """Run an app whose handler fails at each value; return the dead letters that a reader got."""
    app, letters = App(), {}  # by sequence: a job may come again

    @add(app)
    async def on(value):
        raise ValueError(text)

    async def read():
        if place.publish is not None:
            async with p2pmsg.aio.Subscriber(place.publish, start="earliest") as subscriber:
                while len(letters) < count:
                    letter = (await subscriber.receive()).value
                    letters[letter["sequence"]] = letter
        else:
            async with p2pmsg.aio.Puller(place.push) as puller:
                while len(letters) < count:
                    job = await puller.receive()
                    letters[job.value["sequence"]] = job.value
                    job.ack()
        app.stop()

    async def main():
        reading = asyncio.create_task(read())
        await app.serve()
        await reading

    asyncio.run(asyncio.wait_for(main(), 60))
    assert app.stats()[0].dead_lettered >= count
    return [letters[sequence] for sequence in range(count)]


def place_of(how, endpoint, tmp_path, *, has_log):
    return DeadLetter(**{how: endpoint}, log=tmp_path / "dead" if has_log else None)


@pytest.mark.parametrize("has_log", [False, True])
@pytest.mark.parametrize("how", ["publish", "push"])
def test_the_largest_message_is_kept(make_publisher, endpoint, tmp_path, how, has_log):
    publisher = make_publisher()
    value = b"x" * (LARGEST - 10_100)
    headers = {"a": "y" * 10_000}
    publisher.publish("t", value, "K" * 50, headers=headers)
    publisher.publish("t", b"next")
    place = place_of(how, endpoint, tmp_path, has_log=has_log)

    first, second = keep_letters(
        lambda app: app.subscriber(publisher.endpoint, start="earliest", on_error=place), place, 2
    )

    assert (first["value"], first["headers"], first["key"]) == (value, headers, "K" * 50)
    assert first["error"] == "ValueError: no good"
    assert second["value"] == b"next"
