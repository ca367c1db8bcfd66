"""Pusher and puller of asyncio over real sockets, blocks, bounds and cancellations."""

import asyncio
from random import Random

import pytest

import p2pmsg
from p2pmsg.errors import SendQueueFullError
from tests.integration.aio import LOOPS, Strike, run
from tests.integration.aio_peers import CANCELS, FAST, a_queue, eventually, work
from tests.integration.peers import LOOPBACK


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("kind", ["tcp", "ipc", "inproc"])
def test_jobs_are_done_once_each(loop, kind, tmp_path):
    endpoint = {"tcp": LOOPBACK, "ipc": f"ipc://{tmp_path}/q", "inproc": f"inproc://{tmp_path}"}

    async def main():
        done = []
        async with a_queue(endpoint[kind], in_flight_max=50) as (pusher, puller):

            async def work():
                async for job in puller:
                    async with job:
                        done.append(job.value)
                        if job.value % 7 == 0:
                            await asyncio.sleep(0)

            workers = [asyncio.create_task(work()) for _ in range(3)]
            for number in range(600):
                pusher.push(number, key="k" if number % 5 == 0 else None)
                await pusher.drain(timeout=60)
            await pusher.join(timeout=60)
            assert sorted(done) == list(range(600))
            assert pusher.stats().balanced
            assert pusher.stats().done == 600
        await asyncio.gather(*workers)  # they end with the puller

    run(main, loop, debug=True)


def test_a_block_that_raises_rejects_and_so_does_a_cancellation():
    async def main():
        async with a_queue(config=FAST) as (pusher, puller):
            pusher.push(1)
            with pytest.raises(ZeroDivisionError):
                async with await puller.receive(timeout=60) as job:
                    job.value / 0

            async def work():
                async with await puller.receive(timeout=60) as job:
                    assert job.last_reason == "ZeroDivisionError: division by zero"
                    begun.set_result(None)
                    await asyncio.sleep(60)

            begun = asyncio.get_running_loop().create_future()
            task = asyncio.create_task(work())
            await begun
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()

            async with await puller.receive(timeout=60) as job:
                assert (job.delivery_count, job.last_reason) == (3, "CancelledError: ")
            await pusher.join(timeout=60)

    run(main)


def test_a_full_queue_refuses_and_drain_waits_for_space():
    async def main():
        async with a_queue(in_flight_max=3) as (pusher, puller):
            for number in range(3):
                pusher.push(number)
            with pytest.raises(SendQueueFullError, match=r"in_flight_max \(3\)"):
                pusher.push("one too many")
            with pytest.raises(TimeoutError, match=r"in_flight_max \(3\)"):
                await pusher.drain(timeout=0.01)
            waiting = asyncio.create_task(pusher.drain())
            async with await puller.receive(timeout=60):
                assert not waiting.done()
            await waiting
            pusher.push("fits")
            assert pusher.stats().in_flight == 3

    run(main)


def test_bytes_in_flight_are_bounded_and_a_push_after_drain_always_fits():
    config = p2pmsg.queue.PusherConfig(in_flight_bytes_max=4096, message_bytes_max=2048)

    async def main():
        async with a_queue(config=config) as (pusher, puller):
            for _ in range(2):
                await pusher.drain()
                pusher.push(bytes(2000))
            with pytest.raises(SendQueueFullError):
                pusher.push(bytes(2000))
            with pytest.raises(TimeoutError):
                await pusher.drain(timeout=0.01)
            for _ in range(20):
                async with await puller.receive(timeout=60):
                    pass
                await pusher.drain(timeout=60)
                pusher.push(bytes(2000))

    run(main)


async def by_receive(puller, done):
    async with await puller.receive() as job:
        done.append(job.value)


async def by_iteration(puller, done):
    async for job in puller:
        async with job:
            done.append(job.value)
        break


async def by_timeout(puller, done):
    async with asyncio.timeout(0.0002):
        await by_receive(puller, done)


async def by_wait_for(puller, done):
    job = await asyncio.wait_for(puller.receive(), 0.0002)
    async with job:
        done.append(job.value)


async def by_own_timeout(puller, done):
    async with await puller.receive(timeout=0.0002) as job:
        done.append(job.value)


WAYS = (by_receive, by_iteration, work, by_timeout, by_wait_for, by_own_timeout)


class Struck:
    """A queue whose tasks are cancelled; each job's value is its number."""

    def __init__(self, pusher, puller):
        self.pusher, self.puller = pusher, puller
        self.pushed, self.strikes, self.done = 0, 0, []

    def push(self, count):
        for _ in range(count):
            self.pusher.push(self.pushed)
            self.pushed += 1

    async def strike(self, how, step, before, after):
        """Cancel at a step; of the jobs some are pushed before it begins, others while it waits."""
        self.push(before)
        task = asyncio.create_task(how(self.puller, self.done))
        with Strike(task, step) as strike:
            asyncio.get_running_loop().call_later(0.0001, self.push, after)
            await asyncio.wait([task], timeout=0.001)
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled() and task.exception() is not None:
            assert isinstance(task.exception(), TimeoutError)
        self.strikes += strike.struck

    async def do_rest(self):
        async with asyncio.timeout(60):
            while len(self.done) < self.pushed:
                async with await self.puller.receive() as job:
                    self.done.append(job.value)

    def check(self):
        assert sorted(self.done) == list(range(self.pushed))
        assert self.pusher.stats().refused == 0


@pytest.mark.parametrize("how", WAYS, ids=lambda how: how.__name__)
def test_a_cancellation_at_every_step_loses_no_job_and_does_none_twice(how):
    async def main():
        async with a_queue("inproc://strikes", config=CANCELS) as (pusher, puller):
            await eventually(lambda: puller.connected)
            struck, rounds = Struck(pusher, puller), 0
            while rounds < 15 or struck.strikes <= 5:  # few steps are made in 1 ms if it is busy
                step, rounds = 1 + rounds % 15, rounds + 1
                for before, after in ((0, 1), (2, 0), (1, 2)):
                    await struck.strike(how, step, before, after)
                    await asyncio.sleep(0.0002)
                    await struck.do_rest()
            struck.check()

    run(main)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.timeout(900)
@pytest.mark.rounds(200, 20_000)
def test_workers_that_are_cancelled_at_random_share_all_jobs(loop, rounds):
    rng = Random(21)

    async def main():
        done = []
        async with a_queue(config=CANCELS, in_flight_max=100_000) as (pusher, puller):

            def start():
                return asyncio.create_task(work(puller, done))

            workers = [start() for _ in range(5)]
            for _ in range(rounds):
                for _ in range(rng.randint(1, 4)):
                    pusher.push(pusher.stats().pushed)
                for _ in range(rng.randint(0, 4)):
                    await asyncio.sleep(rng.choice([0, 0, 0.0001]))
                which = rng.randrange(len(workers))
                workers[which].cancel()
                workers[which] = start()
            await pusher.join(timeout=600)
            assert sorted(done) == list(range(pusher.stats().pushed))
        await asyncio.gather(*workers)

    run(main, loop)
