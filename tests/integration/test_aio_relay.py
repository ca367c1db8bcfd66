"""p2pmsg.aio.Relay, with threaded peers opposite."""

import asyncio

import pytest

from p2pmsg import LogConfig
from p2pmsg.peers.loop.relay import Relay
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
