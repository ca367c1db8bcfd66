"""Calls a function for each job in an event loop, until it is to stop: `aio.Puller.run`."""

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, Generic

from p2pmsg.checks import check, check_result, check_runs, whole
from p2pmsg.errors import ClosedError, SecurityError
from p2pmsg.message import T_co
from p2pmsg.queue.job import Job
from p2pmsg.queue.running import (
    LOOK_S,
    WORKERS_MAX,
    JobRun,
    OnError,
    acknowledge,
    check_on_error,
    reason_of,
)
from p2pmsg.sync.lifecycle import is_inherited
from p2pmsg.sync.stop_signals import StopSignals


class RunsJobs(ABC, Generic[T_co]):
    """The part of a puller that calls a handler."""

    _run: "TaskRun | None" = None

    @abstractmethod
    async def receive(self, timeout: float | None = None) -> Job[T_co]:
        """Return the next job."""

    @abstractmethod
    def _check_caller(self) -> None:
        """Raise where it must not be used from here."""

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

        A job is acknowledged when its handler returns, unless the handler has settled it itself. It
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
        check("handler", handler, callable(handler), "a function that takes a job")
        check_on_error(on_error)
        check_runs("handler", handler)
        check_runs("on_error", on_error)
        whole("tasks", tasks, 1, WORKERS_MAX)
        if count is not None:
            whole("count", count, 1)
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


class TaskRun(JobRun):
    """One call of `run`.

    Attributes:
        tasks: those that take jobs.
        is_over: set when the call has ended.

    """

    def __init__(
        self,
        receive: Callable[[float], Awaitable[Job]],
        handler: Callable[[Job], Any],
        on_error: OnError,
        count: int | None,
    ) -> None:
        super().__init__(handler, on_error, count)
        self._receive = receive
        self.tasks: set[asyncio.Task[Any] | None] = set()
        self.is_over = asyncio.Event()

    async def run_tasks(self, count: int) -> None:
        """Work until it is to stop; raise what ended it."""
        if count == 1:
            self.tasks = {asyncio.current_task()}
            await self._work()
        else:
            async with asyncio.TaskGroup() as group:
                self.tasks = {group.create_task(self._work()) for _ in range(count)}
        if self._error is not None:
            raise self._error

    async def _work(self) -> None:
        try:
            while not self._is_stopping and self._may_take():
                try:
                    job = await self._receive(LOOK_S)
                except (TimeoutError, SecurityError):  # that is logged, and tried again
                    self._give_back()
                    continue
                await self._do(job)
        except ClosedError as error:
            self.stop()
            if is_inherited(error):
                self._end_with(error)
        except Exception as error:
            self._end_with(error)
        except BaseException:  # cancelled, or Ctrl-C
            self.stop()
            raise

    async def _do(self, job: Job) -> None:
        try:
            result = self._handler(job)
            if inspect.isawaitable(result):
                result = await result
            if result is not None:
                check_result("the handler", result, "await it there", may_be_task=True)
        except Exception as error:
            with self._settling(job, error):
                decided = self._decide(job, error)
                if inspect.isawaitable(decided):
                    decided = await decided
                check_result("on_error", decided, "await it there", may_be_task=True)
        except BaseException as error:
            job.reject(reason_of(error))
            raise
        else:
            acknowledge(job)
