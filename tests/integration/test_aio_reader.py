"""Ranges and heads in an event loop."""

import asyncio

import pytest

import p2pmsg
from p2pmsg.aio.reader import HeadsWatch, RangeReader
from tests.endpoints import lasting_endpoint

COUNT = 100_000


@pytest.fixture
def publisher():
    with p2pmsg.Publisher("tcp://127.0.0.1:0", name="feed") as publisher:
        for topic in ("a", "b"):
            publisher.publish_many(topic, list(range(COUNT)))
        publisher.flush()
        yield publisher


async def read(reader, topic):
    return [value async for batch in await reader.fetch(topic, 0, COUNT) for value in batch.values]


def test_several_ranges_are_read_at_the_same_time(publisher):
    async def main():
        async with RangeReader(publisher.endpoint, timeout=60.0) as reader:
            heads = await reader.heads()
            assert [each.session for each in await reader.sessions()] == [heads.session]
            found = await asyncio.gather(read(reader, "a"), read(reader, "b"))
        with pytest.raises(p2pmsg.ClosedError):
            await reader.heads()
        return heads, found

    heads, found = asyncio.run(main())
    assert {topic: head.next for topic, head in heads.streams.items()} == {"a": COUNT, "b": COUNT}
    assert found == [list(range(COUNT))] * 2


def test_a_read_that_is_cancelled_goes_on_where_it_was():
    endpoint = lasting_endpoint()

    async def main():
        async with RangeReader(endpoint, timeout=60.0) as reader:
            heads = asyncio.create_task(reader.heads())
            await asyncio.sleep(0)
            heads.cancel()
            await asyncio.gather(heads, return_exceptions=True)
            assert heads.cancelled()
            async with p2pmsg.aio.Publisher(endpoint) as publisher:
                publisher.publish_many("t", [1, 2, 3])
                session = (await reader.heads()).session
                items = await reader.fetch("t", 0, 4, session=session)
                assert (await anext(items)).values == [1, 2, 3]
                following = asyncio.create_task(anext(items))
                await asyncio.sleep(0.05)
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
                publisher.publish("t", 4)
                assert (await anext(items)).values == [4]

    asyncio.run(main())


def test_heads_are_followed(publisher):
    async def main():
        async with HeadsWatch([publisher.endpoint], topics=["a"]) as watch:
            assert await watch.wait_until_asked(60)
            publisher.publish("a", 1)
            while watch.heads()[publisher.endpoint].only.streams["a"].next <= COUNT:
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(main(), 60))
