"""Work in steps, some of which wait for the disk: who drives it chooses where those run.

A generator yields calls that may wait, and is given what they return. A thread makes them at once;
an event loop has them made in an executor, and goes on with other work meanwhile.
"""

from collections.abc import Callable, Generator
from typing import Any, TypeVar

R = TypeVar("R")
Steps = Generator[Callable[[], Any], Any, R]


def run_steps(steps: Steps[R]) -> R:
    """Make each call here, until the work is done; return its result."""
    try:
        call = next(steps)
        while True:
            try:
                result = call()
            except BaseException as error:
                call = steps.throw(error)
            else:
                call = steps.send(result)
    except StopIteration as end:
        value: R = end.value
        return value
