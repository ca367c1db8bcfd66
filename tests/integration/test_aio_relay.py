"""p2pmsg.aio.Relay, with threaded peers opposite."""

import asyncio
import contextlib
import shutil

import pytest

from p2pmsg import LogConfig
from p2pmsg.aio.relay import Relay
from p2pmsg.errors import ClosedError, LogFailedError
from tests.integration.peers import LOOPBACK, TOPIC, Collector, check_exact, check_ledger

WAIT_S = 60.0


def run(main):
    asyncio.run(asyncio.wait_for(main(), WAIT_S), debug=True)


@pytest.mark.parametrize("fsync", [None, "interval", "always"])
def test_it_serves_on_what_it_has_received(make_publisher, make_subscriber, memory_path, fsync):
    publisher = make_publisher(replay_bytes=10_000)

    async def main():
        log = LogConfig(memory_path / "log", fsync=fsync) if fsync else None
        async with Relay(publisher.endpoint, LOOPBACK, log=log) as relay:
            await asyncio.to_thread(publisher.wait_for_subscribers, 1, WAIT_S)
            await asyncio.to_thread(publisher.publish_many, TOPIC, range(30_000))
            await relay.wait_for_streams(1, WAIT_S)
            assert relay.connected == 1
            await asyncio.to_thread(publisher.close)
            for _ in range(2):
                subscriber = await asyncio.to_thread(
                    make_subscriber, relay.endpoint, start="earliest", on_gap="raise"
                )
                collector = Collector(subscriber)
                await asyncio.to_thread(collector.wait_for, 30_000)
                check_exact(collector.messages)
                check_ledger(subscriber, delivered=30_000, lost=0)
            await relay.wait_for_subscribers(2, WAIT_S)

    run(main)


def test_without_a_loop_or_in_another_one_it_is_refused(make_publisher):
    publisher = make_publisher()
    outside = Relay(publisher.endpoint, LOOPBACK, name="mine")
    with pytest.raises(RuntimeError, match="the relay 'mine' was made outside"):
        asyncio.run(outside.close())
    outside.close_now()

    async def main():
        async with Relay(publisher.endpoint, LOOPBACK) as relay:
            for call in (relay.wait_for_streams, relay.wait_for_subscribers, relay.close):
                with pytest.raises(RuntimeError):
                    await asyncio.to_thread(asyncio.run, call())

    run(main)


def test_cancelled_at_each_step_it_can_be_closed_again(make_publisher, memory_path):
    LAST = 20
    publisher = make_publisher()
    publisher.publish(TOPIC, 0)

    async def one(at):
        relay = Relay(publisher.endpoint, LOOPBACK, log=LogConfig(memory_path / "log"))
        await relay.wait_for_streams(1, WAIT_S)
        waits = asyncio.create_task(relay.wait_for_streams(9))
        calls = [relay.wait_for_streams(9), relay.wait_for_subscribers(9), relay.close()]
        for call in calls:
            task = asyncio.create_task(call)
            for _ in range(at):
                await asyncio.sleep(0)
            if at == LAST and call is calls[-1]:
                await asyncio.wait([task])
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await relay.close()
        with pytest.raises(ClosedError):
            await waits
        assert relay.stats().streams
        return not task.cancelled()

    async def main():
        closed = [await one(at) for at in range(1, LAST + 1)]
        assert closed[-1]
        assert False in closed

    run(main)


def test_a_loop_that_ends_closes_it_and_says_so(make_publisher, memory_path, caplog):
    publisher = make_publisher()
    publisher.publish(TOPIC, 0)
    kept = []

    async def main():
        relay = Relay(publisher.endpoint, LOOPBACK, name="left open",
                      log=LogConfig(memory_path / "log"))  # fmt: skip
        await relay.wait_for_streams(1, WAIT_S)
        kept.append(relay)

    for _ in range(2):
        caplog.clear()
        asyncio.run(main())
        assert [one.getMessage() for one in caplog.records] == [
            "the relay 'left open' was not closed before its event loop ended"
        ]
    assert [len(one.stats().streams) for one in kept] == [1, 1]


def test_a_log_that_takes_nothing_holds_it_up(make_publisher, memory_path, caplog):
    publisher = make_publisher()
    log = memory_path / "log"

    async def main():
        config = LogConfig(log, segment_bytes=4096)
        relay = Relay(publisher.endpoint, LOOPBACK, log=config)
        publisher.publish(TOPIC, b"x" * 100)
        await relay.wait_for_streams(1, WAIT_S)
        while log.exists():  # its metadata may be written meanwhile
            shutil.rmtree(log, ignore_errors=True)
        for _ in range(100):
            publisher.publish(TOPIC, b"x" * 1000)
        publisher.flush()
        # Where the next segment fails before the fsync does, it is tried again.
        while not any(said in caplog.text for said in ("cannot keep", "nothing new is accepted")):
            await asyncio.sleep(0.01)
        assert relay.stats().streams[relay.stats().sessions[0].session, TOPIC][1] < 101
        with pytest.raises(LogFailedError):
            await relay.close(0.0)
        await relay.close()

    run(main)
