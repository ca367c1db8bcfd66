"""Jobs acknowledged by the batch in asyncio: in order, cancellations, bounds."""

import asyncio
import contextlib

import pytest

from p2pmsg import aio
from p2pmsg.errors import SendQueueFullError
from p2pmsg.queue import PusherConfig
from tests.integration.aio import LOOPS, Strike, run
from tests.integration.aio_peers import eventually
from tests.integration.peers import DEADLINE_S, LOOPBACK

VALUE = b"x" * 128
SMALL = {"in_flight_bytes_max": 256 * 1024, "message_bytes_max": 1024}


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


@pytest.mark.parametrize("loop", LOOPS)
def test_jobs_are_done_once_each_and_in_order(loop):
    async def main():
        done = []
        async with batch_queue(**SMALL) as (source, sink):

            async def work():
                async for job in sink:
                    done.append(job.sequence)
                    if job.sequence % 700 == 0:
                        await asyncio.sleep(0)

            worker = asyncio.create_task(work())
            for number in range(5000):  # several times the buffer
                await source.drain(timeout=DEADLINE_S)
                assert source.push(VALUE) == number
            await eventually(lambda: len(done) == 5000)
            sink.commit()  # the last one, for which no other is taken
            await source.join(timeout=DEADLINE_S)
            assert done == list(range(5000))
            stats = source.stats()
            assert (stats.pushed, stats.done, stats.in_flight) == (5000, 5000, 0)
            assert (stats.taken_back, stats.refused, stats.frames_invalid) == (0, 0, {})
        await worker  # it ends with the puller

    run(main, loop, debug=True)


def test_a_full_buffer_refuses_and_a_push_after_drain_always_fits():
    async def main():
        config = {"in_flight_bytes_max": 64 * 1024, "message_bytes_max": 20_000}
        async with pusher(**config) as source:
            with pytest.raises(SendQueueFullError, match="in_flight_bytes_max"):
                for _ in range(1000):
                    source.push(VALUE)
            with pytest.raises(TimeoutError, match="in_flight_bytes_max"):
                await source.drain(timeout=0.01)
            pushed = source.stats().pushed

            async def push():
                for _ in range(20):
                    await source.drain()
                    source.push(bytes(19_000))

            tasks = [asyncio.create_task(push()) for _ in range(3)]
            async with puller(source.endpoint) as sink:
                for _ in range(pushed + 60):
                    await sink.receive(timeout=DEADLINE_S)
                await asyncio.gather(*tasks)
                sink.commit()
                await source.join(DEADLINE_S)

    run(main)


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
