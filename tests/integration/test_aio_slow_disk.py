"""A disk that takes its time, in an event loop: no turn is taken in vain meanwhile."""

import asyncio
import os
import threading

import pytest

from p2pmsg import aio
from tests.integration import inside

TURNS_MAX = 300
"""More than are due in 0.3 s; where each turn asks for the next one there are thousands."""


@pytest.mark.parametrize("kind", [aio.Publisher, aio.Pusher])
def test_no_turn_is_due_for_what_is_on_its_way_to_the_disk(kind, tmp_path, monkeypatch):
    begun, over, fdatasync = threading.Event(), threading.Event(), os.fdatasync

    def slow(fd):
        begun.set()
        assert over.wait(60)
        fdatasync(fd)

    def accept(peer):
        if kind is aio.Publisher:
            peer.publish("a", 1)
        else:
            peer.push(1)

    async def main():
        async with kind("tcp://127.0.0.1:0", log=tmp_path) as peer:
            monkeypatch.setattr(os, "fdatasync", slow)
            accept(peer)
            while not begun.is_set():
                await asyncio.sleep(0.01)
            accept(peer)  # it is due while the first one is on its way
            await asyncio.sleep(0.2)
            turns = inside.count_turns(peer)
            await asyncio.sleep(0.3)
            over.set()
            if kind is aio.Pusher:
                await peer.close(0)
            return len(turns)

    assert asyncio.run(main()) < TURNS_MAX
