"""What tracebacks show of secrets, where they have the locals of each frame."""

import functools
import sys
import traceback
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def hiding(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function, which takes a secret, keep no locals in the frames that its errors pass."""

    @functools.wraps(function)
    def hidden(*args: P.args, **kwargs: P.kwargs) -> R:
        outer = sys.exception()
        try:
            return function(*args, **kwargs)
        except Exception as error:
            del args, kwargs
            passed: BaseException | None = error
            while passed not in (None, outer):
                traceback.clear_frames(passed.__traceback__)
                passed = passed.__cause__ or passed.__context__
            raise

    return hidden
