"""`aio.Puller.run`: a function for each job; failures end nothing, signals let a job finish."""

import asyncio
import importlib.util
import signal
import subprocess
import sys

import pytest

import p2pmsg
from p2pmsg.queue.running import LOOK_S
from tests.integration.aio import LOOPS, run
from tests.integration.aio_peers import a_queue
from tests.integration.peers import eventually
from tests.integration.test_queue_run import FAST
from tests.processes import is_asleep


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


@pytest.mark.parametrize("loop", LOOPS)
def test_several_tasks_do_as_many_as_they_were_to_though_the_last_comes_late(loop):
    async def main():
        seen = []
        async with a_queue() as (pusher, puller):
            pusher.push(0)
            pusher.push(1)
            asyncio.get_running_loop().call_later(5 * LOOK_S, pusher.push, 2)
            await puller.run(lambda job: seen.append(job.value), tasks=3, count=3)
            assert sorted(seen) == [0, 1, 2]
            await pusher.join(timeout=60)

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


@pytest.mark.parametrize("is_async", [True, False])
def test_a_callable_decides_and_what_it_leaves_is_rejected(is_async):
    async def main():
        asked = []

        def decide(job, error):
            asked.append((job.value, type(error)))
            if job.value == "never":
                job.discard("no use")

        async def decide_later(job, error):
            await asyncio.sleep(0)
            decide(job, error)

        async def work(job):
            if job.delivery_count == 1:
                raise OSError("away")

        async with a_queue() as (pusher, puller):
            pusher.push("never")
            pusher.push("later")
            await puller.run(work, on_error=decide_later if is_async else decide, count=3)
            await pusher.join(timeout=60)
            assert asked == [("never", OSError), ("later", OSError)]
            assert (pusher.stats().done, pusher.stats().dead) == (1, 1)

    run(main)


@pytest.mark.parametrize("tasks", [1, 3])
def test_stop_raises_what_the_handler_raised_and_the_job_is_rejected(tasks):
    async def main():
        async with a_queue() as (pusher, puller):
            pusher.push(0)
            with pytest.raises(ZeroDivisionError):
                await puller.run(lambda job: 1 / job.value, on_error="stop", tasks=tasks)
            job = await puller.receive(60)
            assert (job.delivery_count, job.last_reason) == (
                2,
                "ZeroDivisionError: division by zero",
            )
            job.ack()

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


def test_only_one_run_at_a_time_and_a_wrong_argument_is_named():
    async def main():
        async with a_queue() as (pusher, puller):
            pusher.push(1)

            async def work(job):
                with pytest.raises(p2pmsg.ClosedError, match="another call of run"):
                    await puller.run(print)

            await puller.run(work, count=1)
            for field, wrong in {"handler": 5, "on_error": "x", "tasks": 0, "count": 0}.items():
                with pytest.raises(p2pmsg.ConfigError) as refused:
                    await puller.run(**{"handler": print, field: wrong})
                assert refused.value.field == field

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


@pytest.mark.long
def test_a_second_ctrl_c_ends_it_in_the_middle_of_a_job(make_pusher):
    pusher = make_pusher(config=FAST)
    pusher.push(1)
    with start(pusher, 1, program=WORKER.replace("0.3", "3600")) as child:
        try:
            assert child.stdout.readline() == "begun\n"
            child.send_signal(signal.SIGINT)
            eventually(lambda: is_asleep(child.pid))  # two at once are one to the process
            child.send_signal(signal.SIGINT)
            _, errors = child.communicate(timeout=60)
        finally:
            child.kill()

    assert "KeyboardInterrupt" in errors
    eventually(lambda: pusher.stats().failed == 1)
