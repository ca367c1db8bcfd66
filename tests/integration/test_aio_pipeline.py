"""Jobs acknowledged by the batch in asyncio: in order, cancellations, bounds."""

import asyncio
import contextlib

from p2pmsg import aio
from p2pmsg.queue import PusherConfig
from tests.integration.aio import Strike, run
from tests.integration.aio_peers import eventually
from tests.integration.peers import DEADLINE_S, LOOPBACK


def pusher(endpoint=LOOPBACK, **options):
    return aio.Pusher(endpoint, acknowledge="batch", config=PusherConfig(**options))


def puller(endpoint):
    return aio.Puller(endpoint, acknowledge="batch")


@contextlib.asynccontextmanager
async def batch_queue(endpoint=LOOPBACK, **options):
    async with pusher(endpoint, **options) as source:
        async with puller(source.endpoint) as sink:
            yield source, sink
        await source.close(timeout=0.0)


async def by_receive(sink, done):
    done.append((await sink.receive()).sequence)


def test_a_cancellation_at_every_step_loses_no_job_and_gives_none_twice():
    async def main():
        async with batch_queue("inproc://strikes") as (source, sink):
            await eventually(lambda: source.stats().workers)
            done, strikes, rounds = [], 0, 0
            while rounds < 15 or strikes <= 2:  # on a busy machine few steps are made in 1 ms
                step, rounds = 1 + rounds % 15, rounds + 1
                for before, after in ((0, 1), (2, 0), (1, 2)):
                    source.push_many([0] * before)
                    task = asyncio.create_task(by_receive(sink, done))
                    with Strike(task, step) as strike:
                        asyncio.get_running_loop().call_later(0.0001, source.push_many, [0] * after)
                        await asyncio.wait([task], timeout=0.001)
                    task.cancel()
                    await asyncio.wait([task])
                    strikes += strike.struck
            await eventually(lambda: source.stats().pushed == rounds * 6)
            while len(done) < rounds * 6:
                done.append((await sink.receive(DEADLINE_S)).sequence)
            assert done == list(range(rounds * 6))

    run(main)
