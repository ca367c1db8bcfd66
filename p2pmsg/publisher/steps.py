"""Work in steps, some of which wait for the disk: parts of a verb, or run here."""

from collections.abc import Generator
from typing import Any, TypeVar

from p2pmsg.driver.verbs import Blocking

R = TypeVar("R")
Steps = Generator[Blocking, Any, R]


def run_steps(steps: Steps[R]) -> R:
    """Make each call here, until the work is done; return its result."""
    try:
        request = next(steps)
        while True:
            try:
                result = request.call()
            except BaseException as error:
                request = steps.throw(error)
            else:
                request = steps.send(result)
    except StopIteration as end:
        value: R = end.value
        return value
