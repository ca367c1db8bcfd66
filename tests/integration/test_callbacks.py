"""Callbacks of subscribers that would do nothing when they are called."""

import pytest

import p2pmsg
from tests.endpoints import free_port


async def coroutine(report):
    raise AssertionError("never awaited")


def generator(report):
    yield


async def async_generator(report):
    yield


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
