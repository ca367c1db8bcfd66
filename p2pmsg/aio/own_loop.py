"""An event loop whose rounds the caller takes, for peers where no loop of asyncio runs."""

import asyncio
import heapq
import os
import selectors
from collections.abc import Callable
from contextvars import Context
from typing import Final, TypeVarTuple

A = TypeVarTuple("A")
_FEW: Final = 64
_ROUNDS_MAX: Final = 16


class OwnLoop(asyncio.SelectorEventLoop):
    """An event loop that takes one round each time its caller says so, and never waits.

    Attributes:
        has_more: whether the next round has something to do already.
        users: how many drivers have their turns taken in it; with the last one it is closed.

    """

    def __init__(self) -> None:
        selector = selectors.DefaultSelector()
        self.fd: int = selector.fileno()
        self.has_more = False
        self.users = 0
        self._timers_max = _FEW
        self._timers: list[asyncio.TimerHandle] = []
        self._process = os.getpid()
        super().__init__(selector)

    def take_round(self) -> None:
        """Call what is due; what that arranges for is called in the next round."""
        begun = self.time()
        self.call_soon(self.stop)
        self.has_more = False
        try:
            self.run_forever()
        finally:
            timers = self._timers
            while timers and (timers[0].cancelled() or timers[0].when() <= begun):
                heapq.heappop(timers)
            # What a task's end has called is called in the next round.
            if self.users <= 0 and not self.has_more and not asyncio.all_tasks(self):
                self.close()

    def due_s(self, longest_s: float) -> float:
        """Return in how many seconds the next round is due, `longest_s` at most."""
        if self.has_more:
            return 0.0
        timers = self._timers
        while timers and timers[0].cancelled():
            heapq.heappop(timers)
        return longest_s if not timers else max(0.0, min(longest_s, timers[0].when() - self.time()))

    def leave(self) -> None:
        """Take one user less; after the last one, end what was begun, and close."""
        self.users -= 1
        if self.users > 0 or self.is_running() or self.is_closed():
            return
        if asyncio._get_running_loop() is None and os.getpid() == self._process:
            for attempt in range(_ROUNDS_MAX):
                left = asyncio.all_tasks(self)
                if self.is_closed() or not (left or self.has_more):
                    break
                if attempt == _ROUNDS_MAX // 2:  # they had the time to see that it is closed
                    for task in left:
                        task.cancel()
                self.take_round()
        self.close()

    def call_soon(
        self, callback: Callable[[*A], object], *arguments: *A, context: Context | None = None
    ) -> asyncio.Handle:
        """As any loop."""
        self.has_more = True
        return super().call_soon(callback, *arguments, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*A], object],
        *arguments: *A,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """As any loop."""
        timer = super().call_at(when, callback, *arguments, context=context)
        timers = self._timers
        heapq.heappush(timers, timer)
        if len(timers) > self._timers_max:
            timers[:] = [each for each in timers if not each.cancelled()]
            heapq.heapify(timers)
            self._timers_max = 2 * len(timers) + _FEW
        return timer

    def close(self) -> None:
        """As any loop; in a forked child nothing, since its descriptors are the parent's, too."""
        if os.getpid() == self._process:
            super().close()

    def __del__(self) -> None:
        if hasattr(self, "_process"):
            self.close()  # its peer has said that it was not closed
