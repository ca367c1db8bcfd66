"""How a handler's parameters are filled: found out when it is registered, by annotation or name."""

import functools
import inspect
import sys
import typing
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, Final

from p2pmsg import codec
from p2pmsg.app.events import Event, Kind, Request
from p2pmsg.errors import ConfigError
from p2pmsg.message import Message
from p2pmsg.queue import Job
from p2pmsg.toolkit import converted, is_async, makes_values

_CONTEXT: Final[dict[Kind, tuple[str, type]]] = {
    "message": ("message", Message),
    "job": ("job", Job),
    "request": ("request", Request),
}
_LENIENTLY: Final[dict[str, Any]] = {"annotation_format": 3} if sys.version_info >= (3, 14) else {}
"""`annotationlib.Format.FORWARDREF`: names that do not exist are no error."""
_PACKED: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Parameters:
    """How to call a handler.

    Attributes:
        is_async: whether it is an `async def`.
        positional: what gets each argument from an event, in order; None stands for the app.
        named: the same for arguments that go by name.
        value_type: into which the handler wants the value decoded; None: as it is.

    """

    is_async: bool
    positional: tuple[Callable[[Event], Any] | None, ...]
    named: dict[str, Callable[[Event], Any] | None]
    value_type: Any

    def convert(self, value: Any) -> Any:
        """Return a decoded value as the handler wants it; raise `InvalidValueError`."""
        if self.value_type is None:
            return value
        return converted(value, self.value_type, "the event")

    def arguments(self, event: Event, app: object) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments for an event."""
        return (
            [app if get is None else get(event) for get in self.positional],
            {name: app if get is None else get(event) for name, get in self.named.items()},
        )


def name_of(function: Any) -> str:
    """Return what a handler is called in errors, the log and statistics."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def parameters_of(function: Any) -> list[inspect.Parameter]:
    """Return what a function is called with, whether or not its annotations exist."""
    return [*inspect.signature(function, **_LENIENTLY).parameters.values()]


def plan(function: Any, kind: Kind, app_class: type) -> Parameters:
    """Find out how to call a handler of events of this kind; raise `ConfigError` where it cannot.

    A parameter is the message, job, request, event or app where it is annotated so, or named so
    without an annotation. The first of the others is the value. Further ones need a default.
    """
    name, names = name_of(function), _names(function)
    if not callable(function) or makes_values(function):
        raise ConfigError(f"handler {name}", "a function, plain or async, without yield", function)
    context: dict[str, tuple[type, Callable[[Event], Any] | None]] = {
        "event": (Event, lambda event: event),
        "app": (app_class, None),
    }
    if kind in _CONTEXT:
        context[_CONTEXT[kind][0]] = (_CONTEXT[kind][1], attrgetter(_CONTEXT[kind][0]))
    value_hint: Any = None
    has_value = kind == "timer"
    positional: list[Callable[[Event], Any] | None] = []
    named: dict[str, Callable[[Event], Any] | None] = {}
    has_gap = False  # a positional one is left to its default
    for each in parameters_of(function):
        if each.kind in _PACKED:
            continue
        hint = _hint(each, names)
        if isinstance(hint, Exception):
            if each.default is not each.empty:
                has_gap = True
                continue
            what = f"the annotation of {each.name!r} in {name}"
            raise ConfigError(what, "one that exists", str(hint)) from hint
        part = _context_of(each.name, hint, context)
        is_typed = typing.get_origin(hint) in (Message, Job)
        if part in ("message", "job") and value_hint is None and is_typed:
            (value_hint,) = typing.get_args(hint)
        get: Callable[[Event], Any] | None
        if part is not None:
            get = context[part][1]
        elif not has_value and not _is_foreign(hint):
            has_value, get = True, attrgetter("value")
            value_hint = value_hint if hint is None else hint
        elif each.default is not each.empty:
            has_gap = True
            continue
        else:
            raise _unfilled(name, each.name, kind, hint)
        if each.kind is each.KEYWORD_ONLY or has_gap:
            named[each.name] = get
        else:
            positional.append(get)
    value_type = None if value_hint is Any else value_hint
    if value_type is not None:
        try:
            codec.check_kind(value_type)
        except (TypeError, NameError) as error:
            limit = f"a type that values can be decoded into ({error})"
            raise ConfigError(f"the value's annotation in {name}", limit, value_type) from error
    return Parameters(is_async(function), tuple(positional), named, value_type)


def _hint(parameter: inspect.Parameter, names: dict[str, Any]) -> Any:
    """Return what an annotation means; where it does not exist here, the error that says so.

    What is imported for type checkers only does not exist.
    """
    if parameter.annotation is parameter.empty:
        return None
    one = SimpleNamespace(__annotations__={"it": parameter.annotation})
    try:
        return typing.get_type_hints(one, names, include_extras=True)["it"]
    except (NameError, TypeError) as error:
        return error


def _names(function: Any) -> dict[str, Any]:
    """Return the names that annotations are looked up in."""
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function):
        function = type(function).__call__
    return getattr(inspect.unwrap(function), "__globals__", {})


def _context_of(name: str, hint: Any, context: dict[str, Any]) -> str | None:
    """Return which part of an event a parameter is; None: none."""
    if hint is None or hint is Any:
        return name if name in context else None
    kind = _class_of(hint)
    return next((key for key, (each, _) in context.items() if kind is each), None)


def _class_of(hint: Any) -> Any:
    """Return the class that is meant: that of `Message[Trade]`, and of `Message | None`."""
    kinds = [each for each in typing.get_args(hint) if each is not type(None)]
    if len(kinds) == 1 and type(None) in typing.get_args(hint):
        hint = kinds[0]
    return typing.get_origin(hint) or hint


def _is_foreign(hint: Any) -> bool:
    """Whether it is a part of events of another kind, which is no value."""
    return _class_of(hint) in (Message, Job, Request, Event)


def _unfilled(handler: str, parameter: str, kind: Kind, hint: Any) -> ConfigError:
    own = "" if kind == "timer" else "the first one, for the value, or "
    one = _CONTEXT.get(kind)
    parts = [f"{one[0]}: {one[1].__name__}"] if one else []
    choice = ", ".join([*parts, "event: Event", "app: App"])
    limit = f"{own}one of {choice}, or have a default"
    return ConfigError(f"parameter {parameter!r} of {handler}", limit, hint)
