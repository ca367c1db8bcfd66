"""What is used in a `with` block shares how it ends with it."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Any, ClassVar, Self


class ClosesAtOnce(ABC):
    """Closes at the end of its `with` block, which takes no time to speak of."""

    @abstractmethod
    def close(self) -> None:
        """Close."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class ClosesItself(ABC):
    """Closes at the end of its `with` block.

    Who presses Ctrl-C wants to go: what is gathered is sent, but nothing else is waited for.
    """

    _patience_s: ClassVar[float | None] = 5.0
    """How long closing may take; None: as long as it takes."""
    _hurried_s: ClassVar[float] = 0.2
    """The same after Ctrl-C."""

    @abstractmethod
    def close(self, timeout: Any) -> None:
        """Close within so many seconds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        hurried = isinstance(error, KeyboardInterrupt)
        self.close(timeout=self._hurried_s if hurried else self._patience_s)
