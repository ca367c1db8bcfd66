"""Requester and responder of asyncio over real sockets, with threaded ones opposite."""

import asyncio
import functools
import threading

import pytest

from p2pmsg.aio import Answer, Requester, Responder
from p2pmsg.errors import ClosedError, RemoteError
from tests.integration.aio import LOOPS, Strike, run
from tests.integration.aio_peers import eventually
from tests.integration.test_requests import LOOPBACK, fail, fail_oddly


async def square(number):
    await asyncio.sleep(0)
    return number * number


class Doubles:
    async def __call__(self, number):
        return 2 * number


HANDLERS = {
    "square": square,
    "same": lambda value: value,
    "lambda": lambda number: square(number),
    "partial": functools.partial(square),
    "object": Doubles(),
    "fail": fail,
    "odd": fail_oddly,
    "unpackable": lambda _: object(),
}


class Hang:
    """A handler that is never done; it counts how often it was begun."""

    def __init__(self):
        self.begun = 0

    async def __call__(self, value):
        self.begun += 1
        await asyncio.sleep(60)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("kind", ["tcp", "ipc", "inproc"])
def test_an_answer_comes_back(loop, kind, tmp_path):
    at = {"tcp": LOOPBACK, "ipc": f"ipc://{tmp_path}/r", "inproc": f"inproc://{tmp_path}"}[kind]

    async def main():
        async with Responder(at, HANDLERS) as responder, Requester(responder.endpoint) as asks:
            for number in range(20):
                assert await asks.request("square", number, timeout=60) == number * number
                assert await asks.request("same", number, timeout=60) == number
            assert await asks.request("lambda", 3, timeout=60) == 9
            assert await asks.request("partial", 3, timeout=60) == 9
            assert await asks.request("object", 3, timeout=60) == 6
            assert await asks.request("same", timeout=60) is None
            assert responder.stats().answered == 44
            assert (asks.stats().retries, asks.stats().strays) == (0, 0)

    run(main, loop, debug=True)


@pytest.mark.parametrize("loop", LOOPS)
def test_many_tasks_ask_at_once_without_a_thread(loop):
    async def main():
        before = set(threading.enumerate())
        async with Responder(LOOPBACK, HANDLERS, tasks_max=2000, pending_max=4000) as responder:
            async with Requester(responder.endpoint, pending_max=1200) as asks:
                answers = await asyncio.gather(
                    *(asks.request("square", n, timeout=60, attempts_max=1) for n in range(2000))
                )
                assert answers == [n * n for n in range(2000)]
                now = {one for one in threading.enumerate() if one.name != "p2pmsg-linger"}
                assert now <= before  # that one is the process's, and begins with its first socket

    run(main, loop)


def test_work_is_bounded_and_more_is_refused_and_asked_again():
    at_work, most = 0, 0

    async def count(value):
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        await asyncio.sleep(0.005)
        at_work -= 1
        return value

    async def main():
        async with Responder(LOOPBACK, {"count": count}, tasks_max=3, pending_max=5) as responder:
            async with Requester(responder.endpoint) as asks:
                answers = await asyncio.gather(
                    *(asks.request("count", n, timeout=60, attempts_max=600) for n in range(20))
                )
                assert answers == list(range(20))
                assert asks.stats().retries >= 1
            assert most == 3
            assert responder.stats().refused >= 1

    run(main)


def test_all_are_asked_and_answers_come_as_they_come_then_what_is_missing():
    async def main():
        gate = asyncio.Event()

        async def late(_):
            await gate.wait()
            return "late"

        async with (
            Responder(LOOPBACK, {"name": lambda _: "quick"}) as quick,
            Responder(LOOPBACK, {"name": late}) as slow,
            Responder(LOOPBACK, {"name": Hang()}) as missing,
            Responder(LOOPBACK, {"name": fail}) as broken,
        ):
            places = [each.endpoint for each in (slow, missing, broken, quick)]
            async with Requester(places) as asks:
                got = []
                async for answer in asks.request_all("name", 7, deadline=60):
                    got.append(answer)
                    if len(got) == 2:
                        gate.set()
                    if len(got) == 3:
                        break
                assert {answer.endpoint for answer in got[:2]} == {quick.endpoint, broken.endpoint}
                by = {answer.endpoint: answer for answer in got}
                assert by[quick.endpoint] == Answer(quick.endpoint, "quick")
                assert isinstance(by[broken.endpoint].error, RemoteError)
                assert not by[broken.endpoint].is_missing
                assert got[2] == Answer(slow.endpoint, "late")
                got = [answer async for answer in asks.request_all("name", 7, deadline=0.2)]
                assert {answer.endpoint for answer in got} == set(places)
                assert missing.endpoint in {one.endpoint for one in got if one.is_missing}
            await missing.close(timeout=0.0)

    run(main)


@pytest.mark.parametrize("topic", ["same", "square"])
def test_a_cancellation_at_every_step_disturbs_no_other(topic):
    async def main():
        strikes = 0
        async with Responder("inproc://strike", HANDLERS) as responder:
            async with Requester(responder.endpoint) as asks:
                for step in range(1, 31):
                    task = asyncio.create_task(asks.request(topic, 3, timeout=60))
                    other = asyncio.create_task(asks.request(topic, step, timeout=60))
                    with Strike(task, step) as strike:
                        expected = step if topic == "same" else step * step
                        assert await other == expected
                        await asyncio.wait([task])
                    strikes += strike.struck
                assert strikes >= 2  # it takes few steps
                assert await asks.request("same", 1, timeout=60) == 1
                assert responder.stats().answered >= 31
                assert asks.stats().strays <= strikes
                assert asks.stats().retries == 0

    run(main)


# ---------------------------------------------------------------------------- closing, other loops


def test_what_is_at_work_is_answered_before_it_closes():
    async def main():
        gate = asyncio.Event()

        begun = []

        async def wait(value):
            begun.append(value)
            await gate.wait()
            return value

        responder = Responder(LOOPBACK, {"wait": wait})
        serving = asyncio.create_task(responder.serve())
        async with Requester(responder.endpoint) as asks:
            asking = asyncio.create_task(asks.request("wait", 1, attempts_max=1))
            await eventually(lambda: begun)
            closing = asyncio.create_task(responder.close())
            await asyncio.sleep(0.01)
            assert not closing.done()
            gate.set()
            await closing
            await serving
            assert await asking == 1
            with pytest.raises(ClosedError):
                await responder.serve()
            with pytest.raises(ClosedError):
                responder.start()

    run(main)


def test_a_close_from_another_loop_is_refused_and_ends_nothing():
    async def main():
        async with (
            Responder(LOOPBACK, HANDLERS) as responder,
            Requester(responder.endpoint) as asks,
        ):
            with pytest.raises(RuntimeError):
                await asyncio.to_thread(lambda: asyncio.run(responder.close()))
            assert await asks.request("square", 3, timeout=60) == 9

    run(main)
