"""One run of an app: starts its sources, and stops them gracefully."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any, Final

from p2pmsg.app.dead_letters import Keep, letter_of, open_place
from p2pmsg.app.events import Event
from p2pmsg.app.handler import Handler, Middleware
from p2pmsg.app.parameters import name_of
from p2pmsg.app.policy import DeadLetter
from p2pmsg.app.sources import Source
from p2pmsg.app.threads import HandlerThreads
from p2pmsg.errors import HandlerError
from p2pmsg.toolkit import here, is_async
from p2pmsg.toolkit import own_log as _log

if TYPE_CHECKING:
    from p2pmsg.security import Security

_CANCELLED_S: Final = 1.0
"""How long a handler that was cancelled may still take."""


@dataclass(slots=True)
class Parts:
    """What was registered with an app.

    Attributes:
        sources: of its events.
        middleware: around each call of a handler.
        on_start, on_stop: called before the first and after the last event.

    """

    sources: list[Source] = field(default_factory=list)
    middleware: list[Middleware] = field(default_factory=list)
    on_start: list[Callable[..., Any]] = field(default_factory=list)
    on_stop: list[Callable[..., Any]] = field(default_factory=list)


class Run:
    """What an app is while it runs.

    Args:
        app: the app, for handlers.
        parts: what was registered with it.
        threads: how many there may be for plain functions.
        stop_timeout: how long handlers may take to end after `stop`, in seconds.
        security: for peers whose options have none of their own.

    Attributes:
        stopping: whether it is to stop.

    """

    def __init__(
        self,
        app: object,
        parts: Parts,
        *,
        threads: int,
        stop_timeout: float,
        security: "Security | None",
    ) -> None:
        self.app, self.security = app, security
        self.threads = HandlerThreads(threads)
        self.middleware = parts.middleware
        self.stopping = False
        self._parts = parts
        self._opened: list[Source] = []
        self._stop_timeout = stop_timeout
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._stopped, self._hurried = asyncio.Event(), asyncio.Event()
        self._error: BaseException | None = None
        self._stuck: list[str] = []
        self._places: dict[DeadLetter, Keep] = {}

    @property
    def handlers(self) -> list[Handler]:
        """All handlers."""
        return [handler for source in self._parts.sources for handler in source.handlers]

    async def run(self) -> None:
        """Run until `stop`, then end gracefully; raise what went wrong."""
        if not self._parts.sources:
            _log.warning("the app has no handlers: it does nothing, and waits until it is stopped")
        try:
            try:
                for hook in self._parts.on_start:
                    if not await self._call(hook):
                        break
                if not self._stuck:
                    async with AsyncExitStack() as stack:
                        await self._serve(stack)
            finally:
                self.stop()
                await self._call_on_stop()
        finally:
            self.stopping = True
            self.threads.close()
        if self._error is not None:
            raise self._error
        if self._stuck:
            names = ", ".join(sorted(set(self._stuck)))
            limit = f"{self._stop_timeout:g} s after the app was to stop"
            raise TimeoutError(f"{names} did not end within {limit}")

    def stop(self) -> None:
        """Get no more events, let handlers finish, and end; any thread may call it."""
        if threading.get_ident() == self._thread:
            self._stop()
        with suppress(RuntimeError):  # the loop is closed: it has ended
            self._loop.call_soon_threadsafe(self._stop)  # this wakes it, from a signal handler too

    def hurry_from_signal(self) -> None:
        """Wait for handlers no longer, called by a signal handler."""
        self._loop.call_soon_threadsafe(self._hurried.set)

    def fail(self, error: BaseException) -> None:
        """Stop; `run` raises `error` in the end, if it is the first one."""
        if self._error is None:
            self._error = error
        else:
            _log.error("while the app stops: %s", error)
        self.stop()

    async def pause(self, seconds: float) -> None:
        """Wait so long, or until the app is to stop."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        await here().pause(seconds, self._stopped)

    async def keep(self, letter: DeadLetter, event: Event, error: Exception) -> None:
        """Keep a dead letter."""
        key = event.message.key if event.message else event.job.key if event.job else None
        await self._places[letter](letter_of(event, error), key)

    def _stop(self) -> None:
        self._stopped.set()
        self.stopping = True

    async def _serve(self, stack: AsyncExitStack) -> None:
        for handler in self.handlers:
            letter = handler.then
            is_place = isinstance(letter, DeadLetter) and letter.call is None
            if is_place and letter not in self._places:
                self._places[letter] = await open_place(letter, stack)
        try:
            for source in self._parts.sources:
                await source.open(self, stack)
                self._opened.append(source)
                if source.reader is not None:
                    source.reader.add_done_callback(partial(self._reader_ended, source))
                for task in source.tasks:
                    task.add_done_callback(partial(self._task_ended, source))
            await self._stopped.wait()
        finally:
            await self._end()

    async def _end(self) -> None:
        """Let what runs finish, cancel what does not, and commit."""
        self._stop()
        for source in self._opened:
            source.stop()
        readers = [one.reader for one in self._opened if one.reader is not None]
        if readers:
            await asyncio.wait(readers)
        tasks = [task for source in self._opened for task in source.tasks]
        half = self._loop.call_later(self._stop_timeout / 2, self._begin_no_more)
        pending = await self._wait_for(tasks)
        half.cancel()
        self._begin_no_more()  # a second signal, or tasks that failed
        if pending:
            self._report_stuck()
            for task in pending:
                task.cancel()
            await asyncio.wait(pending, timeout=_CANCELLED_S)
        for source in self._opened:
            try:
                await source.finish()
            except Exception as error:
                self.fail(error)
        for handler in self.handlers:
            if handler.left:
                _log.warning(
                    "%s: %d that had been read are not handled, since the app stops",
                    handler.name, handler.left,
                )  # fmt: skip

    def _begin_no_more(self) -> None:
        """Begin nothing more, so that what was begun last has as long as this to end."""
        for source in self._opened:
            source.begin_no_more()

    async def _wait_for(self, tasks: list[asyncio.Task[Any]]) -> set[asyncio.Task[Any]]:
        """Wait for tasks, at most `stop_timeout`; return those that have not ended."""
        if not tasks:
            return set()
        waits = [asyncio.create_task(one) for one in (self._hurried.wait(), asyncio.wait(tasks))]
        await asyncio.wait(waits, timeout=self._stop_timeout, return_when=asyncio.FIRST_COMPLETED)
        for one in waits:
            one.cancel()
        return {task for task in tasks if not task.done()}

    def _report_stuck(self) -> None:
        for handler in self.handlers:
            for event in handler.running:
                self._stuck.append(handler.name)
                _log.error(
                    "%s did not end within %g s after the app was to stop; it is at %s",
                    handler.name, self._stop_timeout, event,
                )  # fmt: skip

    def _reader_ended(self, source: Source, task: asyncio.Task[None]) -> None:
        """Stop where a source failed, or where none is left that will get anything."""
        self._task_ended(source, task)
        if not any(source.keeps_running for source in self._opened):
            self.stop()

    def _task_ended(self, source: Source, task: asyncio.Task[None]) -> None:
        """Stop where a task failed, or was cancelled by another than the app: none replaces it."""
        if not task.cancelled():
            if (error := task.exception()) is not None:
                self.fail(error)
        elif not self.stopping:
            names = ", ".join(handler.name for handler in source.handlers)
            reason = "it was cancelled, and not by the app"
            self.fail(HandlerError(names, "its task", reason))

    async def _call_on_stop(self) -> None:
        """Call the `on_stop` hooks, each one whatever others raise."""
        for hook in reversed(self._parts.on_stop):
            try:
                await self._call(hook)
            except Exception as error:
                _log.exception("%s raised", name_of(hook))
                self._error = self._error or error

    async def _call(self, hook: Callable[..., Any]) -> bool:
        """Call a hook; False: the app is to stop, and the hook did not end in time."""
        arguments = [self.app] * bool(len(signature(hook).parameters))
        call = partial(hook, *arguments)
        task = asyncio.create_task(self.threads.call(name_of(hook), call, is_async=is_async(hook)))
        stopped = asyncio.create_task(self._stopped.wait())
        try:
            await asyncio.wait([task, stopped], return_when=asyncio.FIRST_COMPLETED)
            pending = await self._wait_for([task])
        finally:
            stopped.cancel()
            if not task.done():
                task.cancel()
        if pending:
            name = name_of(hook)
            self._stuck.append(name)
            _log.error("%s did not end within %g s", name, self._stop_timeout)
            await asyncio.wait(pending, timeout=_CANCELLED_S)
            return False
        task.result()
        return True
