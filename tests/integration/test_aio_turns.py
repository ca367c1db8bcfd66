"""Asyncio's peers where no loop of asyncio runs: driven by `poll`, and by trio."""

import contextlib
import importlib
import importlib.util
import select
import time

import pytest

import p2pmsg
from p2pmsg import aio
from p2pmsg.errors import ClosedError
from tests.integration.peers import LOOPBACK, TOPIC

DEADLINE_S = 60.0


class ByPoll:
    """Drives peers by `poll`, each by itself."""

    def __init__(self):
        self.peers = []

    def turn(self, is_over):
        wait_s = 0.05
        poll = select.poll()
        for peer in self.peers:
            with contextlib.suppress(ClosedError):
                wait_s = min(wait_s, peer.turn())
            for fd in peer.wait_fds():
                poll.register(fd, select.POLLIN)
            if peer.wait_fds():
                wait_s = min(wait_s, max(0.0, peer.next_deadline - time.monotonic()))
        if wait_s > 0 and not is_over():
            poll.poll(1000 * wait_s)

    def run(self, peer, call):
        """Return what a call of this peer returns, and drive all meanwhile."""
        task = peer.begin(call)
        self.until(task.done)
        return task.result()

    def until(self, condition):
        until = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < until, "the condition did not come true"
            self.turn(condition)


@pytest.fixture
def driver():
    made = ByPoll()
    yield made
    for peer in made.peers:
        peer.close_now()


def add(driver, peer):
    driver.peers.append(peer)
    return peer


def test_a_publisher_and_a_relay(driver):
    publisher = add(driver, aio.Publisher(LOOPBACK))
    relay = add(driver, aio.Relay(publisher.endpoint, LOOPBACK))
    driver.run(publisher, publisher.wait_for_subscribers(1, 60))
    with p2pmsg.Subscriber(relay.endpoint, topics=[TOPIC], start="earliest") as subscriber:
        for value in range(500):
            publisher.publish(TOPIC, value)
        driver.run(publisher, publisher.drain())
        driver.run(relay, relay.wait_for_streams(1, 60))
        got = []

        def is_all():
            with contextlib.suppress(TimeoutError):
                got.extend(subscriber.receive_many(timeout=0).values)
            return len(got) == 500

        driver.until(is_all)
        assert got == [*range(500)]
        driver.run(publisher, publisher.close(1))
    driver.run(relay, relay.close(1))
    for peer in (publisher, relay):
        assert peer.wait_fds() == []
        with pytest.raises(ClosedError):
            peer.turn()
        with pytest.raises(ClosedError):
            peer.begin(peer.close())


@pytest.mark.parametrize("has_log", [False, True])
def test_a_pusher_and_a_puller(driver, tmp_path, has_log):
    log = p2pmsg.queue.QueueLogConfig(directory=tmp_path, fsync="always") if has_log else None
    pusher = add(driver, aio.Pusher(LOOPBACK, log=log))
    driver.run(pusher, pusher.open())
    puller = add(driver, aio.Puller(pusher.endpoint))
    for value in range(100):
        pusher.push(value)
        driver.run(pusher, pusher.drain(60))
    got = []

    async def work():
        async for job in puller:
            async with job:
                got.append(job.value)

    working = puller.begin(work())
    driver.run(pusher, pusher.join(60))
    assert got == [*range(100)]
    driver.run(puller, puller.close())
    driver.until(working.done)
    driver.run(pusher, pusher.close())


def test_in_trio():
    if importlib.util.find_spec("trio") is None:
        pytest.skip("trio is not there")
    trio = importlib.import_module("trio")

    async def wait_for_one(fd, cancel):
        await trio.lowlevel.wait_readable(fd)
        cancel()

    async def take_turns(peer):
        while True:
            try:
                while peer.turn() <= 0:
                    await trio.lowlevel.checkpoint()
            except ClosedError:
                return
            with trio.move_on_after(max(0.0, peer.next_deadline - time.monotonic())):
                async with trio.open_nursery() as nursery:
                    for fd in peer.wait_fds():
                        nursery.start_soon(wait_for_one, fd, nursery.cancel_scope.cancel)

    async def outcome(peer, call):
        task, done = peer.begin(call), trio.Event()
        task.add_done_callback(lambda _: done.set())
        await done.wait()
        return task.result()

    async def main():
        async with trio.open_nursery() as nursery:

            def run(peer):
                nursery.start_soon(take_turns, peer)
                return peer

            responder = run(aio.Responder(LOOPBACK, {"square": lambda n: n * n}))
            responder.start()
            requester = run(aio.Requester(responder.endpoint))
            pusher = run(aio.Pusher(LOOPBACK))
            puller = run(aio.Puller(pusher.endpoint))
            publisher = run(aio.Publisher(LOOPBACK))
            relay = run(aio.Relay(publisher.endpoint, LOOPBACK))
            with trio.fail_after(60):
                assert await outcome(requester, requester.request("square", 5, timeout=60)) == 25
                pusher.push("a job")
                job = await outcome(puller, puller.receive(60))
                assert job.value == "a job"
                job.ack()
                await outcome(pusher, pusher.join(60))
                await outcome(publisher, publisher.wait_for_subscribers(1, 60))
                publisher.publish(TOPIC, 1)
                await outcome(relay, relay.wait_for_streams(1, 60))
                for peer in (requester, responder, puller, pusher, publisher, relay):
                    await outcome(peer, peer.close(0.5))

    trio.run(main)
