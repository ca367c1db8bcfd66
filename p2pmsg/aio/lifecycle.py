"""How publishers, relays and metrics clients of an event loop end."""

import asyncio
import sys
import warnings
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Final, Self

from p2pmsg.sync.lifecycle import NotCopied

PATIENCE_S: Final = 5.0
"""How long closing may take."""
HURRIED_S: Final = 0.2
"""The same after its task was cancelled, as by Ctrl-C."""


class ClosesInLoop(NotCopied, ABC):
    """Closes at the end of its `async with` block, and waits for others meanwhile."""

    _is_over = True
    """Whether all is closed; from the beginning to the end of its work it is not."""

    @abstractmethod
    def _check_caller(self) -> None:
        """Raise where it must not be used from here."""

    @abstractmethod
    async def close(self, timeout: float | None = None) -> None:
        """Close within so many seconds; None: as usual."""

    @abstractmethod
    def close_now(self) -> None:
        """Close without waiting for others: for the end of the loop, which calls it."""

    async def __aenter__(self) -> Self:
        self._check_caller()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        hurried = isinstance(error, asyncio.CancelledError | KeyboardInterrupt)
        try:
            await self.close(HURRIED_S if hurried else None)
        except asyncio.CancelledError:
            self.close_now()
            raise

    def __del__(self) -> None:
        if not (self._is_over or sys.is_finalizing()):
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=2, source=self)
            self.close_now()
