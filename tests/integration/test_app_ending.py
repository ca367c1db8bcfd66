"""`App`: what is handled when it stops, what comes again, and what its counters say."""

import asyncio
import signal
import threading
from collections import Counter

import pytest

from p2pmsg.app import App


def serve(app, timeout=60.0):
    asyncio.run(asyncio.wait_for(app.serve(), timeout))


def test_after_graceful_stops_nothing_comes_twice_by_key(make_publisher, tmp_path):
    publisher = make_publisher()
    publisher.publish_many("t", [*range(200)], keys=[f"k{number % 7}" for number in range(200)])
    seen, orders = Counter(), {}
    while len(seen) < 200:
        app = App()

        @app.subscriber(
            publisher.endpoint, start="earliest", cursor=tmp_path / "cursor", concurrency=8,
            by_key=True,
        )  # fmt: skip
        async def on(value, message, app: App):
            await asyncio.sleep(0.0005 * (value % 5))
            seen[value] += 1
            orders.setdefault(message.key, []).append(value)
            if seen.total() % 30 == 0 or value == 199:
                app.stop()

        serve(app)

    assert set(seen.values()) == {1}
    assert all(values == sorted(values) for values in orders.values())


def test_after_half_of_the_time_nothing_more_is_begun(make_publisher, tmp_path, caplog):
    """It is to stop in its third message; two others wait for the key of the first."""
    publisher = make_publisher()
    publisher.publish_many("t", [*range(4)], keys=["a", "a", "b", "a"])
    options = {"start": "earliest", "cursor": tmp_path / "cursor", "concurrency": 2, "by_key": True}
    app, again, before, after = App(stop_timeout=4.0), App(), [], []

    @app.subscriber(publisher.endpoint, **options)
    async def on(value):
        before.append(value)
        while value == 0 and "were not begun in time" not in caplog.text:
            await asyncio.sleep(0.001)
        if value == 2:
            app.stop()

    @again.subscriber(publisher.endpoint, **options)
    async def rest(value):
        after.append(value)
        if value == 4:
            again.stop()

    serve(app)
    publisher.publish("t", 4, "b")
    serve(again)
    assert (before, sorted(after)) == ([0, 2], [1, 2, 3, 4])
    assert app.stats()[0].left == 2


def stops_from_another_thread(app):
    thread = threading.Thread(target=app.stop)
    thread.start()
    thread.join()


def stops_from_a_signal_handler(app):
    before = signal.signal(signal.SIGUSR1, lambda *_: app.stop())
    loop = asyncio.get_running_loop()
    loop.call_later(  # from a thread, so that the event loop waits at its descriptors
        0, threading.Timer(0.01, signal.pthread_kill, [threading.get_ident(), signal.SIGUSR1]).start
    )
    app.state.restore = lambda: signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("stop", [App.stop, stops_from_another_thread, stops_from_a_signal_handler])
def test_any_thread_and_a_signal_handler_can_stop_it(stop):
    app = App()
    seen = []

    @app.timer(600.0, at_start=True)
    async def on():
        stop(app)

    @app.on_stop
    async def ended():
        seen.append("ended")
        getattr(app.state, "restore", int)()

    asyncio.run(asyncio.wait_for(app.serve(), 60.0))
    assert seen == ["ended"]
