"""Run a function with signal handlers deferred, so that what they raise does not cut it short."""

import importlib
import signal
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any, Final, TypeVar

try:
    _core: Any = importlib.import_module("_signal")
except ImportError:
    _core = None

R = TypeVar("R")
Handler = Callable[[int, FrameType | None], Any]
_NAMES: Final = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGALRM", "SIGUSR1", "SIGUSR2")
_SIGNALS: Final = tuple(int(getattr(signal, name)) for name in _NAMES if hasattr(signal, name))
# What `signal` wraps to make enumerations of numbers, which takes ten times as long.
get_handler: Final = getattr(_core, "getsignal", signal.getsignal)
_set_handler: Final = getattr(_core, "signal", signal.signal)
_usual: tuple[object, ...] = ()
"""What the handlers were when there was none of the program's own, so that one look is enough."""


def defer_signals(call: Callable[..., R], *arguments: Any) -> R:
    """Call; the handlers of signals that come meanwhile (Ctrl-C) run when it returns.

    For work that changes a state machine in many steps, or where Python has no place for an
    exception, and that does not wait. Python handles signals in the main thread only, so in any
    other thread this is the call alone. It takes a little over 1 µs, with cold caches 4, and for
    each further signal that has a handler a third more.
    """
    if threading.current_thread() is not threading.main_thread():
        return call(*arguments)
    held: dict[int, Handler] = {}
    came: list[Callable[[], object]] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(partial(held[number], number, frame))

    try:
        for number in _SIGNALS:
            handler = get_handler(number)
            if callable(handler):
                held[number] = handler
                _set_handler(number, note)
        return call(*arguments)
    finally:
        _restore(held)
        _run_all(came)


def interrupts_only() -> bool:
    """Whether no signal has a handler, except the usual KeyboardInterrupt for Ctrl-C."""
    global _usual
    handlers = tuple(map(get_handler, _SIGNALS))
    if handlers == _usual:
        return True
    own = [each for each in handlers if each is not signal.default_int_handler]
    if any(map(callable, own)):
        return False
    _usual = handlers
    return True


def _restore(held: dict[int, Handler]) -> None:
    """Set the handlers again, the last one first; all, even if one of them raises meanwhile."""
    try:
        while held:
            number = next(reversed(held))
            _set_handler(number, held[number])
            del held[number]
    finally:
        if held:
            _restore(held)


def _run_all(came: list[Callable[[], object]]) -> None:
    """Run what came, the first one first; all, even if one of them raises."""
    try:
        while came:
            came.pop(0)()
    finally:
        if came:
            _run_all(came)
