"""What a peer's verbs yield where they may wait, and how they are gone on with.

A verb is a generator: it is written once, and each driver waits in its own way. The pattern is that
of psycopg 3, whose generators yield what to wait for; see docs/design/driver.md.
"""

from collections.abc import Callable, Generator
from typing import Any, Generic, NamedTuple, TypeVar

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


class Steps(Generic[R]):
    """A verb on its way. Here alone one is gone on with, by each of the drivers.

    ::

        while True:
            request = section.run(steps.go_on, now_ns)
            if isinstance(request, Done):
                return request.value
            if isinstance(request, Wait):
                ...                         # wait, in the driver's way
            else:
                steps.call()

    Args:
        verb: not begun.
        rests: whether it comes out at each `Wait`, so that others go on. Default: only where that
            is not ready.

    Attributes:
        request: what it has yielded last, or that it has ended; None: it was not begun.

    """

    __slots__ = ("_error", "_rests", "_value", "_verb", "request")

    def __init__(self, verb: Verb[R], *, rests: bool = False) -> None:
        self.request: Any = None
        self._verb, self._rests = verb, rests
        self._value: Any = None
        self._error: BaseException | None = None

    def go_on(self, now_ns: Callable[[], int], is_over: object = False) -> Any:
        """Go on until it is to wait, has a call to make, or has ended; to be called inside.

        Args:
            now_ns: the clock.
            is_over: whether what it waits for by now, and is not ready, is waited for no longer.

        Raises:
            Others: what the verb raises.

        """
        request, verb = self.request, self._verb
        while True:
            value, error, self._value, self._error = self._value, self._error, None, None
            if isinstance(request, Wait):
                value, deadline_ns = bool(request.ready()), request.deadline_ns
                is_late = deadline_ns is not None and now_ns() >= deadline_ns
                if not (value or is_late or is_over):
                    return request
                is_over = False
            try:
                request = verb.send(value) if error is None else verb.throw(error)
            except StopIteration as end:
                request = Done(end.value)
            self.request = request
            if self._rests or not isinstance(request, Wait):
                return request

    def call(self) -> None:
        """Make the call that it has yielded, outside."""
        assert isinstance(self.request, Blocking)
        try:
            self.take(self.request.call())
        except Exception as error:
            self.take(None, error)

    def take(self, value: Any, error: BaseException | None = None) -> None:
        """Take what its call has returned, or raised."""
        self._value, self._error = value, error

    def close(self) -> None:
        """End it where it is."""
        self._verb.close()
