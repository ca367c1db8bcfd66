"""What a peer's verbs yield where they may wait, and how one is gone on with.

A verb is a generator: it is written once, and each driver waits in its own way. The pattern is that
of psycopg 3, whose generators yield what to wait for; see docs/design/driver.md.
"""

from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeVar

R = TypeVar("R")


class Wait(NamedTuple):
    """Go on when `ready()` is true; the verb is sent whether it is.

    Nothing is taken here, so a call that is cancelled or interrupted meanwhile has lost nothing:
    the verb takes what it waited for in the step after that, in which it returns.
    """

    ready: Callable[[], object]
    """Looked at first, and after each turn. Calls with equal ones wait in one queue: they are woken
    one after the other, the first one first."""
    deadline_ns: int | None = None
    """When to go on all the same, of the monotonic clock. Default None: never."""
    by_io: bool = True
    """Whether a turn may bring it. False: another call does, or the peer's upkeep, and a thread
    sleeps until then without taking turns; who brings it has the driver woken."""


class Blocking(NamedTuple):
    """Make a call that waits for a disk or a name server; the verb is sent what it returns.

    It is made without the peer's lock, so it must not touch the engine; in an event loop it is made
    by a thread of the executor, one after the other of a peer. What it raises is raised in the
    verb.
    """

    call: Callable[[], Any]


class Calling(Blocking):
    """Call what a user gave, such as a handler, without the peer's lock; as `Blocking` else.

    In an event loop it is called in the loop, where users expect their code to run.
    """

    __slots__ = ()


class Done(NamedTuple):
    """A verb has ended, and returned this."""

    value: Any


class LateError(TimeoutError):
    """A verb has waited as long as it was to, and has left the engine as it was.

    Its caller gets a plain `TimeoutError`.

    A `TimeoutError` may as well be what a signal's handler raised, somewhere in the engine.
    """


Verb = Generator[Wait | Blocking, Any, R]


def step(
    verb: Verb[Any], value: Any = None, error: BaseException | None = None
) -> Wait | Blocking | Done:
    """Go on with a verb until it may wait again, or has ended.

    Args:
        verb: begun or not.
        value: what it is sent.
        error: what is raised in it instead, where it is not None.

    Raises:
        Others: what the verb raises.

    """
    try:
        return verb.send(value) if error is None else verb.throw(error)
    except StopIteration as end:
        return Done(end.value)
