"""A pusher of asyncio and its log: restarts, slow and failing disks, kills."""

import asyncio
import json
import os
import signal
import threading
import time
from random import Random

import pytest

import p2pmsg
from p2pmsg.aio import Puller
from p2pmsg.errors import ClosedError
from p2pmsg.peers.loop.pusher import Pusher
from p2pmsg.queue.journal.file import QueueLogConfig
from p2pmsg.queue.journal.reading import read_log, segments
from recovery import platform
from tests.integration.aio import run
from tests.integration.aio_peers import FAST, a_queue, eventually, start_program
from tests.integration.peers import LOOPBACK


@pytest.mark.parametrize("fsync", ["interval", "always", "never"])
def test_a_restart_on_the_log_goes_on_with_what_is_left(fsync, tmp_path):
    log = QueueLogConfig(directory=tmp_path / "log", fsync=fsync)

    async def first():
        async with Pusher(LOOPBACK, log=log, config=FAST) as pusher:
            async with Puller(pusher.endpoint) as puller:
                for number in range(20):
                    pusher.push(number)
                    await pusher.drain()
                for _ in range(5):
                    async with await puller.receive(timeout=60):
                        pass
                await eventually(lambda: pusher.stats().done == 5)
            return pusher.session

    async def second():
        done = []
        async with a_queue(log=log, config=FAST) as (pusher, puller):
            assert pusher.stats().restored == 15
            while len(done) < 15:
                async with await puller.receive(timeout=60) as job:
                    done.append(job.value)
            await pusher.join(timeout=60)
            return pusher.session, done

    session = run(first)
    again, done = run(second)
    assert again == session
    assert sorted(done) == list(range(5, 20))


def test_it_is_used_only_when_it_is_open(tmp_path):
    async def main():
        pusher = Pusher(LOOPBACK, log=tmp_path)
        for use in (pusher.stats, pusher.dead_letters, lambda: pusher.push(1)):
            with pytest.raises(ClosedError, match="not open yet"):
                use()
        with pytest.raises(ClosedError, match="not open yet"):
            await pusher.drain()
        both = await asyncio.gather(pusher.open(), pusher.open())
        assert both == [pusher, pusher]
        assert not pusher.endpoint.endswith(":0")
        async with Pusher(LOOPBACK) as other:
            with pytest.raises(p2pmsg.BindError):
                Pusher(other.endpoint)
        with pytest.raises(p2pmsg.errors.LogInUseError):
            await Pusher(LOOPBACK, log=tmp_path).open()
        await pusher.close()
        await Pusher(LOOPBACK, log=tmp_path).close()
        closed = Pusher(LOOPBACK, log=tmp_path)
        await closed.close()
        with pytest.raises(ClosedError):
            await closed.open()

    run(main)


def slow_disk(monkeypatch, seconds):
    former = platform.sync_data

    def sync_data(fd):
        time.sleep(seconds)
        former(fd)

    monkeypatch.setattr(platform, "sync_data", sync_data)


@pytest.mark.internal
@pytest.mark.parametrize("fsync", ["interval", "always"])
def test_a_slow_disk_holds_up_no_other_task(monkeypatch, memory_path, fsync):
    log = QueueLogConfig(directory=memory_path, fsync=fsync)
    threads = set()

    async def main():
        async with a_queue(log=log) as (pusher, puller):
            slow_disk(monkeypatch, 0.2)
            former = platform.sync_data

            def note(fd):
                threads.add(threading.get_ident())
                former(fd)

            monkeypatch.setattr(platform, "sync_data", note)
            ticks = 0

            async def tick():
                nonlocal ticks
                while True:
                    await asyncio.sleep(0.001)
                    ticks += 1

            ticking = asyncio.create_task(tick())
            for number in range(20):
                pusher.push(number)
            await pusher.drain(timeout=60)
            for _ in range(20):
                async with await puller.receive(timeout=60):
                    pass
            await pusher.join(timeout=60)
            await asyncio.sleep(0.05)
            ticking.cancel()
            await asyncio.wait([ticking])
            # One turn that had waited for the disk would have cost 200 of these.
            assert ticks >= 5
        assert threading.get_ident() not in threads
        assert threads

    run(main)


@pytest.mark.parametrize("fsync", ["always", "never"])
def test_old_segments_are_emptied_while_others_run_and_no_job_is_forgotten(fsync, memory_path):
    log = QueueLogConfig(directory=memory_path, fsync=fsync, segment_bytes=4096)
    config = p2pmsg.queue.PusherConfig(in_flight_max=100_000)
    kept = set()

    async def first():
        async with a_queue(log=log, config=config, prefetch=64) as (pusher, puller):
            held = []
            for number in range(450):
                pusher.push([number, "x" * 50])
                await pusher.drain()
                job = await puller.receive(timeout=60)
                if number % 30 == 0:
                    held.append(job)
                else:
                    job.ack()
            kept.update(job.value[0] for job in held)
            await eventually(lambda: pusher.stats().in_flight == len(held))
            # 450 jobs are some 20 segments; what is of use fits into one.
            await eventually(lambda: len(segments(memory_path)) <= 5)

    async def second():
        async with a_queue(log=log, config=config) as (pusher, puller):
            for _ in range(pusher.stats().restored):
                async with await puller.receive(timeout=60) as job:
                    kept.remove(job.value[0])
            await pusher.join(timeout=60)

    run(first)
    assert len(kept) == 15
    run(second)
    assert not kept


@pytest.mark.internal
def test_with_fsync_always_drain_means_on_the_disk_and_workers_wait_for_it(
    monkeypatch, memory_path
):
    log = QueueLogConfig(directory=memory_path, fsync="always")
    gate, former = threading.Event(), platform.sync_data

    def sync_data(fd):
        assert gate.wait(60)
        former(fd)

    async def main():
        async with a_queue(log=log) as (pusher, puller):
            await eventually(lambda: puller.connected)
            monkeypatch.setattr(platform, "sync_data", sync_data)
            try:
                pusher.push("job")
                assert [job.sequence for job in read_log(memory_path).open.values()] == [0]
                draining = asyncio.create_task(pusher.drain())
                with pytest.raises(TimeoutError):
                    await puller.receive(timeout=0.05)
                with pytest.raises(TimeoutError, match=r"not on the disk within 0\.01 s"):
                    await pusher.drain(timeout=0.01)
                assert not draining.done()
            finally:
                gate.set()
            await draining
            async with await puller.receive(timeout=60) as job:
                assert job.value == "job"
            await pusher.join(timeout=60)

    run(main)


PUSHER = """
import asyncio, json, os, sys
from p2pmsg.aio import Puller
from p2pmsg.peers.loop.pusher import Pusher
from p2pmsg.queue.journal.file import QueueLogConfig
async def work(puller):
    async for job in puller:
        if job.sequence % 10 == 0:
            job.reject(delay=3000)
        else:
            os.write(1, json.dumps([job.sequence, None]).encode() + b"\\n")
            job.ack()
async def main():
    log = QueueLogConfig(directory=sys.argv[1], fsync=sys.argv[2], segment_bytes=16384)
    async with (
        Pusher("inproc://q", log=log, in_flight_max=1_000_000) as pusher,
        Puller(pusher.endpoint) as puller,
    ):
        print(pusher.stats().restored, flush=True)
        if len(sys.argv) > 4:
            task = asyncio.create_task(work(puller))
        number = int(sys.argv[3])
        while True:
            sequence = pusher.push([number, "x" * 50])
            if sys.argv[2] == "always":
                await pusher.drain()
            os.write(1, json.dumps([sequence, number]).encode() + b"\\n")
            number += 1
            if number % 10 == 0:
                await asyncio.sleep(0)
asyncio.run(main())
"""


async def push_until_killed(folder, fsync, begin, seen, *more):
    """Let a process push, and kill it after so many lines; return what it said: sequence, value."""
    process = await start_program(PUSHER, folder, fsync, begin, *more)
    async with asyncio.timeout(60):
        said = [await process.stdout.readline() for _ in range(seen)]
        os.kill(process.pid, signal.SIGKILL)
        said += (await process.stdout.read()).splitlines(keepends=True)
        await process.wait()
    return [json.loads(line) for line in said if line.endswith(b"\n")]


@pytest.mark.parametrize("fsync", ["interval", "always"])
@pytest.mark.rounds(2, 60)
def test_what_push_returned_outlives_a_killed_pusher(fsync, memory_path, rounds):
    rng = Random(5)

    async def main():
        returned = {}
        for begin in range(0, rounds * 1_000_000, 1_000_000):
            seen = rng.randint(1, 300)
            for sequence, number in await push_until_killed(memory_path, fsync, begin, seen):
                assert sequence not in returned
                returned[sequence] = number
        found = {}
        log = QueueLogConfig(directory=memory_path, fsync=fsync)
        config = p2pmsg.queue.PusherConfig(in_flight_max=10_000_000)
        async with a_queue(log=log, config=config, prefetch=4096) as (pusher, puller):
            async for job in puller:
                async with job:
                    found[job.sequence] = job.value[0]
                if len(found) == pusher.stats().restored:
                    break
            await pusher.join(timeout=60)
        assert returned.items() <= found.items()
        assert len(set(found.values())) == len(found)

    run(main)
