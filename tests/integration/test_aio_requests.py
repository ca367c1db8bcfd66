"""Requester and responder of asyncio over real sockets, with threaded ones opposite."""

import asyncio
import functools
import os
import socket
import threading
from random import Random

import pytest
import zmq

import p2pmsg
from p2pmsg.aio.requester import Answer, Requester
from p2pmsg.aio.responder import Responder
from p2pmsg.errors import ClosedError, RemoteError
from p2pmsg.requests import frames
from p2pmsg.wire import Frame
from tests.integration.aio import LOOPS, Strike, run
from tests.integration.aio_peers import eventually, start_program
from tests.integration.test_requests import (
    LOOPBACK,
    MISFIT,
    PRICES,
    NoType,
    OwnError,
    Price,
    a_responder_of_too_large_answers,
    fail,
    fail_oddly,
)


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
            assert await asks.request("lambda", 3) == 9
            assert await asks.request("partial", 3) == 9
            assert await asks.request("object", 3) == 6
            assert await asks.request("same") is None
            assert responder.answered == 44
            assert (asks.retries, asks.strays) == (0, 0)

    run(main, loop, debug=True)


def test_an_answer_is_made_a_type_or_said_not_to_fit():
    async def main():
        async with Responder(LOOPBACK, PRICES) as responder, Requester(responder.endpoint) as asks:
            assert await asks.request("price", "A", type=Price) == Price("A", 1.0)
            with pytest.raises(p2pmsg.RequestError, match=MISFIT):
                await asks.request("odd", "A", type=Price)
            with pytest.raises(p2pmsg.ConfigError, match="NoType"):
                await asks.request("price", "A", type=NoType)

    run(main)


class StrangeError(BaseException):
    pass


@pytest.mark.parametrize("kind", [asyncio.CancelledError, StrangeError, GeneratorExit])
@pytest.mark.parametrize("is_async", [True, False])
def test_what_is_no_exception_of_a_program_is_an_answer_too(kind, is_async):
    calls = []

    def fail_at_once(value):
        calls.append(value)
        raise kind

    async def fail_later(value):
        await asyncio.sleep(0)
        fail_at_once(value)

    async def main():
        handlers = {"fail": fail_later if is_async else fail_at_once, "same": lambda value: value}
        async with Responder(LOOPBACK, handlers) as made, Requester(made.endpoint) as asks:
            for number in range(3):
                with pytest.raises(RemoteError, match=kind.__name__):
                    await asks.request("fail", number, timeout=60)
            assert await asks.request("same", 1) == 1
            assert made.raised == 3

    run(main)
    assert calls == [0, 1, 2]


def test_a_handler_is_added_by_a_decorator():
    async def main():
        async with Responder(LOOPBACK) as responder, Requester(responder.endpoint) as asks:

            @responder.on("price")
            async def price(name):
                return [name, 1.5]

            assert await asks.request("price", "ACME") == ["ACME", 1.5]
            assert await price("x") == ["x", 1.5]
            responder.on("price")(lambda name: name)  # a function in its place
            assert await asks.request("price", "ACME") == "ACME"

    run(main)


def test_what_a_handler_raises_arrives_with_its_type_and_text():
    async def main():
        async with Responder(LOOPBACK, HANDLERS) as responder:
            responder.on("late")(raise_late)
            async with Requester(responder.endpoint) as asks:
                for topic in ("fail", "late"):
                    with pytest.raises(RemoteError, match="no 7") as caught:
                        await asks.request(topic, 7)
                    assert caught.value.type_name == "LookupError"
                with pytest.raises(RemoteError) as caught:
                    await asks.request("odd")
                assert caught.value.type_name.endswith(OwnError.__qualname__)
                with pytest.raises(RemoteError):
                    await asks.request("unpackable")
                with pytest.raises(RemoteError):
                    await asks.request("unknown")
                assert responder.raised == 4
                for call in (
                    lambda: asks.request("", 1), lambda: asks.request("same", object()),
                    lambda: asks.request("same", timeout=0),
                    lambda: asks.request("same", attempts_max=0),
                    lambda: asks.request("same", bytes(2**21)),
                ):  # fmt: skip
                    with pytest.raises(ValueError):  # noqa: PT011  # MessageError, ConfigError
                        await call()
                assert await asks.request("same", 1) == 1

    run(main)


async def raise_late(value):
    await asyncio.sleep(0)
    fail(value)


def test_threaded_ones_opposite():
    async def main():
        with p2pmsg.Responder(LOOPBACK, {"same": lambda value: value}) as threaded:
            async with Requester(threaded.endpoint) as asks:
                answers = await asyncio.gather(*(asks.request("same", n) for n in range(200)))
                assert answers == list(range(200))
        async with Responder(LOOPBACK, HANDLERS) as responder:

            def ask():
                with p2pmsg.Requester(responder.endpoint) as requester:
                    return [requester.request("square", n) for n in range(100)]

            assert await asyncio.to_thread(ask) == [n * n for n in range(100)]

    run(main)


@pytest.mark.parametrize("loop", LOOPS)
def test_many_tasks_ask_at_once_without_a_thread(loop):
    async def main():
        threads = set(threading.enumerate())
        async with Responder(LOOPBACK, HANDLERS, tasks_max=2000, pending_max=4000) as responder:
            async with Requester(responder.endpoint, pending_max=1200) as asks:
                answers = await asyncio.gather(
                    *(asks.request("square", n, timeout=60, attempts_max=1) for n in range(2000))
                )
                assert answers == [n * n for n in range(2000)]
                assert set(threading.enumerate()) <= threads

    run(main, loop)


def test_requests_to_nobody_end_and_are_bounded(tmp_path):
    """ZeroMQ keeps 1,024 of them, and the requester as many as may be pending."""
    at = f"ipc://{tmp_path}/late"

    async def main():
        async with Requester(at, pending_max=2000) as asks:
            early = [
                asyncio.create_task(asks.request("same", n, timeout=0.5, attempts_max=20))
                for n in range(2500)
            ]
            with pytest.raises(TimeoutError, match=r"pending_max|no answer"):
                await asks.request("same", 1, timeout=0.2)
            with pytest.raises(p2pmsg.SendQueueFullError):
                for _ in range(2001):
                    asks.request_all("same", 1, deadline=0.5)
            ended = await asyncio.gather(*early, return_exceptions=True)
            assert {type(each) for each in ended} == {TimeoutError}
            async with Responder(at, HANDLERS):
                assert await asks.request("same", 7, timeout=60, attempts_max=150) == 7

    run(main)


def test_a_connection_that_zeromq_gave_up_is_made_again(opened, caplog):
    endpoint = opened.enter_context(a_responder_of_too_large_answers())

    async def main():
        async with Requester(endpoint) as asks:
            with pytest.raises(TimeoutError):
                await asks.request("t", timeout=1.0, attempts_max=1)
            for _ in range(3):
                assert await asks.request("t", timeout=60, attempts_max=60) == 7
            assert asks.reconnects == 1

    run(main)
    assert caplog.text.count("the connection is made again, since ZeroMQ gave it up") == 1


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
                assert asks.retries >= 1
            assert most == 3
            assert responder.refused >= 1

    run(main)


def test_a_request_that_comes_again_is_done_once():
    calls = []

    async def main():
        gate = asyncio.Event()

        async def wait(value):
            calls.append(value)
            await gate.wait()
            return value

        async with Responder(LOOPBACK, {"wait": wait}) as responder:
            async with Requester(responder.endpoint) as asks:
                asking = asyncio.create_task(asks.request("wait", 1, timeout=60, attempts_max=600))
                await eventually(lambda: asks.retries > 2)
                gate.set()
                assert await asking == 1
                assert calls == [1]
                await eventually(lambda: responder.cached >= 2)

    run(main)


def test_a_time_out_says_who_is_there_and_the_next_responder_is_asked():
    async def main():
        with socket.create_server(("127.0.0.1", 0)) as silent:
            dead = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
            async with Requester(dead) as asks:
                with pytest.raises(TimeoutError, match=r"'same': no answer within 0\.1 s, 2 asked"):
                    await asks.request("same", 1, timeout=0.1, attempts_max=2)
                assert asks.retries == 1
            async with Responder(LOOPBACK, HANDLERS) as responder:
                async with Requester([dead, responder.endpoint]) as asks:
                    assert await asks.request("same", 1, timeout=60, attempts_max=600) == 1
                    retries = asks.retries
                    assert retries >= 1
                    # Who answered is asked first.
                    assert await asks.request("same", 2, timeout=60) == 2
                    assert asks.retries == retries

    run(main)


def test_at_an_endpoint_without_a_responder_it_says_what_is_there(caplog):
    async def main():
        context = zmq.Context()
        other = context.socket(zmq.PUB)
        at = f"tcp://127.0.0.1:{other.bind_to_random_port('tcp://127.0.0.1')}"
        async with Requester(at) as asks:
            said = ""
            async with asyncio.timeout(60):
                while "PUB" not in said:
                    with pytest.raises(TimeoutError) as raised:
                        await asks.request("same", 1, timeout=1.0, attempts_max=1)
                    said = str(raised.value)
            assert "PUB" in asks.unanswered()[at]
        other.close(linger=0)
        context.term()

    run(main)
    assert "no p2pmsg responder has answered" in caplog.text


# ------------------------------------------------------------------------------------------- all


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


def test_nobody_needs_to_look_at_what_all_answer():
    async def main():
        async with Responder(LOOPBACK, HANDLERS) as responder:
            async with Requester(responder.endpoint) as asks:
                answers = asks.request_all("same", 1, deadline=60)
                async for answer in answers:
                    assert answer.value == 1
                    break
                asks.request_all("same", 2, deadline=0.01)
                await asyncio.sleep(0.05)
                assert await asks.request("same", 3) == 3
                with pytest.raises(StopAsyncIteration):
                    await anext(answers)
                assert [a.value async for a in asks.request_all("same", 4, deadline=60)] == [4]

    run(main)


# --------------------------------------------------------------------------------- cancellations


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
                assert await asks.request("same", 1) == 1
                assert responder.answered >= 31
                assert asks.strays <= strikes
                assert asks.retries == 0

    run(main)


@pytest.mark.rounds(700, 100_000)
def test_random_cancellations_disturb_no_other_and_late_answers_are_counted(rounds):
    rng = Random(23)

    async def main():
        strikes = 0
        async with Responder("inproc://randomly", HANDLERS, tasks_max=10_000) as responder:
            async with Requester(responder.endpoint) as asks:
                for number in range(rounds):
                    topic = rng.choice(("same", "square"))
                    if rng.random() < 0.5:
                        task = asyncio.create_task(asks.request(topic, number, timeout=60))
                    else:
                        task = asyncio.create_task(anext(asks.request_all(topic, number)))
                    with Strike(task, rng.randint(1, 12)) as strike:
                        await asyncio.wait([task], timeout=0.05)
                    task.cancel()
                    await asyncio.wait([task])
                    strikes += strike.struck
                    if not task.cancelled():
                        task.result()
                assert strikes > rounds / 4
                assert await asks.request("same", 1) == 1
                assert asks.retries == 0
                assert asks.strays <= rounds

    run(main)


def test_the_late_answer_to_a_cancelled_request_is_dropped_and_counted():
    async def main():
        gate = asyncio.Event()

        async def wait(value):
            await gate.wait()
            return value

        async with Responder(LOOPBACK, {"wait": wait}) as responder:
            async with Requester(responder.endpoint) as asks:
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await asks.request("wait", "first")
                second = asyncio.create_task(asks.request("wait", "second"))
                await asyncio.sleep(0.01)
                gate.set()
                assert await second == "second"
                await eventually(lambda: asks.strays == 1)

    run(main)


# ---------------------------------------------------------------------------- closing, other loops


def test_closing_wakes_all_who_wait():
    async def main():
        hang = Hang()
        async with Responder(LOOPBACK, {"hang": hang}) as responder:
            asks = Requester(responder.endpoint, pending_max=4)
            tasks = [asyncio.create_task(asks.request("hang")) for _ in range(6)]
            tasks.append(asyncio.create_task(anext(asks.request_all("hang"))))
            await eventually(lambda: hang.begun >= 4)  # the others wait until they may ask
            await asks.close()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(each) for each in ended] == [ClosedError] * 7
            with pytest.raises(ClosedError):
                await asks.request("hang")
            with pytest.raises(ClosedError):
                asks.request_all("hang")
            await asks.close()
            await responder.close(timeout=0.0)

    run(main)


def test_a_task_that_was_answered_may_close_the_requester_and_others_end():
    async def main():
        async with Responder(LOOPBACK, HANDLERS) as responder:
            asks = Requester(responder.endpoint)

            async def ask(number):
                answer = await asks.request("same", number)
                await asks.close()
                return answer

            tasks = [asyncio.create_task(ask(number)) for number in range(50)]
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            answers = [each for each in ended if isinstance(each, int)]
            assert answers
            assert {type(each) for each in ended} <= {int, ClosedError}

    run(main, debug=True)


def test_an_interrupt_in_a_task_that_was_answered_ends_the_loop_and_nothing_hangs():
    async def main():
        async with Responder(LOOPBACK, HANDLERS) as responder:
            async with Requester(responder.endpoint) as asks:

                async def ask(number):
                    await asks.request("same", number)
                    if number == 3:
                        raise KeyboardInterrupt

                await asyncio.gather(*map(ask, range(10)))

    with pytest.raises(KeyboardInterrupt):
        run(main)


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


def test_a_close_that_is_cancelled_cancels_what_is_at_work():
    begun, ended = [], []

    async def stay(_):
        begun.append(True)
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    async def main():
        async with Responder(LOOPBACK, {"stay": stay}, tasks_max=1) as responder:
            async with Requester(responder.endpoint) as asks:
                tasks = [
                    asyncio.create_task(asks.request("stay", timeout=60, attempts_max=600))
                    for _ in range(2)
                ]
                await eventually(lambda: begun and asks.retries)  # the other one waits
                closing = asyncio.create_task(responder.close())
                await asyncio.sleep(0.01)
                closing.cancel()
                await asyncio.wait([closing])
                await eventually(lambda: ended)
                for task in tasks:
                    task.cancel()

    run(main)


def test_another_loop_and_another_thread_are_refused():
    async def use(responder, asks):
        for call in (lambda: asks.request("same"), responder.serve, asks.__aenter__):
            with pytest.raises(RuntimeError, match="in another event loop"):
                await call()
        with pytest.raises(RuntimeError, match="the requester of tcp://"):
            asks.request_all("same")
        with pytest.raises(RuntimeError, match="the responder at tcp://"):
            responder.start()

    async def main():
        async with Responder(LOOPBACK, HANDLERS) as responder:
            async with Requester(responder.endpoint) as asks:
                await asyncio.to_thread(asyncio.run, use(responder, asks))
                assert await asks.request("same", 1) == 1

    run(main)
    for made in (Requester("tcp://127.0.0.1:9"), Responder(LOOPBACK)):
        with pytest.raises(RuntimeError, match="made outside of an event loop"):
            asyncio.run(made.close())
        made.close_now()


def test_a_loop_that_ends_closes_what_was_left_open_and_names_it(caplog):
    async def main():
        hang = Hang()
        responder = Responder(LOOPBACK, {"hang": hang})
        responder.start()
        asks = Requester(responder.endpoint)
        asking = asyncio.create_task(asks.request("hang"))
        await eventually(lambda: hang.begun)
        asking.cancel()

    run(main)
    assert "the requester of tcp://" in caplog.text
    assert "the responder at tcp://" in caplog.text
    assert caplog.text.count("was not closed before its event loop ended") == 2


# ------------------------------------------------------------------------------ strangers, kills


def test_malformed_requests_and_answers_are_counted():
    async def main():
        context = zmq.Context()
        stranger = context.socket(zmq.DEALER)
        async with Responder(LOOPBACK, HANDLERS) as responder:
            stranger.connect(responder.endpoint)
            for data in (b"", b"\0", b"garbage", frames.reply_frame(1, 2, 0, b"\xc0")):
                stranger.send(data)
            stranger.send(frames.request_frame(b"same", 1, 2, 3, b"\xc1"))
            await eventually(lambda: sum(responder.invalid.values()) == 5)
            async with Requester(responder.endpoint) as asks:
                assert await asks.request("same", 1) == 1
        stranger.close(linger=0)

        router = context.socket(zmq.ROUTER)
        at = f"tcp://127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}"
        async with Requester(at) as asks:
            asking = asyncio.create_task(asks.request("same", 1))
            who, data = await asyncio.to_thread(router.recv_multipart)
            request = Frame(data)
            answer = (request.session, request.sequence)
            for stray in (b"", b"x", frames.reply_frame(answer[0] ^ 1, answer[1], 0, b"\x01"),
                          frames.reply_frame(answer[0], answer[1] + 1, 0, b"\x01")):  # fmt: skip
                router.send_multipart([who, stray])
            router.send_multipart([who, frames.reply_frame(*answer, 0, b"\x05")])
            router.send_multipart([who, frames.reply_frame(*answer, 0, b"\x06")])
            assert await asking == 5
            await eventually(lambda: asks.strays == 5)
        router.close(linger=0)
        context.term()

    run(main)


SERVER = """
import asyncio, os, sys
from p2pmsg.aio.responder import Responder
async def main():
    responder = Responder(sys.argv[1], {"pid": lambda _: os.getpid()})
    print(responder.endpoint, flush=True)
    await responder.serve()
asyncio.run(main())
"""


def test_a_killed_responder_is_left_for_another_and_found_again(tmp_path):
    async def main():
        places = [f"ipc://{tmp_path}/{n}" for n in range(2)]
        servers = [await start_program(SERVER, place) for place in places]
        try:
            async with Requester(places) as asks:
                first = await asks.request("pid", timeout=60, attempts_max=120)
                which = [each.pid for each in servers].index(first)
                servers[which].kill()
                await servers[which].wait()
                second = await asks.request("pid", timeout=60, attempts_max=120)
                assert second == servers[1 - which].pid
                servers[which] = await start_program(SERVER, places[which])
                servers[1 - which].kill()
                await servers[1 - which].wait()
                again = await asks.request("pid", timeout=60, attempts_max=120)
                assert again == servers[which].pid
                assert asks.retries >= 2
        finally:
            for server in servers:
                if server.returncode is None:
                    server.kill()
                    await server.wait()

    run(main)


@pytest.mark.long
def test_a_forked_child_is_refused():
    async def main():
        async with Responder(LOOPBACK, HANDLERS) as responder:
            async with Requester(responder.endpoint) as asks:
                assert await asks.request("same", 1) == 1
                child = os.fork()
                if not child:
                    code = 1
                    try:
                        asks.request_all("same")
                    except ClosedError as error:
                        code = 0 if "parent" in str(error) else 2
                    finally:
                        os._exit(code)
                _, status = os.waitpid(child, 0)
                assert os.waitstatus_to_exitcode(status) == 0
                assert await asks.request("same", 2) == 2

    run(main)
