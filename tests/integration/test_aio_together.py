"""Asyncio's peers among others: forked children, publishers that are killed, peers of threads."""

import asyncio
import signal
import subprocess
import sys

import pytest

import p2pmsg
from p2pmsg import aio
from tests.endpoints import lasting_endpoint
from tests.integration.peers import LOOPBACK, TOPIC

DEADLINE_S = 60.0
PUBLISHER = """
import sys, time, p2pmsg
with p2pmsg.Publisher(sys.argv[1], log=p2pmsg.LogConfig(sys.argv[2])) as publisher:
    for value in range(int(sys.argv[3]), int(sys.argv[4])):
        publisher.publish("trades", value)
    print(publisher.endpoint, flush=True)
    time.sleep(600)
"""


def start_publisher(endpoint, folder, start, stop):
    command = [sys.executable, "-c", PUBLISHER, endpoint, folder, str(start), str(stop)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline().strip()


@pytest.mark.parametrize("on_gap", [pytest.param("wait", marks=pytest.mark.long), "raise"])
def test_a_publisher_that_is_killed_within_async_for_goes_on(tmp_path, on_gap):
    folder, running = str(tmp_path / "log"), []

    async def main():
        process, endpoint = start_publisher(lasting_endpoint(), folder, 0, 500)
        running.append(process)
        got = []
        options = {"type": int, "cursor": tmp_path / "cursor", "commit": "message"}
        if on_gap == "raise":
            options["on_gap"] = "raise"
        async with asyncio.timeout(DEADLINE_S):
            async with aio.Subscriber(endpoint, start="earliest", **options) as subscriber:
                async for message in subscriber:
                    got.append(message.value)
                    if len(got) == 300:
                        process.send_signal(signal.SIGKILL)
                        process.wait()
                        running.append(start_publisher(endpoint, folder, 500, 1000)[0])
                    if len(got) == 1000:
                        break
        assert got == [*range(1000)]

    try:
        asyncio.run(main())
    finally:
        for process in running:
            process.kill()
            process.wait()
            process.stdout.close()


def test_a_slow_reader_of_a_loop_and_peers_of_threads_lose_nothing():
    async def main():
        with p2pmsg.Publisher(LOOPBACK) as publisher:
            with p2pmsg.Subscriber(publisher.endpoint) as other:
                async with aio.Subscriber(publisher.endpoint) as subscriber:
                    await asyncio.to_thread(publisher.wait_for_subscribers, 2, DEADLINE_S)
                    publisher.publish_many(TOPIC, range(20_000))
                    got = []
                    while len(got) < 20_000:
                        batch = await subscriber.receive_many(1000, DEADLINE_S)
                        got.extend(batch.values)
                        await asyncio.sleep(0.005)
                    assert got == [*range(20_000)]
                    read = []
                    while len(read) < 20_000:
                        read.extend(other.receive_many(timeout=DEADLINE_S).values)
                    assert read == got

    asyncio.run(main())
