"""Responders of all kinds, and requests whose requesters have stopped waiting."""

import asyncio
import time

import pytest
import zmq

import p2pmsg
from p2pmsg import aio
from p2pmsg.requests import frames
from p2pmsg.wire import Frame
from tests.integration.peers import eventually
from tests.integration.test_app import app, serve
from tests.integration.test_requests import make_requester, make_responder

__all__ = ["app", "make_requester", "make_responder"]


def give_up_on(endpoint, count):
    """Ask so often at once, with a time-out of 0.1 s, and once more for which there is time."""

    async def main():
        async with aio.Requester(endpoint) as asks:
            given_up = await asyncio.gather(
                *(asks.request("slow", n, timeout=0.1, attempts_max=1) for n in range(count)),
                return_exceptions=True,
            )
            assert sum(isinstance(each, TimeoutError) for each in given_up) > count // 2
            await asks.request("slow", count, timeout=60)

    asyncio.run(main())


def test_what_nobody_waits_for_is_not_begun(make_responder, make_requester):
    """A responder worked 9 s on 100 requests whose requesters had waited for 1 s."""

    def slow(value):
        time.sleep(0.02)
        return value

    responder = make_responder({"slow": slow})
    while not responder.stats().expired:  # a machine may be too slow to send them in time
        give_up_on(responder.endpoint, 60)
    assert make_requester(responder.endpoint).request("slow", "new", timeout=60) == "new"


def test_a_request_that_does_not_say_how_long_it_waits_is_done(make_responder):
    """The frame's count is 0."""

    def ask():
        with zmq.Context() as context, context.socket(zmq.DEALER) as other:
            other.set(zmq.LINGER, 0)
            other.connect(responder.endpoint)
            for number in range(5):
                other.send(frames.request_frame(b"slow", 1, number, 0, b"\x07"))
            for number in range(5):
                assert other.poll(60_000)
                assert Frame(other.recv()).sequence == number

    def slow(value):
        time.sleep(0.005)
        return value

    responder = make_responder({"slow": slow})
    ask()
    eventually(lambda: responder.stats().answered == 5)
    assert responder.stats().expired == 0


def test_a_request_that_waited_for_its_turn_and_is_over_is_not_handled(app, endpoint):
    worked, answers, gate = [], [], asyncio.Event()

    @app.responder(endpoint, "slow", concurrency=1)
    async def slow(value):
        worked.append(value)
        await gate.wait()
        return value

    @app.responder(endpoint, "other", concurrency=20)
    async def other(value):
        await asyncio.sleep(0.3)  # the time-outs of what waits for `slow`, from their receipt
        gate.set()

    async def feed():
        async with aio.Requester(endpoint) as asks:
            given_up = await asyncio.gather(
                *(asks.request("slow", n, timeout=0.1, attempts_max=1) for n in range(10)),
                return_exceptions=True,
            )
            assert {type(each) for each in given_up} == {TimeoutError}
            await asks.request("other", timeout=60)
            answers.append(await asks.request("slow", "new", timeout=60))
        app.stop()

    async def start():
        feeding.append(asyncio.get_running_loop().create_task(feed()))

    feeding = []
    app.on_start(start)
    serve(app)

    feeding[0].result()
    assert answers == ["new"]
    assert worked in ([0, "new"], ["new"])  # not sent, where a machine takes 0.1 s for it


@pytest.fixture
def silent():
    """A socket that answers nothing, and a function that counts what came there."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.rcvhwm = 0
        port = router.bind_to_random_port("tcp://127.0.0.1")

        def count():
            found = 0
            while router.poll(500):
                router.recv_multipart()
                found += 1
            return found

        yield f"tcp://127.0.0.1:{port}", count


def test_a_request_cannot_fill_the_queue_of_its_connection(silent):
    """One with 100,000 attempts filled it, and lost the answer when it connected again."""
    endpoint, count = silent
    with p2pmsg.Requester(endpoint) as asks, pytest.raises(TimeoutError):
        asks.request("t", timeout=0.5, attempts_max=100_000)
    assert count() <= 1000


def test_an_attempt_whose_time_has_passed_is_left_out(silent):
    endpoint, count = silent
    with p2pmsg.Requester(endpoint) as asks:

        def comes():
            with pytest.raises(TimeoutError):
                asks.request("t", timeout=0.5, attempts_max=1)
            return count()

        eventually(comes)  # it is connected then
        with pytest.raises(TimeoutError):
            asks.request("t", timeout=0.001, attempts_max=1000)
        assert count() < 1000
