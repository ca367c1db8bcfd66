"""`aio.Puller.run`: a function for each job; failures end nothing, signals let a job finish."""

import asyncio
import importlib.util
import signal
import subprocess
import sys

import pytest

from tests.integration.aio import LOOPS, run
from tests.integration.aio_peers import a_queue
from tests.integration.peers import eventually
from tests.integration.test_queue_run import FAST


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("tasks", [1, 4])
def test_each_job_is_done_once_and_a_failing_one_is_tried_again(loop, tasks):
    async def main():
        seen = []

        async def work(job):
            await asyncio.sleep(0)
            if job.value % 10 == 0 and job.delivery_count == 1:
                raise ValueError("not yet")
            seen.append(job.value)

        async with a_queue() as (pusher, puller):
            for number in range(100):
                pusher.push(number)
            await puller.run(work, tasks=tasks, count=110)
            await pusher.join(timeout=60)
            assert pusher.stats().done == 100
        assert sorted(seen) == [*range(100)]

    run(main, loop, debug=True)


def test_a_function_that_is_not_async_works_too_and_others_run_meanwhile():
    async def main():
        seen, turns = [], []

        async def count():
            while True:
                turns.append(len(seen))
                await asyncio.sleep(0)

        async with a_queue(in_flight_max=5000) as (pusher, puller):
            for number in range(5000):
                pusher.push(number)
            counting = asyncio.create_task(count())
            await puller.run(lambda job: seen.append(job.value), count=5000)
            counting.cancel()
            assert seen == [*range(5000)]
            assert len({*turns}) > 2

    run(main)


@pytest.mark.parametrize("tasks", [1, 3])
def test_one_that_is_cancelled_rejects_the_job_in_hand_and_takes_no_other(tasks):
    async def main():
        begun = asyncio.Event()

        async def work(job):
            begun.set()
            await asyncio.sleep(3600)

        async with a_queue() as (pusher, puller):
            pusher.push(1)
            running = asyncio.create_task(puller.run(work, tasks=tasks))
            await begun.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            job = await puller.receive(60)
            assert (job.delivery_count, job.last_reason) == (2, "CancelledError: ")
            job.ack()
            pusher.push(2)
            await puller.run(lambda job: job.ack(), count=1)  # it may be called again
            await pusher.join(timeout=60)

    run(main)


@pytest.mark.parametrize("tasks", [1, 3])
def test_close_waits_for_the_job_in_hand_but_not_within_it(tasks):
    async def main():
        begun, finish = asyncio.Event(), asyncio.Event()

        async def work(job):
            if job.value == 1:
                begun.set()
                await finish.wait()

        async with a_queue() as (pusher, puller):
            pusher.push(1)
            running = asyncio.create_task(puller.run(work, tasks=tasks))
            await begun.wait()
            closing = asyncio.create_task(puller.close(60))
            await asyncio.sleep(0.01)
            assert not closing.done()
            finish.set()
            await closing
            await running
            await pusher.join(timeout=60)
            assert pusher.stats().done == 1

        async with a_queue() as (pusher, puller):
            pusher.push(2)

            async def end(job):
                job.ack()
                await puller.close()

            await puller.run(end, tasks=tasks)
            await pusher.join(timeout=60)

    run(main)


WORKER = """
import asyncio, sys
from p2pmsg import aio
async def work(job):
    print("begun", flush=True)
    await asyncio.sleep(0.3)
    print("done", flush=True)
async def main():
    async with aio.Puller(sys.argv[1]) as puller:
        await puller.run(work, tasks=int(sys.argv[2]))
    print("left", flush=True)
if sys.argv[3] == "uvloop":
    from uvloop import run
else:
    from asyncio import run
run(main())
"""


def start(pusher, tasks, loop="asyncio", program=WORKER):
    if loop == "uvloop" and importlib.util.find_spec("uvloop") is None:
        pytest.skip("uvloop is not there")
    command = [sys.executable, "-c", program, pusher.endpoint, str(tasks), loop]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "tasks", "loop"),
    [
        (signal.SIGTERM, 1, "asyncio"),
        (signal.SIGINT, 2, "uvloop"),
        pytest.param(signal.SIGTERM, 1, "uvloop", marks=pytest.mark.long),
        pytest.param(signal.SIGINT, 2, "asyncio", marks=pytest.mark.long),
    ],
)
def test_a_signal_lets_the_job_in_hand_finish(make_pusher, number, tasks, loop):
    pusher = make_pusher(config=FAST)
    pusher.push(1)
    with start(pusher, tasks, loop) as child:
        try:
            assert child.stdout.readline() == "begun\n"
            child.send_signal(number)
            assert child.communicate(timeout=60) == ("done\nleft\n", "")
            assert child.returncode == 0
        finally:
            child.kill()

    eventually(lambda: pusher.stats().done == 1)
