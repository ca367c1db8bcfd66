"""For tests of `p2pmsg.aio`: event loops, and cancelling at a chosen step of one."""

import asyncio
import contextlib
import importlib
import importlib.util

import pytest

import p2pmsg
from p2pmsg.driver.peer import Peer
from tests.integration.peers import LOOPBACK

LOOPS = ("asyncio", "uvloop")


def run(main, loop="asyncio", *, debug=False):
    """Run a coroutine function as `asyncio.run`, in this kind of loop; skip where it is missing."""
    factory = None
    if loop == "uvloop":
        if importlib.util.find_spec("uvloop") is None:
            pytest.skip("uvloop is not there")
        factory = importlib.import_module("uvloop").new_event_loop
    with asyncio.Runner(debug=debug, loop_factory=factory) as runner:
        return runner.run(main())


def count_turns(monkeypatch, kind):
    """Return a list that gets an entry for each turn that a peer of this kind takes."""
    name = "turn" if issubclass(kind, Peer) else "_turn"
    turns, turn = [], getattr(kind, name)

    def counted(self, *now_ns):
        turns.append(1)
        return turn(self, *now_ns)

    monkeypatch.setattr(kind, name, counted)
    return turns


@contextlib.asynccontextmanager
async def connected(endpoint=LOOPBACK, *, publisher=None, **options):
    """Have a threaded publisher and a subscriber of this loop that has joined it."""
    made = p2pmsg.Publisher(endpoint, **publisher or {})
    try:
        async with p2pmsg.aio.Subscriber(made.endpoint, **options) as subscriber:
            await asyncio.to_thread(made.wait_for_subscribers, 1, 60)
            yield made, subscriber
    finally:
        made.close(timeout=0.0)


class Strike:
    """Cancels a task after the n-th step of the loop: of any callback, timer or task."""

    def __init__(self, task, number):
        self._task = task
        self._left = number
        self._former = asyncio.Handle._run
        self.struck = False

    def __enter__(self):
        def run_and_strike(handle):
            self._former(handle)
            self._left -= 1
            if self._left == 0:
                self.struck = self._task.cancel()

        asyncio.Handle._run = run_and_strike
        return self

    def __exit__(self, *_):
        asyncio.Handle._run = self._former
