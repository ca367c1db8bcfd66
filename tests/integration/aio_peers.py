"""For tests of asyncio's queue and requests: peers of one loop, child processes, waiting."""

import asyncio
import contextlib

import p2pmsg
from p2pmsg.aio import Puller
from p2pmsg.errors import LogFailedError
from p2pmsg.peers.loop.pusher import Pusher
from tests.integration.peers import LOOPBACK

FAST = p2pmsg.queue.PusherConfig(retry_delay=0.001, ack_timeout=30.0)
CANCELS = p2pmsg.PusherConfig(retry_delay=0.0001, deliveries_max=1_000_000)


async def eventually(is_so):
    async with asyncio.timeout(60):
        while not is_so():
            await asyncio.sleep(0.002)


@contextlib.asynccontextmanager
async def a_queue(endpoint=LOOPBACK, *, prefetch=16, **options):
    """Have a pusher and a puller of this loop."""
    async with Pusher(endpoint, **options) as pusher:
        async with Puller(pusher.endpoint, prefetch=prefetch) as puller:
            yield pusher, puller
        with contextlib.suppress(LogFailedError):
            await pusher.close(timeout=0.0)


async def work(puller, done):
    """Do jobs until the puller is closed."""
    async for job in puller:
        async with job:
            await asyncio.sleep(0)
            done.append(job.value)
