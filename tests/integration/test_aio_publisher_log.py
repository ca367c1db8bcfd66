"""What the log of a p2pmsg.aio.Publisher does in the executor, so that the loop goes on."""

import asyncio
import os
import threading
import time

import pytest

from p2pmsg import LogConfig
from p2pmsg.aio.publisher import Publisher
from recovery import platform
from recovery.log import LogReader
from tests.integration.peers import LOOPBACK, TOPIC
from tests.integration.test_aio_publisher import run


def note_syncs(monkeypatch, threads):
    """Note which threads force anything to the disk from now on."""

    def noted(call):
        def sync(fd):
            threads.add(threading.get_ident())
            call(fd)

        return sync

    monkeypatch.setattr(platform, "sync_data", noted(platform.sync_data))
    monkeypatch.setattr(os, "fsync", noted(os.fsync))


@pytest.mark.parametrize("options", [{}, {"acknowledge": "synced"}, {"fsync": "always"}], ids=str)
def test_a_log_is_forced_to_the_disk_by_no_thread_of_a_loop(monkeypatch, memory_path, options):
    """Neither what was published, nor the sequences that are reserved ahead meanwhile."""
    log = LogConfig(memory_path / "log", reserve=400, fsync_interval=0.005, **options)
    threads, marks = set(), set()

    async def main():
        async with Publisher(LOOPBACK, log=log) as publisher:
            publisher.publish(TOPIC, 0)
            await publisher.drain()
            note_syncs(monkeypatch, threads)
            state = publisher._core.log._writer._state
            for number in range(1, 150):
                for _ in range(20):
                    publisher.publish(TOPIC, number)
                await publisher.drain()
                await asyncio.sleep(0.006)
                marks.add(state.marks.get(TOPIC))
            monkeypatch.undo()
        assert threads
        assert threading.get_ident() not in threads
        assert len(marks) > 2 or options  # with these no sequences are reserved

    run(main)


@pytest.mark.parametrize("options", [{}, {"fsync": "never"}, {"fsync": "always"}], ids=str)
def test_old_segments_are_given_back_and_deleted_by_no_thread_of_a_loop(
    monkeypatch, memory_path, options
):
    """What a full segment had reserved, the state that retention writes, and what it deletes."""
    log = LogConfig(
        memory_path / "log", segment_bytes=2**21, retention_bytes=2**22, fsync_interval=0.01,
        **options,
    )  # fmt: skip
    here, calls = threading.get_ident(), set()
    value = bytes(2**16)

    def noted(name, call):
        def made(*arguments, **named):
            calls.add((name, threading.get_ident() == here))
            time.sleep(0.002)  # as a slow disk
            return call(*arguments, **named)

        return made

    def is_short(publisher):
        return publisher.stats().log.bytes <= log.retention_bytes + log.segment_bytes

    async def main():
        async with Publisher(LOOPBACK, log=log) as publisher:
            publisher.publish("rare", 0)  # of which the oldest segment alone says where it goes on
            await publisher.drain()
            monkeypatch.setattr("p2pmsg.publisher.log.EXPIRE_NS", 1_000_000)
            for name in ("fsync", "ftruncate", "unlink"):
                monkeypatch.setattr(os, name, noted(name, getattr(os, name)))
            for _ in range(5):
                for _ in range(32):
                    publisher.publish(TOPIC, value)
                await publisher.drain()
                while publisher.stats().log.bytes > log.retention_bytes:
                    await asyncio.sleep(0.01)
            while not ({("ftruncate", False), ("unlink", False)} <= calls and is_short(publisher)):
                await asyncio.sleep(0.01)
            monkeypatch.undo()
            # An fsync there is of the state at least.
            assert calls == {("fsync", False), ("ftruncate", False), ("unlink", False)}
            assert publisher.publish("rare", 1) == 1

        reader = LogReader(memory_path / "log")
        assert [kept.start for kept in reader.follow(reader.session, "rare", 0)] == [1]

    run(main)


def test_a_task_that_leaves_the_loop_no_round_fills_no_disk_and_waits_for_none(
    monkeypatch, memory_path
):
    log = LogConfig(memory_path / "log", segment_bytes=2**16, retention_bytes=2**17)
    here, forced, sizes = threading.get_ident(), set(), []

    async def main():
        async with Publisher(LOOPBACK, log=log) as publisher:
            publisher.publish(TOPIC, 0)
            await publisher.drain()
            note_syncs(monkeypatch, forced)
            for number in range(300):
                publisher.publish_many(TOPIC, [bytes(1000)] * 20)
                sizes.append(publisher.stats().log.bytes)
                if number == 200:
                    await asyncio.sleep(0)  # the executor may begin with what it does
            monkeypatch.undo()

    run(main)
    frame_bytes = 21_000
    assert max(sizes) <= log.retention_bytes + log.segment_bytes + frame_bytes
    assert here not in forced
