"""How asyncio's peers end: by `async with`, or with their loop."""

import asyncio
import sys
import warnings
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Any, ClassVar, Self

from p2pmsg.aio.loop import LoopDriver
from p2pmsg.driver.lifecycle import NotCopied


class ClosesInLoop(NotCopied, ABC):
    """Closes at the end of its `async with` block."""

    _driver: LoopDriver
    _closed: Any
    _is_made: bool = False
    """Whether there is something to close."""
    _hurried_s: ClassVar[float] = 0.2
    """How long closing may take where the block was left by a cancellation, or Ctrl-C."""

    @property
    def _is_left_open(self) -> bool:
        return self._is_made and not self._closed

    @abstractmethod
    async def close(self, timeout: Any = 1.0) -> None:
        """Close within so many seconds."""

    @abstractmethod
    def close_now(self) -> None:
        """Close without waiting for anybody, also where its event loop has ended."""

    def _forget(self) -> None:
        """In a forked child: nothing of this is the child's, and its loop is the parent's, too."""
        self._closed = True
        self._driver.stopping = True

    async def __aenter__(self) -> Self:
        self._driver.check_loop()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
                await self.close(timeout=self._hurried_s)
            else:
                await self.close()
        except asyncio.CancelledError:
            self.close_now()
            raise

    def __del__(self) -> None:
        if self._is_left_open and not sys.is_finalizing():
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=2, source=self)
            self.close_now()
