"""Checks that the configurations share; each raises `ConfigError` naming field, limit and value."""

import functools
import inspect
import math
from collections.abc import Callable, Coroutine
from typing import Any, Final, ParamSpec, TypeVar

from p2pmsg.errors import ConfigError
from recovery.checks import Bound, fit, fit_fields

P = ParamSpec("P")
R = TypeVar("R")

BUSY_WAIT: Final = (0, 0.001)
"""The bounds of how long a wait may look before it sleeps, in seconds."""
_FOREVER_S: Final = 1e9
"""Above it the system's calls refuse a time to wait."""

_HIDDEN: Final = ("secret", "secrets", "tokens", "headers")
"""Of these only the types are in errors."""


def shown(
    peer: Any,
    where: Callable[[], object],
    is_closed: Callable[[], bool] | None = None,
    states: tuple[str, str] = ("open", "closed"),
) -> str:
    """Return a peer's `repr`: what it is, its name, where, and whether it is open or closed."""
    kind = type(peer).__name__
    try:
        name = f" {peer._name!r}" if getattr(peer, "_name", "") else ""
        closed = peer._closed if is_closed is None else is_closed()
        return f"<{kind}{name} {where()} {states[closed]}>"
    except AttributeError:  # it could not be made, and a traceback shows it
        return f"<{kind} never opened>"


def check_fields(config: Any, **bounds: Bound) -> None:
    """Check the fields of a dataclass against their annotations, and numbers against bounds.

    A number of bytes may be given as "64MiB". In `bounds` is the least value of a number, or the
    least and the largest; else it is at least 0.

    Raises:
        ConfigError: a field is not as it must be.

    """
    fit_fields(_refuse, config, bounds)


def checked(**bounds: Bound) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a constructor, or a function, check its arguments as `check_fields` does."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def checking(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                given = signature.bind(*args, **kwargs)
            except TypeError as error:
                is_method = function.__name__ == "__init__"
                name = type(args[0]).__name__ if is_method else function.__name__
                raise TypeError(f"{name}() {error}") from None
            for name, size in fit(_refuse, function, given.arguments, bounds):
                given.arguments[name] = size
            return function(*given.args, **given.kwargs)

        return checking

    return decorate


def _refuse(field_name: str, limit: str, value: Any) -> None:
    if field_name in _HIDDEN:
        value = [type(each).__name__ for each in (value if isinstance(value, list) else [value])]
    raise ConfigError(field_name, limit, value)


def check(field_name: str, value: Any, ok: bool, limit: str) -> None:
    """Raise `ConfigError` unless `ok`."""
    if not ok:
        raise ConfigError(field_name, limit, value)


def at_least(field_name: str, value: float, least: float) -> None:
    """Raise `ConfigError` unless `value` is a finite number of at least `least`."""
    ok = isinstance(value, int | float) and not isinstance(value, bool)
    ok = ok and math.isfinite(value) and value >= least
    check(field_name, value, ok, f"at least {least}, and finite")


def whole(field_name: str, value: int, least: int, most: int | None = None) -> None:
    """Raise `ConfigError` unless `value` is an int of at least `least`, and at most `most`."""
    ok = isinstance(value, int) and not isinstance(value, bool) and value >= least
    check(field_name, value, ok, f"an int of at least {least}")
    if most is not None:
        check(field_name, value, value <= most, f"at most {most}")


def time_to_wait(field_name: str, seconds: float) -> float:
    """Return how long to wait, from 0 to what the system can wait; raise `ConfigError` for no time.

    Less than 0 is no wait, as where a caller gives what is left until its deadline; infinite is
    without end.
    """
    ok = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    ok = ok and not math.isnan(seconds)
    check(field_name, seconds, ok, "a number of seconds")
    return max(0, min(seconds, _FOREVER_S))


def is_async(function: Any) -> bool:
    """Whether it is an `async def`, or an object whose `__call__` is one."""
    return any(map(inspect.iscoroutinefunction, _called_by(function)))


def makes_values(function: Any) -> bool:
    """Whether calling it only makes a generator, plain or async, and runs nothing."""
    called = _called_by(function)
    return any(map(inspect.isgeneratorfunction, called)) or any(
        map(inspect.isasyncgenfunction, called)
    )


def _called_by(function: Any) -> tuple[Any, Any]:
    while isinstance(function, functools.partial):
        function = function.func
    return function, getattr(type(function), "__call__", None)  # noqa: B004 - of an object


def check_runs(field_name: str, function: Any) -> None:
    """Raise `ConfigError` where calling it runs nothing, since it has a `yield`."""
    check(field_name, function, not makes_values(function), "a function without yield")


def check_result(who: str, result: object, hint: str, *, may_be_task: bool = False) -> None:
    """Raise `TypeError` where what a function returned shows that it has not run.

    A decorator may hide that of the function itself. A coroutine is closed.

    Args:
        who: returned it.
        result: what it returned.
        hint: what to do about a coroutine.
        may_be_task: whether it may be a task or a future, which goes on by itself. Default False.

    """
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        kind = "a generator" if inspect.isgenerator(result) else "an async generator"
        raise TypeError(
            f"{who} returned {kind}, which nobody iterates: use a function without yield"
        )
    if isinstance(result, Coroutine):
        result.close()
        raise TypeError(f"{who} returned a coroutine, which nobody awaits: {hint}")
    if not may_be_task and inspect.isawaitable(result):
        kind = type(result).__name__
        raise TypeError(f"{who} returned an awaitable ({kind}), which nobody awaits: {hint}")
