"""`App`: the hooks around its events, and an app that has nothing else."""

import asyncio

import pytest

from p2pmsg.app import App


@pytest.fixture
def app():
    return App(stop_timeout=5.0)


def serve(app, timeout=60.0):
    asyncio.run(asyncio.wait_for(app.serve(), timeout))


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
