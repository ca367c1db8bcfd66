"""`App`: its hooks, how it ends, what comes again, and what its counters say."""

import asyncio
import signal
import threading
from collections import Counter

import pytest

import p2pmsg
from p2pmsg.app import App, DeadLetter, Retry
from p2pmsg.errors import HandlerError


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


@pytest.fixture
def app():
    return App(stop_timeout=10.0)


def print_nothing_at_all():
    pass


def test_hooks_are_called_around_it_all(app):
    calls = []
    app.on_start(lambda: calls.append("start"))

    @app.on_start
    async def open_it(app: App):
        calls.append(app.name)

    app.on_stop(lambda: calls.append("first"))

    @app.on_stop
    async def close_it():
        calls.append("second")

    @app.timer(0.001)
    async def tick(app: App):
        calls.append("tick")
        app.stop()

    serve(app)

    assert calls == ["start", "", "tick", "second", "first"]


def test_a_hook_that_waits_does_not_keep_the_app_from_stopping(caplog):
    app = App(stop_timeout=0.05)
    stopped = []

    @app.on_start
    async def wait_for_ever():
        asyncio.get_running_loop().call_later(0.02, app.stop)
        await asyncio.sleep(1000)

    app.on_stop(lambda: stopped.append(1))
    app.timer(1.0)(print_nothing_at_all)

    with pytest.raises(TimeoutError, match="wait_for_ever did not end"):
        serve(app)
    assert stopped == [1]
    assert "wait_for_ever did not end within 0.05 s" in caplog.text


def test_hooks_of_the_end_are_called_whatever_others_raise(app, caplog):
    called = []
    app.timer(1.0)(print_nothing_at_all)
    app.on_stop(lambda: called.append("first"))

    @app.on_stop
    async def fails_too():
        raise KeyError("no connection")

    app.on_stop(lambda: called.append("last"))

    @app.on_start
    def fails():
        raise OSError("no database")

    app.on_start(lambda: called.append("started"))

    with pytest.raises(OSError, match="no database"):
        serve(app)

    assert called == ["last", "first"]
    assert "fails_too raised" in caplog.text


def test_what_a_hook_of_the_end_raises_is_raised_where_nothing_else_went_wrong(app):
    called = []
    app.timer(0.01)(lambda: app.stop())
    app.on_stop(lambda: called.append("first"))

    @app.on_stop
    def fails():
        raise OSError("no disk")

    with pytest.raises(OSError, match="no disk"):
        serve(app)
    assert called == ["first"]


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
