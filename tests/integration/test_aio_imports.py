"""What p2pmsg.aio imports before an event loop runs; `import p2pmsg` imports nothing of it."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys

import pytest
import p2pmsg
assert not [name for name in sys.modules if name.startswith(("p2pmsg.aio", "asyncio"))]
from p2pmsg import aio
import asyncio

async def main():
    before = set(sys.modules)
    async with (
        aio.Publisher("tcp://127.0.0.1:0") as publisher,
        aio.Subscriber(publisher.endpoint) as subscriber,
        aio.Pusher("tcp://127.0.0.1:0") as pusher,
        aio.Puller(pusher.endpoint) as puller,
        aio.Responder("tcp://127.0.0.1:0", {"square": lambda n: n * n}) as responder,
        aio.Requester(responder.endpoint) as requester,
        aio.Relay(publisher.endpoint, "tcp://127.0.0.1:0") as relay,
        aio.metrics.Client("udp://127.0.0.1:9") as metrics,
    ):
        responder.start()
        await publisher.wait_for_subscribers(2, 60)
        publisher.publish("trades", {"price": 1.5}, key="a")
        await publisher.drain()
        assert (await subscriber.receive(60)).value == {"price": 1.5}
        pusher.push(2)
        async with await puller.receive(60) as job:
            assert job.value == 2
        assert await requester.request("square", 3, timeout=60) == 9
        metrics.increment("orders")
        for peer in (publisher, subscriber, pusher, relay):
            peer.stats()
        new = {name for name in sys.modules if name.startswith("p2pmsg.")} - before
    print(*sorted(new))

asyncio.run(main())
"""


@pytest.mark.long
def test_no_event_loop_waits_for_what_is_imported(tmp_path):
    command = [sys.executable, "-c", PROGRAM]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=100)
    assert (ended.stderr, ended.returncode) == ("", 0)
    assert ended.stdout.split() == []
