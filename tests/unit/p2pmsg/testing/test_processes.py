"""Peers that users' own code makes, and whole apps, on a network in memory."""

import asyncio
import threading

import pytest

import p2pmsg
from p2pmsg.app import DeadLetter, Event, Retry
from p2pmsg.errors import HandlerError, RemoteError
from p2pmsg.testing import VirtualNetwork

PRICES = "tcp://prices:5560"
ORDERS = "tcp://orders:5556"


def test_requests_are_answered_over_names_that_need_not_exist():
    network = VirtualNetwork(seed=1, lossy=0.2)
    with network.process("shop"):
        responder = p2pmsg.Responder(PRICES, {"price": len}).start()
    with network.process():
        requester = p2pmsg.Requester(PRICES)
    often = {"timeout": 60.0, "attempts_max": 60}
    answers = [requester.request("price", "x" * number, **often) for number in range(20)]
    assert answers == [*range(20)]
    with pytest.raises(RemoteError, match="no handler"):
        requester.request("cost", 1, **often)
    assert responder.answered >= 20
    requester.close()
    responder.close()


def test_what_a_killed_process_was_asked_is_asked_of_the_next_one():
    network = VirtualNetwork(seed=1)
    began = []
    shop = network.process("shop")
    with shop:
        first = p2pmsg.Responder(PRICES, {"price": lambda _: began.append(1) or shop.kill()})
        first.start()
    with network.process():
        requester = p2pmsg.Requester(PRICES)
    with pytest.raises(TimeoutError):
        requester.request("price", timeout=1.0)
    with pytest.raises(p2pmsg.ClosedError, match="crashed"):
        first.start()
    with shop:
        p2pmsg.Responder(PRICES, {"price": lambda _: 5}).start()
    assert requester.request("price", timeout=1.0) == 5
    assert began == [1]


def app_of(got, threads=None):
    """Return an app with a handler of each kind; it has no tests in mind."""
    app = p2pmsg.App(stop_timeout=60.0)
    late = Retry(attempts=3, delay=5.0)
    letters = DeadLetter(publish="tcp://dead:5557", topic="dead")

    @app.subscriber(ORDERS, topics=["orders"], concurrency=3, on_error=letters)
    async def on_order(order):
        if order == "broken":
            raise ValueError(order)
        got.append(("async", order))

    @app.subscriber(ORDERS, topics=["late"], on_error=late)
    def on_late(order, event: Event):
        if threads is not None:
            threads.add(threading.current_thread().name)
        if event.attempt < 3:
            raise ValueError(order)
        got.append(("late", order))

    @app.responder(PRICES, "count")
    def count(_):
        return len(got)

    @app.timer(60.0)
    def tick():
        got.append(("tick", 60.0))

    return app


def test_an_apps_handlers_retries_timers_and_dead_letters_go_by_the_networks_time():
    network, got, threads = VirtualNetwork(seed=1, lossy=0.2), [], set()
    orders = network.publisher(ORDERS)
    with network.process():
        requester = p2pmsg.Requester(PRICES)
        dead = p2pmsg.Subscriber("tcp://dead:5557", start="earliest")
    with network.running(app_of(got, threads)):
        orders.wait_for_subscribers(2)
        orders.publish("orders", 1)
        orders.publish("orders", "broken")
        orders.publish("late", 2)
        before = network.now
        network.advance(14.9)
        assert got == [("async", 1)]
        letter = dead.receive(timeout=10.0).value
        assert (letter["value"], letter["topic"]) == ("broken", "orders")
        network.advance(15.1 - (network.now - before))
        assert got == [("async", 1), ("late", 2)]
        assert requester.request("count", timeout=60.0, attempts_max=60) == 2
        network.advance(60.0)
        assert got[2:] == [("tick", 60.0)]
    assert threads == {"p2pmsg-handler-1"}
    with pytest.raises(TimeoutError):
        requester.request("count", timeout=1.0)


def test_an_app_runs_with_tasks_too_and_again_as_before_with_the_same_seed():
    async def main(network):
        got = []
        orders = network.aio_publisher(ORDERS)
        async with network.running(app_of(got)):
            await orders.wait_for_subscribers(2)
            for number in range(50):
                orders.publish("orders", number)
                await network.sleep(0.01)
            await network.sleep(70.0)
        assert sorted(got) == [*(("async", number) for number in range(50)), ("tick", 60.0)]
        return got, network.frames.sent, network.frames.lost

    runs = [asyncio.run(main(VirtualNetwork(seed=seed, lossy=0.1))) for seed in (3, 3, 4)]
    assert runs[0] == runs[1] != runs[2]


def test_what_an_app_had_not_committed_when_it_was_killed_comes_to_the_next_one():
    network, got = VirtualNetwork(seed=1), []
    orders = network.publisher(ORDERS)
    orders.publish_many("orders", [*range(9)])

    def app():
        made = p2pmsg.App()

        @made.subscriber(ORDERS, cursor="orders", start="earliest")
        async def on_order(order):
            got.append(order)
            await network.sleep(0.1)

        return made

    with network.running(app()) as process:
        assert network.wait_until(lambda: len(got) == 4)
        process.kill()
        network.advance(1.0)
    assert got == [*range(4)]
    with network.running(app(), process):
        network.advance(2.0)
    assert 0 < got[4] <= 3
    assert got[4:] == [*range(got[4], 9)]


def test_an_apps_worker_takes_jobs_and_a_job_that_fails_comes_again_later():
    network, app, done = VirtualNetwork(seed=1, lossy=0.02), p2pmsg.App(), []
    with network.process():
        pusher = p2pmsg.Pusher("tcp://jobs:5600")

    @app.worker("tcp://jobs:5600", on_error=Retry(delay=5.0))
    def on_job(number, event: Event):
        if number == 3 and event.attempt == 1:
            raise ValueError(number)
        done.append((number, network.now))

    with network.running(app):
        for number in range(5):
            pusher.push(number)
        pusher.join(timeout=60.0)
    assert sorted(number for number, _ in done) == [*range(5)]
    assert dict(done)[3] > 5.0


@pytest.mark.parametrize("acknowledge", ["each", "batch"])
def test_jobs_of_a_killed_worker_are_done_by_another_one(acknowledge):
    network = VirtualNetwork(seed=1)
    with network.process():
        pusher = p2pmsg.Pusher("tcp://jobs:5600", acknowledge=acknowledge)
    for number in range(10):
        pusher.push(number)
    workers = [network.process(), network.process()]
    with workers[0]:
        p2pmsg.Puller("tcp://jobs:5600", acknowledge=acknowledge).receive(timeout=5.0)
    workers[0].kill()
    with workers[1]:
        puller = p2pmsg.Puller("tcp://jobs:5600", acknowledge=acknowledge)
    done = set()
    while len(done) < 10:
        job = puller.receive(timeout=120.0)
        done.add(job.value)
        if acknowledge == "each":
            job.ack()
    puller.commit()
    pusher.join(timeout=60.0)
    assert done == {*range(10)}


def test_what_ends_an_app_is_raised_at_the_end_of_the_block():
    network = VirtualNetwork(seed=1)
    app = p2pmsg.App()

    @app.timer(1.0, on_error="stop")
    def tick():
        raise ValueError("no")

    with pytest.raises(HandlerError, match="no"), network.running(app):
        network.advance(2.0)
