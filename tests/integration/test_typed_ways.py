"""Each part of a value arrives as its type or is named: in asyncio, and by pipelines."""

import asyncio
import contextlib
import datetime
import decimal
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import p2pmsg
from p2pmsg import aio, codec
from tests.integration.peers import LOOPBACK
from tests.integration.test_typed import VALUES, same

pytestmark = pytest.mark.long

WAIT_S = 60
WAYS = ("publish", "publish_many", "push", "pipeline", "request", "threaded pipeline")


@pytest.fixture(scope="module")
def ends():
    """Return what sends values and returns what arrived, by each way."""
    with contextlib.ExitStack() as opened, asyncio.Runner() as runner:
        stack = contextlib.AsyncExitStack()
        ways = runner.run(open_peers(stack))

        def run(way):
            return lambda values: runner.run(asyncio.wait_for(ways[way](values), WAIT_S))

        pusher = opened.enter_context(p2pmsg.Pusher(LOOPBACK, mode="pipeline"))
        puller = opened.enter_context(p2pmsg.Puller(pusher.endpoint, mode="pipeline"))

        def pipeline(values):
            pusher.push_many(values)
            found = [puller.receive(WAIT_S).value for _ in values]
            puller.commit()
            return found

        yield {**{way: run(way) for way in ways}, "threaded pipeline": pipeline}
        runner.run(stack.aclose())


async def open_peers(stack):
    enter = stack.enter_async_context
    publisher = await enter(aio.Publisher(LOOPBACK))
    subscriber = await enter(aio.Subscriber(publisher.endpoint))
    pusher = await enter(aio.Pusher(LOOPBACK))
    puller = await enter(aio.Puller(pusher.endpoint))
    dealer = await enter(aio.Pusher(LOOPBACK, mode="pipeline"))
    taker = await enter(aio.Puller(dealer.endpoint, mode="pipeline"))
    responder = await enter(aio.Responder(LOOPBACK, {"echo": lambda value: value}))
    requester = await enter(aio.Requester(responder.endpoint))
    await publisher.wait_for_subscribers(1, WAIT_S)

    async def publish(values):
        for value in values:
            publisher.publish("t", value)
        return [(await subscriber.receive()).value for _ in values]

    async def publish_many(values):
        publisher.publish_many("t", values)
        return [(await subscriber.receive()).value for _ in values]

    async def push(values):
        found = []
        for value in values:
            pusher.push(value)
        for _ in values:
            async with await puller.receive() as job:
                found.append(job.value)
        return found

    async def pipeline(values):
        dealer.push_many(values)
        found = [(await taker.receive()).value for _ in values]
        taker.commit()
        return found

    async def request(values):
        return [await requester.request("echo", value, timeout=WAIT_S) for value in values]

    return dict(zip(WAYS, (publish, publish_many, push, pipeline, request), strict=False))


@pytest.mark.parametrize("way", WAYS)
@given(values=st.lists(VALUES, min_size=1, max_size=5))
@settings(max_examples=40, deadline=None)
def test_each_part_arrives_as_its_type_or_the_path_to_it_is_said(ends, way, values):
    sent = []
    for value in values:
        try:
            codec.prepare(value)
        except p2pmsg.MessageError as error:
            with pytest.raises(p2pmsg.MessageError) as caught:
                ends[way]([value])
            assert caught.value.field.replace("values[0]", "value") == error.field
        else:
            sent.append(value)
    if sent:
        assert same(ends[way](sent), sent)


def test_what_is_left_of_a_frame_keeps_its_types_where_it_is_dealt_again():
    values = [decimal.Decimal("1.5"), uuid.UUID(int=7), {"day": datetime.date(2026, 1, 1)}]
    with p2pmsg.Pusher(LOOPBACK, mode="pipeline") as pusher:
        with p2pmsg.Puller(pusher.endpoint, mode="pipeline") as puller:
            pusher.push_many(values)
            puller.receive(WAIT_S)
            puller.commit()
        with p2pmsg.Puller(pusher.endpoint, mode="pipeline") as puller:
            found = [puller.receive(WAIT_S).value]
            while found[-1] != values[-1]:
                found.append(puller.receive(WAIT_S).value)
            puller.commit()
    assert found == values[-len(found) :]
