"""A pusher of asyncio and its log: opening, old segments, and what waits for the disk."""

import asyncio
import threading

import pytest

import p2pmsg
from p2pmsg.peers.loop.pusher import Pusher
from p2pmsg.queue import QueueLogConfig
from p2pmsg.queue.journal.file import read_log
from recovery import platform
from tests.integration.aio import run
from tests.integration.aio_peers import a_queue, eventually
from tests.integration.peers import LOOPBACK
from tests.queues import segments, small_segments


def test_who_opens_what_another_one_has_is_refused(tmp_path):
    async def main():
        async with await Pusher.open(LOOPBACK, log=tmp_path) as pusher:
            with pytest.raises(p2pmsg.BindError):
                Pusher(pusher.endpoint)
            with pytest.raises(p2pmsg.errors.LogInUseError):
                await Pusher.open(LOOPBACK, log=tmp_path)
        await (await Pusher.open(LOOPBACK, log=tmp_path)).close()

    run(main)


@pytest.mark.parametrize("fsync", ["always", "never"])
def test_old_segments_are_emptied_while_others_run_and_no_job_is_forgotten(fsync, memory_path):
    log = QueueLogConfig(directory=memory_path, fsync=fsync)
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

    with small_segments(4096):
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
