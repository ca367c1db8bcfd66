"""`App`: which values a handler by key gets with `on_gap="latest"`."""

import asyncio

import pytest

import p2pmsg
from p2pmsg.app import App


@pytest.mark.parametrize("cursor", [False, True])
@pytest.mark.parametrize("concurrency", [3, 8])
def test_only_the_newest_value_of_a_busy_key_waits(make_publisher, tmp_path, concurrency, cursor):
    """All handlers are busy while 39 values come: then they get the newest one of each key."""
    publisher, app, seen, gate = make_publisher(), App(), [], asyncio.Event()
    options = {"cursor": tmp_path / "cursor"} if cursor else {}

    @app.subscriber(
        publisher.endpoint, on_gap="latest", concurrency=concurrency, by_key=True, **options
    )
    async def show(value, message):
        seen.append((message.key, value))
        await gate.wait()
        if len(seen) == 6:
            app.stop()

    async def main():
        task = asyncio.create_task(app.serve())
        await asyncio.to_thread(publisher.wait_for_subscribers, 1, timeout=60)
        for number, key in enumerate("aabc" + 13 * "abc"):
            publisher.publish("t", number, key)
            publisher.flush()
            while app.stats()[0].received < number + 1:
                await asyncio.sleep(0.001)
        gate.set()
        await task

    asyncio.run(asyncio.wait_for(main(), 60))
    assert seen[:3] == [("a", 0), ("b", 2), ("c", 3)]
    assert sorted(seen[3:]) == [("a", 40), ("b", 41), ("c", 42)]
    (stats,) = app.stats()
    assert (stats.received, stats.handled, stats.conflated, stats.left) == (43, 6, 37, 0)
    if cursor:  # what was replaced is done
        publisher.publish("t", 43)
        with p2pmsg.Subscriber(publisher.endpoint, **options) as rest:
            assert rest.receive(timeout=60).value == 43
