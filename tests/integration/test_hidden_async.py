"""A handler that did not run is a failure: a decorator hid that it is async or has a yield."""

import asyncio
import functools

import pytest

import p2pmsg
from p2pmsg.app import App
from p2pmsg.errors import ConfigError, RemoteError
from tests.integration.peers import LOOPBACK, eventually
from tests.integration.test_app import serve
from tests.integration.test_queue_run import FAST

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")


def traced(function):
    """Wrap a function as most decorators do."""

    @functools.wraps(function)
    def wrapper(*arguments, **options):
        return function(*arguments, **options)

    return wrapper


async def coroutine(value=None):
    pytest.fail("nobody awaits it")


def generator(value=None):
    yield


async def async_generator(value=None):
    yield


async def of_a_coroutine(value=None):
    return coroutine(value)


HIDDEN = [
    (coroutine, "TypeError: the handler returned a coroutine, which nobody awaits"),
    (generator, "TypeError: the handler returned a generator, which nobody iterates"),
    (async_generator, "TypeError: the handler returned an async generator, which nobody iterates"),
]


class Async:
    async def __call__(self, value):
        pytest.fail("nobody awaits it")


# ------------------------------------------------------------------------------------ Puller.run


@pytest.mark.parametrize(("function", "reason"), HIDDEN)
def test_a_job_whose_handler_only_made_something_is_rejected(
    make_pusher, make_puller, caplog, function, reason
):
    pusher = make_pusher(config=FAST)
    puller = make_puller(pusher.endpoint)
    pusher.push(1)

    puller.run(traced(function), on_error="discard", count=1)

    (letter,) = eventually(lambda: list(pusher.dead_letters()))
    assert letter.reason.startswith(reason)
    assert pusher.stats().done == 0
    assert reason in caplog.text


@pytest.mark.parametrize("function", [coroutine, Async(), generator, async_generator])
@pytest.mark.parametrize("name", ["handler", "on_error"])
def test_run_in_threads_refuses_what_it_cannot_run(make_pusher, make_puller, name, function):
    pusher = make_pusher(config=FAST)
    puller = make_puller(pusher.endpoint)
    pusher.push(1)

    with pytest.raises(ConfigError, match=f"{name} must be (no async|a) function"):
        puller.run(**{"handler": print, name: function}, count=1)


# -------------------------------------------------------------------------------------------- App


@pytest.mark.parametrize("kind", ["subscriber", "worker", "responder", "timer"])
@pytest.mark.parametrize("is_lambda", [True, False])
def test_an_app_awaits_what_a_decorator_hides(
    make_publisher, make_pusher, endpoint, kind, is_lambda
):
    app, seen, loops = App(stop_timeout=10.0), [], []

    async def work(value=None):
        await asyncio.sleep(0)
        seen.append(value)
        loops.append(asyncio.get_running_loop())
        if kind != "responder":
            app.stop()
        return value

    @app.on_start
    @traced
    async def remember():
        loops.append(asyncio.get_running_loop())

    handler = (lambda value=None: work(value)) if is_lambda else traced(work)
    feed = register(app, kind, handler, make_publisher, make_pusher, endpoint)
    serve(app, feed)

    (stats,) = app.stats()
    assert (stats.handled, stats.failed) == (1, 0)
    assert seen == [None if kind == "timer" else 1]
    assert len(loops) == 2
    assert loops[0] is loops[1]


def register(app, kind, handler, make_publisher, make_pusher, endpoint):
    """Have an app call a handler for one event; return what feeds it."""
    if kind == "timer":
        app.timer(0.001)(handler)
        return None
    if kind == "worker":
        pusher = make_pusher(config=FAST)
        app.worker(pusher.endpoint, on_error="dead_letter")(handler)
        return lambda: pusher.push(1)
    if kind == "subscriber":
        publisher = make_publisher()
        app.subscriber(publisher.endpoint)(handler)

        def publish():
            publisher.wait_for_subscribers(1, timeout=60)
            publisher.publish("t", 1)

        return publish
    app.responder(endpoint, "t")(handler)

    def request():
        with p2pmsg.Requester([endpoint]) as requester:
            try:
                assert requester.request("t", 1, timeout=60) == 1
            except RemoteError as error:
                app.state.error = error
            app.stop()

    return request


@pytest.mark.parametrize("kind", ["subscriber", "worker", "timer"])
@pytest.mark.parametrize("function", [of_a_coroutine, generator, async_generator])
def test_what_only_makes_something_is_a_failure_of_the_handler(
    make_publisher, make_pusher, endpoint, caplog, kind, function
):
    app = App(stop_timeout=10.0)

    @functools.wraps(function)
    def handler(value=None):
        app.stop()
        return function(value)

    feed = register(app, kind, handler, make_publisher, make_pusher, endpoint)
    serve(app, feed)

    (stats,) = app.stats()
    assert (stats.handled, stats.failed, stats.given_up) == (0, 1, 1)
    assert stats.dead_lettered == (kind == "worker")
    assert f"TypeError: {function.__name__} returned a" in caplog.text


def test_a_middleware_that_awaits_nothing_is_a_failure(make_publisher, make_pusher, endpoint):
    app = App(stop_timeout=10.0)

    @app.middleware
    async def forgets(call_next, event):
        app.stop()
        return call_next(event)

    def work(value):
        pytest.fail("nobody calls it")

    serve(app, register(app, "worker", work, make_publisher, make_pusher, endpoint))

    (stats,) = app.stats()
    assert (stats.handled, stats.failed) == (0, 1)


# -------------------------------------------------------------------------------------- Responder


@pytest.mark.parametrize("function", [coroutine, Async(), generator, async_generator])
def test_a_responder_of_threads_refuses_what_it_cannot_run(function):
    with pytest.raises(ConfigError, match=r"the handler of 'x' must be (no async|a) function"):
        p2pmsg.Responder(LOOPBACK, {"x": function})


@pytest.mark.parametrize(("function", "reason"), HIDDEN)
@pytest.mark.parametrize("threads", [1, 2])
def test_an_answer_says_that_the_handler_did_not_run(function, reason, threads):
    handlers = {"x": traced(function)}
    with (
        p2pmsg.Responder(LOOPBACK, handlers, threads=threads) as responder,
        p2pmsg.Requester([responder.endpoint]) as requester,
        pytest.raises(RemoteError) as raised,
    ):
        requester.request("x", 1, timeout=60)

    assert reason in str(raised.value)
