"""Callbacks of subscribers that would do nothing when they are called."""

import functools

import pytest

import p2pmsg
from tests.endpoints import free_port
from tests.integration.peers import LOOPBACK


async def coroutine(report):
    raise AssertionError("never awaited")


def generator(report):
    yield


async def async_generator(report):
    yield


def decorated(function):
    """Return the function within a plain one, as most decorators do."""
    return functools.wraps(function)(lambda *arguments: function(*arguments))


def place():
    return f"tcp://127.0.0.1:{free_port()}"


NOTHING_DONE = (coroutine, generator, async_generator)
OPTIONS = {
    "on_gap": lambda function: {"on_gap": function},
    "on_gap of a topic": lambda function: {"on_gap": {"t": function}},
    "on_end": lambda function: {"on_end": function},
    "on_invalid": lambda function: {"type": int, "on_invalid": function},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("function", NOTHING_DONE)
def test_a_callback_that_would_do_nothing_is_refused(function, options):
    with pytest.raises(p2pmsg.ConfigError, match="plain functions, without yield"):
        p2pmsg.Subscriber(place(), **options(function))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("function", NOTHING_DONE)
def test_what_a_decorated_one_would_have_done_is_logged(
    make_publisher, make_subscriber, caplog, function
):
    publisher = make_publisher(LOOPBACK)
    subscriber = make_subscriber(
        publisher.endpoint, joins=publisher, type=int, on_invalid=decorated(function)
    )
    publisher.publish("t", "no number")
    publisher.publish("t", 1)
    assert subscriber.receive(60).value == 1
    (said,) = [one for one in caplog.messages if "of which nothing was done" in one]
    assert "returned a" in said
