"""Calls that wait for the disk, made in a loop's executor one after the other."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeVar

R = TypeVar("R")


class InOrder:
    """Has the default executor of `loop` make calls, each when the one before it has ended.

    So they need no lock among each other, and what was to be written first is written first. A call
    takes a thread of the executor from when one is free for it; none waits for a later call.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._last = threading.Event()
        self._last.set()

    def call(self, call: Callable[[], R]) -> "asyncio.Future[R]":
        """Call there; where that has ended, or the loop is closed, call here."""
        before, after = self._last, threading.Event()
        future: asyncio.Future[Any]
        try:
            future = self._loop.run_in_executor(None, self._run, call, before, after)
        except RuntimeError:
            future = self._loop.create_future()
            try:
                future.set_result(self._run(call, before, after))
            except Exception as error:
                future.set_exception(error)
        self._last = after
        return future

    @staticmethod
    def _run(call: Callable[[], R], before: threading.Event, after: threading.Event) -> R:
        before.wait()
        try:
            return call()
        finally:
            after.set()
