"""Where a responder's handlers run: in threads, or in an event loop."""

import asyncio
import inspect
import threading
from collections.abc import Awaitable
from typing import Any, Self

from p2pmsg.checks import check, is_async
from p2pmsg.driver.faces import LoopFace, ThreadFace
from p2pmsg.driver.peer import CLOSED
from p2pmsg.peers.network import here
from p2pmsg.peers.responder import ResponderPeer
from p2pmsg.requests.responder_engine import CURRENT, Work
from transports.own_log import own_log as _log

_JOIN_S = 5.0


def is_wanted() -> bool:
    """Whether anybody waits for what the current task, or thread, works on."""
    return not CURRENT.get().is_over(here().now_ns())


class ThreadServing(ThreadFace):
    """Calls handlers in the thread that serves, and in as many others as it was given."""

    _peer: ResponderPeer
    _slots: int
    _is_in_loop = False
    _answer = staticmethod(Work.run)
    _hint = "use p2pmsg.aio.Responder or p2pmsg.App"
    _served_by: threading.Thread | None = None

    def _check_handler(self, topic: str, handler: Any) -> bool:
        """Return whether it waits for one of several threads."""
        limit = "no async function; those are for p2pmsg.aio.Responder and p2pmsg.App"
        check(f"the handler of {topic!r}", handler, not is_async(handler), limit)
        return self._slots > 1

    def _serve(self) -> None:
        section, peer, me = self._driver.section, self._peer, threading.get_ident()
        helpers = [self._thread_for(self._help) for _ in range(self._slots - 1)]
        try:
            section.run(peer.begin_serving, me)
            for each in helpers:
                each.start()
            raised = self._driver.run(peer.serve())
        finally:
            section.run(peer.end_serving, me)
            self._driver.wake()
            for each in helpers:
                if each.ident is not None:
                    each.join()
            section.run(peer.drop_lost)
        if raised is not None:
            raise raised

    def _help(self) -> None:
        self._driver.run(self._peer.serve())

    def _start(self) -> Self:
        section, peer = self._driver.section, self._peer
        if self._network.in_memory:
            if section.run(peer.be_served, threading.get_ident()):
                self._driver.wake()
            return self
        section.run(peer.check_open)
        if self._served_by is None:
            self._served_by = self._thread_for(self._serve_aside)
            self._served_by.start()
        return self

    def _serve_aside(self) -> None:
        try:
            self._serve()
        except (SystemExit, KeyboardInterrupt) as error:
            _log.critical("%r ends: a handler of its raised %r", self, error, exc_info=error)
            self._close(None, f"a handler of its raised {error!r}")
        except Exception:
            if not self._peer.is_closed:
                _log.exception("the responder's thread ended")

    def _close(self, timeout: float | None, why: str = CLOSED) -> None:
        self._end(self._peer.close(timeout, why))
        thread = self._served_by
        if thread is not None and thread is not threading.current_thread() and timeout is None:
            thread.join(_JOIN_S)

    def _thread_for(self, call: Any) -> threading.Thread:
        return threading.Thread(target=call, name="p2pmsg-responder", daemon=True)

    def __enter__(self) -> Self:
        return self._start()


class LoopServing(LoopFace):
    """Calls handlers in the loop; of those that are coroutines, each call is a task."""

    _peer: ResponderPeer
    _is_in_loop = True
    _hint = "await it there"
    _tasks: "set[asyncio.Task[None]]"

    def _on_open(self) -> None:
        self._tasks = set()

    def _check_handler(self, topic: str, handler: Any) -> bool:
        """Return whether each call of it will be a task."""
        return is_async(handler)

    def _answer(self, work: Work) -> bool:
        try:
            result = work.call()
            if inspect.isawaitable(result):
                self._begin_task(work, result)
                return False
            work.succeed(result)
        except BaseException as error:  # SystemExit and KeyboardInterrupt, too: see `_work`
            work.fail(error)
        return True

    def _begin_task(self, work: Work, result: Awaitable[Any]) -> None:
        loop = self._driver.running_loop()
        if loop is None:
            if inspect.iscoroutine(result):
                result.close()
            raise TypeError(f"the handler of {work.topic!r} is async, for which asyncio has to run")
        self._driver.section.run(self._peer.limit, work.topic)  # it may not have been seen of it
        task = loop.create_task(self._handle(work, result))
        self._tasks.add(task)
        task.add_done_callback(self._end_task)

    async def _handle(self, work: Work, result: Awaitable[Any]) -> None:
        CURRENT.set(work)
        try:
            work.succeed(await result)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                self._driver.section.run(self._peer.drop, work)
                raise
            work.fail(error)  # what the handler waited for was cancelled
        except BaseException as error:
            work.fail(error)
        self._driver.section.run(self._peer.finish, work)
        if isinstance(work.error, SystemExit | KeyboardInterrupt):
            raise work.error

    def _end_task(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and isinstance(task.exception(), Exception):
            _log.error("the responder failed to reply", exc_info=task.exception())
        self._driver.wake()  # a send takes the descriptor's signal, and others wait to begin

    def _start(self) -> Self:
        driver = self._driver
        if driver.section.run(self._peer.be_served, threading.get_ident()):
            driver.wake()
        return self

    async def _serve(self) -> None:
        self._start()
        await self._driver.run(self._peer.wait_for_end())

    async def _close(self, timeout: float | None) -> None:
        await self._end(self._peer.close(timeout, CLOSED))

    def close_now(self) -> None:
        """Close without waiting for what is at work, also where its event loop has ended."""
        self._driver.stop()
        loop = self._driver.running_loop()
        if loop is not None and not loop.is_closed():
            for task in self._tasks:
                task.cancel()

    async def __aenter__(self) -> Self:
        return self._start()
