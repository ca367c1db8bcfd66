"""One registered handler: calls it through the middleware, and applies its error policy."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from p2pmsg.app.events import Event, Kind
from p2pmsg.app.parameters import Parameters, name_of, plan
from p2pmsg.app.policy import DeadLetter, OnError, parse
from p2pmsg.app.threads import AWAIT, HandlerThreads
from p2pmsg.errors import HandlerError, InvalidValueError
from p2pmsg.queue import reason_of
from p2pmsg.requests import LEFT
from p2pmsg.stats import Stats
from p2pmsg.toolkit import Rarely, check_result, is_async
from p2pmsg.toolkit import own_log as _log

if TYPE_CHECKING:
    from p2pmsg.security import Security

Next = Callable[[Event], Awaitable[Any]]
Middleware = Callable[[Next, Event], Awaitable[Any]]


class Runtime(Protocol):
    """What a handler needs of the app that runs."""

    app: object
    threads: HandlerThreads
    middleware: list[Middleware]
    stopping: bool
    security: "Security | None"

    def fail(self, error: BaseException) -> None:
        """Stop the app, which raises `error` in the end."""

    async def pause(self, seconds: float) -> None:
        """Wait so long, or until the app stops."""

    async def keep(self, letter: DeadLetter, event: Event, error: Exception) -> None:
        """Keep a dead letter."""


@dataclass(frozen=True, slots=True)
class HandlerStats(Stats):
    """One handler's counters."""

    name: str
    """The function's qualified name."""
    kind: Kind
    """`message`, `job`, `request` or `timer`."""
    received: int
    """Events that came; each is counted in one of the next five, or is running or waiting."""
    handled: int
    """Events whose handler returned, at the first attempt or a later one."""
    given_up: int
    """Events whose handler raised, and for which the error policy was applied."""
    left: int
    """Events that were read and not handled, because the app stopped; requests that waited also
    where their responder was closed or cancelled them, or nobody waited for them any more."""
    cancelled: int
    """Events whose handler did not end within `stop_timeout`, or was cancelled by another."""
    conflated: int
    """Messages that waited for their key and were replaced by a newer one, with `on_gap="latest"`;
    further ones are in the subscriber."""
    failed: int
    """How often the handler raised."""
    retried: int
    """How often it was tried again; jobs are by their pusher, and are not counted here."""
    dead_lettered: int
    """Dead letters that were kept."""
    refused: int
    """Requests that were left to be asked again, since too many of their topic waited; they are not
    among those received."""
    running: int
    """Events that the handler works on now."""


class Handler:
    """A function and what is to be done with it.

    Args:
        function: what users registered.
        kind: of which events.
        on_error: what becomes of those that fail.
        app_class: of the parameter `app`.

    Attributes:
        name: of the function.
        then: what becomes of an event that is not tried again.
        running: the events that it works on.
        received, handled, given_up, left, cancelled, conflated, failed, retried, dead_lettered,
            refused: see `HandlerStats`.

    """

    def __init__(self, function: Any, kind: Kind, on_error: OnError, app_class: type) -> None:
        self._function = function
        self._parameters: Parameters = plan(function, kind, app_class)
        self.name = name_of(function)
        self.kind = kind
        self.retry, self.then = parse(on_error, kind)
        self._cut_short = Rarely()
        self.running: set[Event] = set()
        self.received = self.handled = self.given_up = self.left = self.cancelled = 0
        self.conflated = self.failed = self.retried = self.dead_lettered = self.refused = 0

    def stats(self) -> HandlerStats:
        """Return the counters."""
        counted = {name: getattr(self, name) for name in HandlerStats.__annotations__}
        return HandlerStats(**counted | {"running": len(self.running)})

    @property
    def value_type(self) -> Any:
        """Into which it wants values decoded; None: as they are."""
        return self._parameters.value_type

    async def handle(self, event: Event, run: Runtime, unfit: Exception | None = None) -> Any:
        """Call the function, and apply the error policy; return what it returned.

        Where the message is not for the function (its value does not fit, it has no key), `unfit`
        says why, and the error policy is applied at once.

        `LEFT`: the event was not handled and will not be by this process; it must not be committed.
        For a request, what the function raised is raised.
        """
        self.running.add(event)
        value = event.value
        try:
            while True:
                event.value = value
                try:
                    if unfit is not None:
                        raise unfit
                    result = await self._call(event, run)
                except (Exception, asyncio.CancelledError, SystemExit) as error:
                    failure = _failure(error)
                    self.failed += 1
                    if event.job is not None:
                        event.job.value = value  # a dead letter has what was pushed
                    if unfit is None and await self._is_again(event, failure, run):
                        if not run.stopping:
                            continue
                        _log.warning("%s does not try %s again: the app stops", self.name, event)
                    elif await self._give_up(event, failure, run):
                        self.given_up += 1
                        return None
                    self.left += 1
                    return LEFT
                self.handled += 1
                return result
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        except BaseException as error:
            if event.request is not None and isinstance(error, Exception):
                self.given_up += 1  # the requester gets it
            else:
                self.left += 1
            raise
        finally:
            self.running.discard(event)

    async def _call(self, event: Event, run: Runtime) -> Any:
        if event.message is None:
            event.value = self._parameters.convert(event.value)
            if event.job is not None:
                event.job.value = event.value
        call: Next = partial(self._invoke, run)
        for each in reversed(run.middleware):
            call = partial(each, call)
        result = await call(event)
        if result is not None:
            check_result(self.name, result, AWAIT, may_be_task=True)
        return result

    async def _invoke(self, run: Runtime, event: Event) -> Any:
        positional, named = self._parameters.arguments(event, run.app)
        if not self._parameters.is_async:
            call = partial(self._function, *positional, **named)
            return await run.threads.call(self.name, call)
        return await self._function(*positional, **named)

    async def _is_again(self, event: Event, error: Exception, run: Runtime) -> bool:
        """Whether to try again in this place, unless the app stops; returns after the pause."""
        retry = self.retry
        if retry is None or event.job is not None or isinstance(error, InvalidValueError):
            return False
        if event.attempt >= retry.attempts:
            return False
        pause = retry.pause(event.attempt)
        _log.warning(
            "%s failed with %s at attempt %d of %d; the next is in %g s: %s",
            self.name, event, event.attempt, retry.attempts, pause, reason_of(error),
        )  # fmt: skip
        await run.pause(pause)
        if not run.stopping:
            event.attempt += 1
            self.retried += 1
        return True

    async def _give_up(self, event: Event, error: Exception, run: Runtime) -> bool:
        """Do what the policy says; False: the event is left."""
        _log.error("%s failed with %s", self.name, event, exc_info=error)
        then, job, reason = self.then, event.job, reason_of(error)
        retry = None if isinstance(error, InvalidValueError) else self.retry
        if job is not None and retry is not None and event.attempt < retry.attempts:
            if then == "log" or not job.is_last_delivery:  # so that it is the pusher's dead letter
                job.reject(reason, retry.pause(event.attempt))
                return True
            if self._cut_short.is_due():
                _log.warning(
                    "%s does what follows its Retry at delivery %d of %s, before attempts=%d: the "
                    "pusher delivers it no more (its deliveries_max)",
                    self.name, event.attempt, event, retry.attempts,
                )  # fmt: skip
        if then == "stop":
            self._stop_app(run, str(event), error)
        if event.request is not None:
            raise error  # to the requester
        if then == "stop":
            return False
        if isinstance(then, DeadLetter) or callable(then):
            return await self._hand_over(event, error, run)
        if then == "dead_letter" and job is not None:
            job.discard(reason)
            self.dead_lettered += 1
        elif then == "reject" and job is not None:
            job.reject(reason)
        return True

    async def _hand_over(self, event: Event, error: Exception, run: Runtime) -> bool:
        """Give an event to a dead letter's place, or to the function that decides; False: left."""
        then = self.then
        try:
            if isinstance(then, DeadLetter) and then.call is None:
                await run.keep(then, event, error)
            else:
                call: Any = then.call if isinstance(then, DeadLetter) else then
                called = partial(call, event, error)
                await run.threads.call(name_of(call), called, is_async=is_async(call))
        except Exception as second:
            self._stop_app(run, f"{event}, whose error could not be handled", second)
            return False
        if isinstance(then, DeadLetter):
            self.dead_lettered += 1
        elif event.job is not None and event.job.state == "held":
            event.job.reject(reason_of(error))
        return True

    def _stop_app(self, run: Runtime, what: str, error: Exception) -> None:
        failure = HandlerError(self.name, what, reason_of(error))
        failure.__cause__ = error
        run.fail(failure)


def _failure(error: BaseException) -> Exception:
    """Return what counts as the handler's failure; raise again what is ours."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise error
        return RuntimeError("the handler was cancelled from inside")
    if isinstance(error, Exception):
        return error
    return RuntimeError(f"the handler called sys.exit({error.args[0] if error.args else ''})")
