"""`App`: which values a handler by key gets with `on_gap="latest"`."""

import asyncio

import pytest

import p2pmsg
from p2pmsg.app import App


def handle_at_a_gate(app, publisher, values, last, **options):
    """Return what is handled: topic, key and number; no handler ends until all values were read."""
    seen, gate = [], asyncio.Event()

    @app.subscriber(publisher.endpoint, **options)
    async def show(value, message):
        seen.append((message.topic, message.key, value))
        await gate.wait()
        if len(seen) == last:
            app.stop()

    async def main():
        task = asyncio.create_task(app.serve())
        await asyncio.to_thread(publisher.wait_for_subscribers, 1, timeout=60)
        for number, (topic, key) in enumerate(values):
            publisher.publish(topic, number, key)
            publisher.flush()
            while app.stats()[0].received < number + 1:
                await asyncio.sleep(0.001)
        gate.set()
        await task

    asyncio.run(asyncio.wait_for(main(), 20))
    return seen


@pytest.mark.parametrize("cursor", [False, True])
@pytest.mark.parametrize("concurrency", [3, 8])
def test_only_the_newest_value_of_a_busy_key_waits(make_publisher, tmp_path, concurrency, cursor):
    """All handlers are busy while 39 values come: then they get the newest one of each key."""
    publisher, app = make_publisher(), App()
    options = {"cursor": tmp_path / "cursor"} if cursor else {}
    keys = "aabc" + 13 * "abc"

    seen = handle_at_a_gate(
        app, publisher, [("t", key) for key in keys], 6,
        on_gap="latest", concurrency=concurrency, by_key=True, **options,
    )  # fmt: skip

    assert seen[:3] == [("t", "a", 0), ("t", "b", 2), ("t", "c", 3)]
    assert sorted(seen[3:]) == [("t", "a", 40), ("t", "b", 41), ("t", "c", 42)]
    (stats,) = app.stats()
    assert (stats.received, stats.handled, stats.conflated, stats.left) == (43, 6, 37, 0)
    if cursor:  # what was replaced is done
        publisher.publish("t", 43)
        with p2pmsg.Subscriber(publisher.endpoint, **options) as rest:
            assert rest.receive(timeout=60).value == 43
