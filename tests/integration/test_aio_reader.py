"""Ranges and heads in an event loop."""

import asyncio

import p2pmsg
from p2pmsg.aio.reader import HeadsWatch, RangeReader
from tests.endpoints import lasting_endpoint


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


def test_heads_are_followed():
    async def main():
        async with (
            p2pmsg.aio.Publisher("tcp://127.0.0.1:0") as publisher,
            HeadsWatch([publisher.endpoint], topics=["a"]) as watch,
        ):
            assert await watch.wait_until_asked(60)
            publisher.publish("a", 1)
            while "a" not in watch.heads()[publisher.endpoint].only.streams:
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(main(), 60))
