"""What is no time to wait, or no count: refused by field, limit and value."""

import asyncio
import inspect

import pytest

import p2pmsg
from p2pmsg import aio
from tests.integration.peers import LOOPBACK

SECONDS = ("x", None.__class__, float("nan"), True, b"1")
COUNTS = ("a", 1.5, True, -1)


def calls_of(peer):
    """Return the calls that take a time to wait, and those that take a count, of one peer."""
    times, counts = [], []
    for name in (
        "receive", "receive_many", "batches", "wait_for_subscribers", "wait_for_streams",
        "drain", "join", "close", "request", "wait_for_collectors",
    ):  # fmt: skip
        call = getattr(peer, name, None)
        if call is None:
            continue
        parameters = inspect.signature(call).parameters
        first = ("topic",) if "topic" in parameters else ()
        if "timeout" in parameters:
            times.append((call, first))
        counts += [(call, field) for field in ("count", "count_max") if field in parameters]
    return times, counts


def refused(result):
    """Return the error of a call of either shell."""
    try:
        value = result()
        if inspect.iscoroutine(value):
            while value.send(None) is None:
                pass  # it lets other tasks run first, where calls went on for 1 ms
    except p2pmsg.ConfigError as error:
        return error
    return pytest.fail("it was not refused")


def check_all(peer):
    times, counts = calls_of(peer)
    assert times or counts
    for call, first in times:
        for value in SECONDS:
            error = refused(lambda call=call, first=first, value=value: call(*first, timeout=value))
            assert "timeout must be" in str(error)
            assert repr(value) in str(error)
    for call, field in counts:
        for value in COUNTS:
            error = refused(lambda call=call, f=field, value=value: call(**{f: value}))
            assert f"{field} must be an int of at least" in str(error)
            assert repr(value) in str(error)


def makers(module):
    return [
        lambda: module.Publisher(LOOPBACK),
        lambda: module.Subscriber("tcp://127.0.0.1:9"),
        lambda: module.Relay("tcp://127.0.0.1:9", LOOPBACK),
        lambda: module.Pusher(LOOPBACK),
        lambda: module.Puller("tcp://127.0.0.1:9"),
        lambda: module.Requester("tcp://127.0.0.1:9"),
    ]


@pytest.mark.parametrize("number", range(6))
def test_no_time_and_no_count_in_a_thread(number):
    with makers(p2pmsg)[number]() as peer:
        check_all(peer)


@pytest.mark.parametrize("number", range(6))
def test_no_time_and_no_count_in_a_loop(number):
    async def main():
        async with makers(aio)[number]() as peer:
            check_all(peer)

    asyncio.run(main())


def test_less_than_no_time_is_no_wait():
    with p2pmsg.Subscriber("tcp://127.0.0.1:9") as subscriber:
        with pytest.raises(TimeoutError):
            subscriber.receive(timeout=-1)
    with p2pmsg.Publisher(LOOPBACK) as publisher:
        with pytest.raises(TimeoutError):
            publisher.wait_for_subscribers(timeout=-1)
