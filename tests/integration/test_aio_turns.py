"""Asyncio's peers where no loop of asyncio runs: driven by trio."""

import importlib
import importlib.util
import time

import pytest

from p2pmsg import aio
from p2pmsg.errors import ClosedError
from p2pmsg.queue import QueueLogConfig
from tests.integration.peers import LOOPBACK, TOPIC


def check_closed(peer):
    assert peer.wait_fds() == []
    with pytest.raises(ClosedError):
        peer.turn()
    with pytest.raises(ClosedError):
        peer.begin(peer.close())


def test_in_trio(memory_path):
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
            log = QueueLogConfig(directory=memory_path, fsync="always")
            pusher = run(aio.Pusher(LOOPBACK, log=log))
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
                    check_closed(peer)

    trio.run(main)
