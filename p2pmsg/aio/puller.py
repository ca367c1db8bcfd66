"""The puller for asyncio."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Self

from p2pmsg.aio.closing import ClosesInLoop
from p2pmsg.aio.loop import LoopDriver
from p2pmsg.aio.running import TaskRun
from p2pmsg.aio.turns import TakesTurns
from p2pmsg.aio.waiting import SLICE_NS, Pace, Waiters, until_of
from p2pmsg.checks import time_to_wait
from p2pmsg.driver.lifecycle import close_in_children, is_inherited
from p2pmsg.driver.stop_signals import StopSignals
from p2pmsg.errors import ClosedError
from p2pmsg.message import T_co
from p2pmsg.queue.each_taker import EachTaker
from p2pmsg.queue.job import Job
from p2pmsg.queue.puller_base import PullerBase
from p2pmsg.queue.running import OnError, check_run
from p2pmsg.subscriber.typed import Misfit

_FRAMES_PER_ROUND: Final = 8
_get_ident = threading.get_ident
_get_loop = asyncio.get_running_loop
_monotonic_ns = time.monotonic_ns


class Puller(PullerBase[T_co], TakesTurns, ClosesInLoop):
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
    other workers. Several tasks may take jobs from it. A job may be acknowledged in another
    thread, too; all else is for the loop in which it was made.

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

    _run: "TaskRun | None" = None
    _turn_ns_max = SLICE_NS
    _frames_per_round = _FRAMES_PER_ROUND

    # --------------------------------------------------------------------------------- public

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Job[T_co]:
        batch = self._batch
        at = batch.at
        if at < batch.stop and _monotonic_ns() < self._pace.until_ns:  # by the batch
            taken = batch.jobs[at]
            batch.done = at
            batch.at = at + 1
            return taken
        # The fast path: as `Puller.__next__` of the threads, where nobody has to be let in.
        each = self._each
        if each is not None and _get_loop() is self._loop:
            core = each.core
            ready = core.ready
            now_ns = _monotonic_ns()
            if ready and ready[0]._detail is None and now_ns < self._pace.until_ns:
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
            if taken and isinstance(taken[0].value, Misfit):
                self._report_misfit(taken.pop())
                continue
            if taken:
                return taken[0]  # nothing is waited for from here on, so it reaches the caller
            self._taker.keys.raise_refused()
            if not await self._waiters.wait(until):
                raise TimeoutError(f"no job came within {timeout} s")

    async def run(
        self,
        handler: Callable[[Job[T_co]], Any],
        *,
        on_error: OnError = "retry",
        tasks: int = 1,
        count: int | None = None,
        signals: bool = True,
    ) -> None:
        """Call `handler(job)` for each job; a failing one does not end it.

        It is `run` of `p2pmsg.Puller`, with tasks in place of threads. ::

            async def work(job):
                await resize(job.value)

            async with aio.Puller("tcp://127.0.0.1:5557") as puller:
                await puller.run(work)

        A job is acknowledged when its handler returns, unless the handler did that itself. It
        ends when `close` is called, and at SIGTERM or Ctrl-C: it takes no further job, finishes
        those in hand, and returns. A second signal does what it did before. A call that is
        cancelled cancels the handlers, and their jobs are rejected.

        Args:
            handler: an `async def`, or a function that returns at once; it takes a `Job`, and what
                it returns is ignored. No generator; one that a decorator hides fails with
                `TypeError`.
            on_error: what becomes of a job whose handler raised; each failure is logged. `retry`
                (default): it is rejected, so that the pusher has it tried again, by its own rules.
                `discard`: it becomes a dead letter at once. `stop`: it is rejected, `run` finishes
                the other jobs in hand, and raises the exception. A callable, which may be an
                `async def`, gets the job and the exception, and may `discard` the job, or `reject`
                it with a delay; if it does neither the job is rejected, and if it raises, that ends
                `run`, too.
            tasks: how many jobs are worked on at once, each in a task of its own. Default 1: in the
                caller's task; at most 10,000. A puller has at most `prefetch` jobs.
            count: end after so many jobs, failed ones included. Default: never.
            signals: whether SIGTERM and Ctrl-C end it as said above. Default True; in a thread
                other than the main one they do not.

        Raises:
            ConfigError: an argument is out of its limits.
            ClosedError: the puller is closed, or another call of `run` takes its jobs.
            RuntimeError: it was made in another event loop.

        """
        self._check_each()
        check_run(handler, on_error, "tasks", tasks, count)
        self._check_caller()
        if self._run is not None:
            raise ClosedError("the puller", "another call of run() takes its jobs")
        self._run = run = TaskRun(self.receive, handler, on_error, count)
        try:
            if signals:
                with StopSignals(run.stop):
                    await run.run_tasks(tasks)
            else:
                await run.run_tasks(tasks)
        finally:
            self._run = None
            run.is_over.set()

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
            self._lock.run_whole(self._taker.close)

    # -------------------------------------------------------------------------------- private

    def _check_caller(self) -> None:
        self._check_usable()
        self._driver.check_loop()

    def _prepare(self) -> None:
        who = f"the puller of {', '.join(self._places)}"
        self._driver = LoopDriver(who, self._turn, at_loop_end=self.close_now, by_caller=True)
        self._loop = self._driver.loop
        self._thread = threading.get_ident()
        self._waiters = Waiters(self._loop)
        self._pace = Pace()

    def _begin(self) -> None:
        self._each = self._taker if isinstance(self._taker, EachTaker) else None
        self._is_made = True
        close_in_children(self)
        self._watches.begin(self._driver)
        self._driver.start()

    def _turn(self) -> float:
        self._pace.begin()
        wait_ms: float = self._lock.run_whole(self._background)
        self._wake_waiting()
        return wait_ms / 1000

    def _wake_waiting(self) -> None:
        if self._waiters:
            self._waiters.offer(self._taker.ready + self._taker.keys.has_error)

    def _on_acknowledged(self) -> None:
        """Report what was acknowledged in the loop's next round, or at once where it is a lot."""
        if _get_ident() != self._thread:
            self._loop.call_soon_threadsafe(self._driver.wake)
        elif self._each is not None and self._each.is_full and self._unusable is None:
            self._lock.run(self._each.commit)
        else:
            self._driver.wake()

    async def _end_run(self, timeout: float) -> None:
        """Stop `run`, and wait until the jobs in hand are finished; not where it is called there.

        Args:
            timeout: how long to wait at most, in seconds.

        """
        run = self._run
        if run is None:
            return
        run.stop()
        if asyncio.current_task() not in run.tasks:
            try:
                await asyncio.wait_for(run.is_over.wait(), timeout)
            except TimeoutError:
                pass  # what is in hand then is rejected

    def _is_drained(self) -> bool:
        return not self._lock.run_whole(self._taker.is_unconfirmed)

    def _forget(self) -> None:
        """In a forked child: nothing of this is the child's."""
        PullerBase._forget(self)
        ClosesInLoop._forget(self)
