"""The puller for asyncio."""

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Self

from p2pmsg.aio.closing import ClosesInLoop
from p2pmsg.aio.loop import LoopDriver
from p2pmsg.aio.pipeline import PipelinePuller
from p2pmsg.aio.running import RunsJobs
from p2pmsg.aio.turns import TakesTurns
from p2pmsg.aio.waiting import SLICE_NS, Pace, Waiters, until_of
from p2pmsg.checks import check, time_to_wait
from p2pmsg.errors import ClosedError
from p2pmsg.message import T_co
from p2pmsg.queue.job import Job
from p2pmsg.queue.pipeline.config import refuse_queue_options
from p2pmsg.queue.pipeline.puller import PULLER_OPTIONS
from p2pmsg.queue.puller_base import PullerBase
from p2pmsg.sync.lifecycle import close_in_children, is_inherited

_FRAMES_PER_ROUND: Final = 8
_get_ident = threading.get_ident
_get_loop = asyncio.get_running_loop
_monotonic_ns = time.monotonic_ns


class Puller(RunsJobs[T_co], PullerBase[T_co], TakesTurns, ClosesInLoop):
    """Takes jobs from pushers, one after the other.

    ::

        async with aio.Puller("tcp://127.0.0.1:5558") as puller:
            async for job in puller:
                try:
                    async with job:     # acknowledged at the end, rejected if it raises
                        await work(job.value)
                except Exception:       # it is tried again; without this the loop would end here
                    logging.exception("job %d failed", job.sequence)

    `await puller.run(work)` does that, and stops at SIGTERM and Ctrl-C when the job in hand is
    done.

    It connects; pushers bind, and come and go as they like. It has no thread: what it has in flight
    is kept alive by the event loop, so a loop that is held up for `ack_timeout` loses its jobs to
    other workers. Several tasks may take jobs from it. A job may be settled from another thread,
    too; all else is for the loop in which it was made.

    A task that is cancelled while it waits for a job has taken none. One that is cancelled inside
    of `async with job` rejects the job, as Ctrl-C does in a thread.

    The arguments are those of `p2pmsg.Puller`.

    **Without asyncio** (trio, a loop of your own): make it where no asyncio loop runs. Then wait
    until one of `wait_fds()` is readable or `next_deadline` has come, and call `turn()`. What is to
    be awaited is begun with `begin`, as `begin(peer.close())`; at the end call `close_now()`.

    Raises:
        ConfigError: a setting is out of its limits, or an endpoint is none.
        AuthenticationError: no key is pinned for an endpoint, or another one is.

    """

    _turn_ns_max = SLICE_NS
    _frames_per_round = _FRAMES_PER_ROUND

    if not TYPE_CHECKING:  # for type checkers, the signature is that of __init__

        def __new__(cls, *arguments: Any, mode: str = "queue", **options: Any) -> Any:
            """Make a puller of the mode; a pipeline's is of a class of its own."""
            check("mode", mode, mode in ("queue", "pipeline"), 'one of "queue", "pipeline"')
            if mode == "pipeline":
                refuse_queue_options(PULLER_OPTIONS, options)
                return PipelinePuller(*arguments, **options)
            return super().__new__(cls)

        __new__.__wrapped__ = PullerBase.__init__  # for `help`, too

    # --------------------------------------------------------------------------------- public

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Job[T_co]:
        core = self._core
        ready = core.ready
        # The fast path: as `Puller.__next__` of the threads, where nobody has to be let in.
        if ready and ready[0]._detail is None and _get_loop() is self._loop:
            now_ns = _monotonic_ns()
            if now_ns < self._pace.until_ns:
                job = ready[0]
                core.open[job.delivery] = job
                job._begun_ns = now_ns
                ready.popleft()
                return job
        try:
            return await self.receive()
        except ClosedError as error:
            if is_inherited(error):
                raise
            raise StopAsyncIteration from None

    async def receive(self, timeout: float | None = None) -> Job[T_co]:
        """Return the next job; one that is cancelled meanwhile has taken none.

        Args:
            timeout: how long to wait, in seconds. Default None: without end.

        Raises:
            TimeoutError: none came in time.
            AuthenticationError: a pusher refused the connection, or does not hold the pinned key;
                once for each time that it is tried. It goes on.
            AccessDeniedError: a pusher gives us no right to `pull`, or an access file here gives it
                none to `push`; once, and every 5 s while it stays so. It goes on.
            InvalidValueError: the next one does not fit `type`, with `on_invalid="raise"`.
            ClosedError: the puller is closed.
            RuntimeError: it was made in another event loop.

        """
        self._check_usable()
        self._driver.check_loop()
        until = until_of(self._loop, timeout)
        if self._pace.is_over():
            await self._pace.rest()
        while True:
            taken: list[Job[T_co]] = []
            self._lock.run_whole(self._take, taken)
            self._wake_waiting()
            if taken and not self._fits(taken[0]):
                continue
            if taken:
                return taken[0]  # nothing is waited for from here on, so it reaches the caller
            self._keys.raise_refused()
            if not await self._waiters.wait(until):
                raise TimeoutError(f"no job came within {timeout} s")

    async def close(self, timeout: float = 1.0) -> None:
        """Give back what was not begun, reject what was, and close; who waits gets `ClosedError`.

        Args:
            timeout: how long to wait, in seconds, until the pushers have confirmed what was
                acknowledged. Default 1. As long it waits before that for the jobs that `run` has in
                hand, where another task calls that.

        """
        timeout = time_to_wait("timeout", timeout)
        if self._closed:
            return
        if not self._driver.stopping:
            self._driver.check_loop()
            await self._end_run(timeout)
        if self._closed:
            return
        self._closed = True
        self._waiters.close()
        try:
            if not self._driver.stopping:
                await self._driver.wait_for(self._is_drained, timeout)
        finally:
            self.close_now()

    def close_now(self) -> None:
        """Close without waiting for the pushers, also where its event loop has ended."""
        if self._unusable is None:
            self._closed, self._unusable = True, "it is closed"
            self._waiters.close()
            self._driver.stop()
            self._lock.run_whole(self._close_all)

    # -------------------------------------------------------------------------------- private

    def _check_caller(self) -> None:
        self._check_usable()
        self._driver.check_loop()

    def _prepare(self, endpoints: str | Sequence[str]) -> None:
        who = f"the puller of {endpoints if isinstance(endpoints, str) else ', '.join(endpoints)}"
        self._driver = LoopDriver(who, self._turn, at_loop_end=self.close_now, by_caller=True)
        self._loop = self._driver.loop
        self._thread = threading.get_ident()
        self._waiters = Waiters(self._loop)
        self._pace = Pace()

    def _begin(self) -> None:
        self._is_made = True
        close_in_children(self)
        self._driver.watch(client.fd for client in self._clients)
        self._driver.start()

    def _turn(self) -> float:
        self._pace.begin()
        wait_ms: float = self._lock.run_whole(self._background)
        self._wake_waiting()
        return wait_ms / 1000

    def _wake_waiting(self) -> None:
        if self._waiters:
            ready = sum(len(core.ready) for core in self._cores)
            self._waiters.offer(ready + self._keys.has_error)

    def _work(self, now_ns: int) -> bool:
        done = super()._work(now_ns)
        if not done:
            self._driver.wake()
        return done

    def _settled(self) -> None:
        """Report what was settled in the loop's next round, or at once where that is a lot."""
        if _get_ident() != self._thread:
            self._loop.call_soon_threadsafe(self._driver.wake)
        elif self._core.acks_waiting() >= self._flush_at:
            self._lock.run(self._flush, _monotonic_ns())
        else:
            self._driver.wake()

    def _is_drained(self) -> bool:
        return not self._lock.run_whole(self._is_unsettled)

    def _forget(self) -> None:
        """In a forked child: nothing of this is the child's."""
        PullerBase._forget(self)
        ClosesInLoop._forget(self)
