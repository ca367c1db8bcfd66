"""SIGTERM and Ctrl-C as a wish to stop, for what finishes its work before it ends."""

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, Self

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """In a `with` block, calls `stop` at the first SIGTERM or Ctrl-C instead of what they did.

    The next signal does again what it did before the block, so that a program that does not end can
    be ended. In threads other than the main one nothing is changed: Python allows no handlers
    there. A signal that is ignored stays so. SIGTERM is meant for the process: later blocks call
    `stop` as they begin.

    Args:
        stop: called by the signal handler; it must return at once.
        again: called at the second signal, in place of what that did before. Default: nothing.

    Attributes:
        is_terminated: whether SIGTERM came to a block of this process.

    """

    is_terminated = False

    def __init__(
        self, stop: Callable[[], object], again: Callable[[], object] | None = None
    ) -> None:
        self._stop, self._last = stop, again or stop
        self._calls = iter([stop] if again is None else [stop, again])
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                # None: the handler was not set by Python, and could not be put back.
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._handle)
            if StopSignals.is_terminated:
                self._stop()
        return self

    def __exit__(self, *exception: object) -> None:
        self._restore()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        StopSignals.is_terminated |= number == signal.SIGTERM
        call = next(self._calls, None)
        if call == self._last:
            self._restore()
        if call is not None:  # else it came while the last one was handled
            call()

    def _restore(self) -> None:
        before, self._before = self._before, {}
        for number, handler in before.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, handler)
