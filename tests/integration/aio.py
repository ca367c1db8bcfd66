"""For tests of `p2pmsg.aio`: event loops, and cancelling at a chosen step of one."""

import asyncio
import contextlib
import importlib
import importlib.util
import threading

import pytest

import p2pmsg
from p2pmsg.driver.peer import Peer
from tests.integration import inside
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


class _Iterator:
    """Like the threaded one's, it goes on after an exception."""

    def __init__(self, source, inner):
        self._source, self._inner, self._rest = source, inner, []

    def __iter__(self):
        return self

    def __next__(self):
        if not self._rest:
            try:
                self._rest = self._source._call(self._step)
            except StopAsyncIteration:
                raise StopIteration from None
        return self._rest.pop()

    async def _step(self):
        """Return the next message, last, after some that are there for certain."""
        found = [await anext(self._inner)]
        if self._source.reads_ahead and inside.iterates_plainly(self._source):
            while len(found) < 500 and inside.has_active(self._source):
                found.append(await anext(self._inner))
        return found[::-1]


SHELLS = ["threads", pytest.param("asyncio", marks=pytest.mark.long)]
"""What tests of both shells run over; that of asyncio in the long run."""


@pytest.fixture(params=SHELLS)
def shell(request):
    """Import it into a module whose subscribers are to run in both shells."""
    return request.param


class InLoop:
    """A subscriber of asyncio, in a loop in a thread of its own, called as the threaded one.

    So one set of tests is for both.

    `reads_ahead`: an iterator fetches all that is decoded at once, since each fetch takes 0.1 ms.
    """

    reads_ahead = False

    def __init__(self, *arguments, **options):
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        try:
            self._inner = self._call(self._make, arguments, options)
        except BaseException:
            self._stop()
            raise

    def __iter__(self):
        return _Iterator(self, self._call(self._begin))

    def receive(self, timeout=None):
        return self._call(self._inner.receive, timeout)

    def receive_many(self, count_max=65_536, timeout=None):
        return self._call(self._inner.receive_many, count_max, timeout)

    def commit(self, message=None):
        self._call(self._inner.commit, message)

    def close(self):
        if threading.current_thread() is self._thread:  # by a callable of the application
            self._inner.close_now()
        elif not self._loop.is_closed():
            try:
                self._call(self._inner.close)
            finally:
                self._stop()

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if not self._loop.is_closed():
            try:
                self._call(self._inner.__aexit__, kind, error, trace)
            finally:
                self._stop()

    def __getattr__(self, name):
        return getattr(self._inner, name)

    async def _make(self, arguments, options):
        return p2pmsg.aio.Subscriber(*arguments, **options)

    async def _begin(self):
        return aiter(self._inner)

    def _call(self, function, *arguments):
        if self._loop.is_closed():
            raise p2pmsg.ClosedError("the subscriber")
        return asyncio.run_coroutine_threadsafe(function(*arguments), self._loop).result()

    def _stop(self):
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()
