"""Calls a function for each job in an event loop, until it is to stop: `aio.Puller.run`."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from p2pmsg.checks import check_result
from p2pmsg.driver.lifecycle import is_inherited
from p2pmsg.errors import ClosedError, SecurityError
from p2pmsg.queue.job import Job
from p2pmsg.queue.running import (
    LOOK_S,
    JobRun,
    OnError,
    acknowledge,
    reason_of,
)


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
            with self._rejecting(job, error):
                decided = self._decide(job, error)
                if inspect.isawaitable(decided):
                    decided = await decided
                check_result("on_error", decided, "await it there", may_be_task=True)
        except BaseException as error:
            job.reject(reason_of(error))
            raise
        else:
            acknowledge(job)
