"""Interrupts a call, as Ctrl-C may."""

import sys
from collections.abc import Callable
from inspect import CO_GENERATOR
from pathlib import Path
from types import FrameType
from typing import Any, Final, TypeVar

R = TypeVar("R")
_OURS: Final = str(Path(__file__).parents[1])
_NOT_OURS: Final = str(Path(__file__).parent)


class Interrupted(KeyboardInterrupt):
    """Came in the middle of a call."""


def interrupted(call: Callable[[], R], calls: int) -> R:
    """Call, and raise `Interrupted` where one of p2pmsg's functions is entered in it.

    There Python looks for signals; and where a loop begins again, which is left out.

    Args:
        call: what is called.
        calls: so many functions are entered before; where there are fewer, nothing is raised.

    Raises:
        Interrupted: it came.
        Others: what the call raises.

    """
    left = calls

    def trace(frame: FrameType, event: str, _: Any) -> None:
        nonlocal left
        name = frame.f_code.co_filename
        if frame.f_code.co_flags & CO_GENERATOR:  # it may as well be one that is thrown away
            return
        if event == "call" and name.startswith(_OURS) and not name.startswith(_NOT_OURS):
            left -= 1
            if left < 0:
                sys.settrace(former)
                raise Interrupted

    former = sys.gettrace()
    sys.settrace(trace)
    try:
        return call()
    finally:
        sys.settrace(former)
