"""Work that Ctrl-C must not cut short: it strikes behind it."""

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

R = TypeVar("R")


def shielded(call: Callable[..., R], *arguments: Any) -> R:
    """Call; a Ctrl-C that comes meanwhile is raised when it is done, after some 2 µs more.

    For work that changes a state machine in many steps, and waits for nothing. Python handles
    signals in the main thread only, so in any other this is the call alone.
    """
    if threading.current_thread() is not threading.main_thread():
        return call(*arguments)
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):
        return call(*arguments)
    came: list[tuple[int, FrameType | None]] = []
    try:
        signal.signal(signal.SIGINT, lambda number, frame: came.append((number, frame)))
        return call(*arguments)
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            handler(*came[0])
