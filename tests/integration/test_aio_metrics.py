"""p2pmsg.aio.metrics.Client, with threaded collectors opposite."""

import asyncio
import threading

import pytest

import p2pmsg
from p2pmsg.aio import metrics
from p2pmsg.errors import ClosedError
from tests.integration.peers import LOOPBACK, eventually
from tests.integration.statsd_tools import collecting

WAIT_S = 60.0


def run(main):
    asyncio.run(asyncio.wait_for(main(), WAIT_S), debug=True)


async def until(is_so):
    while not is_so():
        await asyncio.sleep(0.002)


def test_it_has_no_thread_and_sends_by_itself():
    async def main():
        before = set(threading.enumerate())
        async with metrics.Client(LOOPBACK, interval=0.01, close_timeout=0.0) as client:
            client.increment("a")
            assert client.sent == 0
            await until(lambda: client.sent == 1)
            await asyncio.sleep(0.05)
            assert client.sent == 1  # nothing was gathered since
            now = {one for one in threading.enumerate() if one.name != "p2pmsg-linger"}
            assert now <= before  # that one is the process's, and begins with its first socket
        with pytest.raises(ClosedError):
            client.increment("a")

    run(main)


def test_a_loop_that_ends_sends_the_rest_and_says_so(caplog, memory_path):
    """The log has what was gathered and not sent yet."""
    log = p2pmsg.LogConfig(memory_path / "log")
    kept = []

    async def main():
        client = metrics.Client(LOOPBACK, name="left open", interval=60.0, log=log)
        client.increment("a", 7)
        kept.append(client)

    asyncio.run(main())
    texts = [one.getMessage() for one in caplog.records]
    assert texts[0] == "the metrics client 'left open' was not closed before its event loop ended"
    assert [text for text in texts[1:] if "not closed" in text] == []

    async def again():
        async with metrics.Client(LOOPBACK, log=log) as client:
            with collecting(exact=client.endpoint) as (collector, _):
                await asyncio.to_thread(
                    eventually, lambda: collector.totals().counters.get("a") == 7
                )

    run(again)
